"""The daemon with the real vLLM on the CPU: scripts/test --vllm. Minutes, not seconds."""
