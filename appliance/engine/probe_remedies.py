"""What to do about a probe that failed, in the words of the engine's kind. Pure."""

from __future__ import annotations

JSON = "nothing, unless your tools want JSON answers; an engine with structured output keeps to them"
USAGE = "use a server that obeys stream_options.include_usage, as OpenAI's reference has it"
HOST_BYTES = "moe-appliance plan check  (the plan is not what the engine loaded: see cpu offload in engine command)"


def _told(kind: str, setting: str, flags: str) -> str:
    """How a setting of the engine is changed: our own key, a flag of a command, or somebody else's."""
    match kind:
        case "vllm":
            return f"[engine] {setting}"
        case "command":
            return f"add {flags} to [engine] command"
        case "embedded":
            return "[engine] model_file: another model"
        case _:
            return f"whoever runs the engine adds {flags}"


def tools(kind: str) -> str:
    """No call, or a call that no agent can read."""
    flags = "--enable-auto-tool-choice --tool-call-parser NAME"
    return _told(kind, 'tool_call_parser = "NAME"  (the parser of the model\'s family)', flags)


def cached_tokens(kind: str) -> str:
    """vLLM tells them on demand only."""
    flag = "--enable-prompt-tokens-details"
    return f"moe-appliance engine command  (see that {flag} is there)" if kind == "vllm" else _told(kind, "", flag)


def cache(kind: str) -> str:
    """Source: facts/checkpoint-and-offload.md, complaint 13."""
    interval = 'env = { VLLM_PREFIX_CACHE_RETENTION_INTERVAL = "64" }'
    return _told(
        kind, f"{interval}  (64 or 4096, by build)", "--enable-prefix-caching, or a retention interval above 0,"
    )


def pace(kind: str) -> str:
    """Source: facts/checkpoint-and-offload.md, complaints 11 and 20."""
    graphs = "CUDA graphs up to streams x (1 + speculative tokens), no --enforce-eager"
    if kind == "vllm":
        return f"moe-appliance engine command  (see that it has {graphs}), or [engine] floor_tok_per_s = a lower one"
    return f"see that the engine has {graphs}; or [engine] floor_tok_per_s = a lower one"


def prove(kind: str) -> str:
    """Source: facts/checkpoint-and-offload.md, complaints 21 and 22."""
    if kind == "vllm":
        return "moe-appliance plan make  with a shorter context or more experts in host RAM"
    return "[engine] context_tokens = what two streams can have at once"


def thinking(kind: str) -> str:
    """Source: facts/checkpoint-and-offload.md, complaint 18."""
    flags = "--default-chat-template-kwargs '{\"enable_thinking\": false}'"
    return _told(kind, 'thinking = "off"', flags)
