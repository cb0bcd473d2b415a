"""What was asked of the engine and is not to be had: flags, parsers, context, cards, socket, plugin, environment. Pure.

Source: vLLM 0.26.0, measured where tests/data/vllm-0.26.0 has a log of it, else read in its source.
"""

from __future__ import annotations

from appliance.engine.failures.pattern import row

_SOCKET_FRAMES = r"create_server_unix_socket|setup_server"
_WHY = "moe-appliance engine command (says why each flag is there)"
_VERIFY = "moe-appliance engine verify {environment}"

ROWS = (
    row(
        r"moe-residency: refused: (?P<why>.*); (?P<do>[^;]+)$",
        "engine.residency",
        "The plan cannot be carried out: {why}.",
        "{do}",
        retry=False,
    ),
    row(
        r"error: unrecognized arguments: (?P<flag>.+)",
        "engine.flag_unknown",
        "The engine does not know the flag {flag}.",
        "take it out of [engine] args, or set [engine] environment to one that knows it; " + _WHY,
        retry=False,
    ),
    row(
        r"error: argument (?P<flag>-[^:]+): invalid choice: (?P<value>\S+) \(choose from (?P<choices>.*)\)",
        "engine.flag_value",
        "The engine does not take {value} for {flag}.",
        "one of {choices}; " + _WHY,
        retry=False,
    ),
    row(
        r"error: argument (?P<flag>-[^:]+): (?P<why>.+)",
        "engine.flag_value",
        "The engine does not take what {flag} was given: {why}.",
        "correct it in [engine] args; " + _WHY,
        retry=False,
    ),
    row(
        r"error: the following arguments are required: (?P<flag>.+)",
        "engine.flag_missing",
        "The engine wants a flag that it was not given: {flag}.",
        "add it to [engine] args; " + _WHY,
        retry=False,
    ),
    row(
        r"invalid tool call parser: (?P<name>\S+) \(chose from \{ ?(?P<choices>[^}]*?) ?\}",
        "engine.tool_parser",
        "The engine has no tool call parser {name}.",
        "set [engine] tool_call_parser to one of {choices}, or an environment that has it: " + _VERIFY,
        retry=False,
    ),
    row(
        r"(?:Reasoning parser '(?P<name>[^']+)' not found\. Available parsers: (?P<choices>[^\"]*)"
        r"|invalid reasoning parser: (?P<name2>\S+))",
        "engine.reasoning_parser",
        "The engine has no reasoning parser {name} {name2}.",
        "set [engine] reasoning_parser to one of {choices}, or an environment that has it: " + _VERIFY,
        retry=False,
    ),
    row(
        r"max_model_len \((?P<asked>\d+)\) is greater than the derived max_model_len \(\D*(?P<most>\d+)",
        "engine.context_beyond_model",
        "A context of {asked} tokens was asked for, and the model was made for {most}.",
        "set [engine] context_tokens = {most}",
        retry=False,
    ),
    row(
        r"max_num_batched_tokens \((?P<tokens>\d+)\) must be greater than or equal to max_num_seqs"
        r" \((?P<streams>\d+)\)",
        "engine.batch_small",
        "A step of {tokens} tokens is too small for {streams} streams.",
        "raise [engine] max_batched_tokens, or lower [engine] streams",
        retry=False,
    ),
    row(
        r"World size \((?P<wanted>\d+)\) is larger than the number of available GPUs \((?P<cards>\d+)\)",
        "engine.cards_few",
        "The engine was told to use {wanted} cards and sees {cards}.",
        "set [engine] tensor_parallel = {cards}, with a plan for it: moe-appliance plan make --gpus {cards}; or see "
        "where the others are: moe-appliance preflight",
        retry=False,
    ),
    row(
        r"attention heads \((?P<heads>\d+)\) must be divisible by tensor parallel size \((?P<cards>\d+)\)",
        "engine.tensor_parallel",
        "The model's {heads} attention heads cannot be spread over {cards} cards.",
        "set [engine] tensor_parallel to a divisor of {heads}",
        retry=False,
    ),
    row(
        r"No valid attention backend.*block_size=(?P<block>\d+)",
        "engine.block_size",
        "No attention kernel of the engine works with KV blocks of {block} tokens.",
        "take --block-size out of [engine] args (the engine chooses), or 64 or 128 as the model's recipe has it",
        retry=False,
    ),
    row(
        r"(?i)\b(?:page|block)[ _]?size\b.{0,80}(?:unsupported|not supported|must be|expected|not divisible|rejects?)"
        r"|(?:unsupported|invalid|unexpected|not support|mismatch|expected|only supports?).{0,60}"
        r"\b(?:page|block)[ _]?size",
        "engine.page_size",
        "The engine's attention kernels do not work with the pages of its KV cache.",
        "--block-size in [engine] args as the model's recipe has it: 64 wants a build with patched kernels, 128 may "
        "start and fail at the first request; " + _VERIFY,
        retry=False,
    ),
    row(
        r"Unknown quantization method: (?P<method>[\w-]+)",
        "engine.plugin_missing",
        "The engine does not know the quantization {method}: the plugin that brings it was not loaded.",
        _VERIFY + "; an environment with the plugin: moe-appliance engine install vllm-exl3, then [engine] environment",
        retry=False,
        plugin=True,
    ),
    row(
        r"FileNotFoundError: \[Errno 2\]|NotADirectoryError|PermissionError",
        "engine.socket_folder",
        "The folder of the engine's socket is not there, or is shut.",
        "moe-appliance restart (makes it anew)",
        frames=_SOCKET_FRAMES,
    ),
    row(
        r"AF_UNIX path too long",
        "engine.socket_long",
        "The path of the engine's socket is longer than the 107 bytes that Linux allows.",
        "set a shorter runtime_dir in appliance.toml",
        retry=False,
    ),
    row(
        r"(?i)address already in use",
        "engine.socket_taken",
        "Another process holds the engine's socket.",
        "moe-appliance restart (ends what an earlier start left, and takes the socket away)",
        frames=r"create_server_unix_socket",
    ),
    row(
        r"Timed out waiting for (?:new )?engine core processes to start",
        "engine.ready_timeout",
        "The engine's processes took longer to load than the engine itself allows.",
        'VLLM_ENGINE_READY_TIMEOUT_S = "3600" or more in [engine] env',
    ),
)
