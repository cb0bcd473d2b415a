# Sourced by scripts/test: puts there what tests/systemd needs of this machine: root, systemd-nspawn, and mmdebstrap where
# $MOE_SYSTEMD_ROOT names a Debian release whose tree is not in the git-ignored .systemd/ yet. From apt's registry only.
# Usage: setup_systemd
setup_systemd() {
    local missing=() root=${MOE_SYSTEMD_ROOT:-/}
    if [ "$(id -u)" -ne 0 ]; then
        echo "error: the systemd tests start a container, for which they must be root" >&2
        echo "remedy: sudo scripts/test --systemd   or leave --systemd out" >&2
        exit 78
    fi
    command -v systemd-nspawn >/dev/null || missing+=(systemd-container)
    case "$root" in
    */*) ;;
    *) [ -d ".systemd/$root" ] || command -v mmdebstrap >/dev/null || missing+=(mmdebstrap) ;;
    esac
    [ ${#missing[@]} -gt 0 ] || return 0
    echo "installing ${missing[*]} with apt ..." >&2
    if ! { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        -o DPkg::Lock::Timeout=300 "${missing[@]}" >/dev/null; }; then
        echo "error: ${missing[*]} could not be installed (apt says why above)" >&2
        echo "remedy: apt-get install ${missing[*]}" >&2
        exit 1
    fi
}
