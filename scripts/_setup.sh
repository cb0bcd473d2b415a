# Sourced by the scripts: finds Python and makes .venv from a lock file with hashes, once for each lock.
# Usage: setup_venv LOCK_FILE...
find_python() {
    for candidate in "${PYTHON:-}" python3.11 python3.12 python3.13 python3; do
        if [ -n "$candidate" ] && command -v "$candidate" >/dev/null 2>&1 &&
            "$candidate" -c 'import sys; raise SystemExit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    echo "error: Python 3.11, 3.12 or 3.13 is needed and was not found" >&2
    echo "remedy: install one (apt-get install python3 python3-venv), or set PYTHON=/path/to/python3.11" >&2
    exit 78
}

setup_venv() {
    local python stamp wanted
    python=$(find_python) || exit $?
    wanted="$("$python" -VV) $(cat "$@" pyproject.toml | cksum)"
    stamp=.venv/.moe-appliance-lock
    [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && return
    echo "setting up .venv with $("$python" -V) ..." >&2
    rm -rf .venv
    if ! "$python" -m venv .venv; then
        echo "error: a virtual environment cannot be made" >&2
        echo "remedy: apt-get install python3-venv" >&2
        exit 78
    fi
    for lock in "$@"; do
        .venv/bin/pip install -q --disable-pip-version-check --require-hashes -r "$lock"
    done
    .venv/bin/pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
    echo "$wanted" >"$stamp"
}
