# Sourced by the scripts: finds Python and makes .venv from a lock file with hashes, once for each lock.
# Usage: setup_venv LOCK_FILE...
find_python() {
    if [ -n "${PYTHON:-}" ] && ! "$PYTHON" -c 'import sys; raise SystemExit(not (3, 11) <= sys.version_info[:2] <= (3, 13))'; then
        echo "error: PYTHON=$PYTHON is not a Python 3.11, 3.12 or 3.13 that runs" >&2
        echo "remedy: set it to the full path of one, or unset it" >&2
        exit 78
    fi
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

install_locks() {
    local lock
    for lock in "$@"; do
        .venv/bin/pip install -q --disable-pip-version-check --require-hashes -r "$lock" || return 1
    done
    .venv/bin/pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
}

setup_venv() {
    local python stamp wanted
    python=$(find_python) || exit $?
    wanted="$("$python" -VV) $({ cat "$@" && sed '/^\[tool\./,$d' pyproject.toml; } | cksum)" # what tools are told changes nothing
    stamp=.venv/.moe-appliance-lock
    [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && return
    echo "setting up .venv with $("$python" -V) ..." >&2
    rm -rf .venv
    if ! "$python" -m venv .venv; then
        echo "error: a virtual environment cannot be made" >&2
        echo "remedy: apt-get install python3-venv" >&2
        exit 78
    fi
    if ! install_locks "$@"; then
        echo "error: the packages named in $* could not be installed into .venv (pip says why above)" >&2
        echo "remedy: check the network or pip's index settings (pip config list), then run this again" >&2
        exit 1
    fi
    echo "$wanted" >"$stamp"
}
