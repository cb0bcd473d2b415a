"""What the fake engine can be told to do. Pure.

Rules: every knob has a default that makes a healthy engine. `None`, `""`, `0` or `false` switches a fault off,
as its docstring says. Seconds are real seconds except where `time_scale` is named. "Start only" knobs are read
once; all others can be merged while it runs (POST /_fake/knobs) and hold for requests that arrive later.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from tests.fake_engine.tools import parse_rule

INFERENCE_PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses")
COUNT_PATHS = (
    "/tokenize",
    "/v1/messages/count_tokens",
    "/v1/chat/completions/input_tokens",
    "/v1/responses/input_tokens",
)
STYLES = ("llama", "vllm")
HOST_FAULTS = ("", "miss", "text", "crash", "load")
TOOL_FAULTS = ("", "ignore", "refuse", "markup")
HOST_TOKENS_PER_GIB = 100_000
"""What `--kv-offloading-size` makes of a GiB. About 10 KB a token."""
LLAMA_LOG = (
    "init: initializing ...",
    "init: loading model",
    "load_model: loading model 'fake-model'",
    "load_model: initializing, n_slots = 4, n_ctx_slot = 8192, kv_unified = 'true'",
    "init: model loaded",
    "init: listening",
)
"""Load phases as llama.cpp logs them. Source: facts/engine-embedded.md section 8."""


class KnobError(ValueError):
    """A knob name that does not exist, or a value of the wrong kind."""


@dataclass(frozen=True, slots=True)
class Knobs:
    """All knobs; the JSON form has the same names."""

    # Identity and sizes
    model: str = "fake-model"
    """Model id in /v1/models and in replies."""
    context_tokens: int = 262_144
    """`max_model_len`; a prompt that does not leave room below it is answered with 400. Style "vllm" answers
    400 also when prompt + max_tokens do not fit, "llama" cuts the reply there."""
    reply_tokens: int = 64
    """Reply length when the request has no max_tokens and reply_text is empty."""
    reply_text: str = ""
    """Text of every reply that is not a tool call, one token per word; "" = generated words."""
    tool_rules: tuple[str, ...] = ()
    """Each {"name": N, "arguments": {...}, "when_tool": T (default N), "any": true (whatever the tools)} as JSON:
    the first whose tool the request has answers with that one call, unless a tool result follows the last text
    of the user."""
    tool_fault: str = ""
    """What it makes of tools on chat: "" = a call when tool_choice is "required" or names one, "ignore" (words),
    "refuse" (400, as vLLM without a parser), "markup" (the call comes as text)."""
    json_mode: bool = True
    """response_format is obeyed on chat; false = the reply is words."""
    tells_cached: bool = True
    """Usage of chat and completions says how many tokens were cached."""
    thinks: bool = False
    """Every word of a chat reply is reasoning."""
    cache_tokens: int = 624_000
    """Prefix cache capacity; 0 = no cache. Source: facts/admission-and-bench.md section 3, KV size A."""
    host_cache_tokens: int = 0
    """Capacity of a tier in host RAM that keeps what the cache drops; 0 = none."""
    host_fault: str = ""
    """What the tier does instead of giving back what it has: "miss" (nothing), "text" (another reply), "crash" (die);
    "load": the process with a tier does not start; "" = none of these."""
    reset_path: bool = False
    """POST /reset_prefix_cache empties the cache and leaves the tier; false = 404, as vLLM outside of its dev mode."""
    style: str = "llama"
    """Shape and words of errors, and what a final assistant message means: "llama" (llama.cpp) or "vllm"."""
    dialects: tuple[str, ...] = INFERENCE_PATHS
    """Inference paths served; the others answer 404."""
    counts: tuple[str, ...] = COUNT_PATHS
    """Count paths served; the others answer 404."""
    images: bool = False
    """Image parts count as 256 tokens; false = they are refused, as by a model without eyes."""
    continues: bool = True
    """A final assistant message is continued (style "vllm" on chat: with continue_final_message); false = it is
    closed and a new reply begins, whatever the request says, as vLLM does on DeepSeek."""
    keep_alive_s: float = 5.0
    """Idle keep-alive connections are closed after this. Start only."""

    # Pace
    time_scale: float = 1.0
    """Multiplies prefill and decode times only (0.05 = 20 times faster); above 0."""
    check_scale: float = 1.0
    """Multiplies time_scale while the appliance itself asks: at the warm-up, or whether an idle engine lives."""
    ms_per_token: tuple[float, ...] = (7.9, 11.0, 14.0, 17.0, 19.0, 21.0, 24.0, 27.0)
    """Milliseconds per token of each stream with 1, 2, ... sequences decoding; beyond the end: linear."""
    prefill_tok_per_s: float = 0.0
    """Prefill rate over uncached tokens; 0 = the measured formula in pace.py."""
    prefill_decode_factor: float = 0.05
    """Decode speed of the others while a prefill runs, as a share of their normal speed."""
    overhead_s: float = 0.0
    """Added to each prefill (the simulation has 0.3); scaled by time_scale."""
    tokens_per_chunk: int = 1
    """Tokens packed into one SSE chunk, as speculative decoding does."""
    first_alone: bool = False
    """The first token has a chunk of its own: it is what the prefill gives, before anything is speculated."""
    headers_delay: bool = False
    """Send the response headers only with the first token, not at once."""
    early_events: bool = True
    """Send message_start, or response.created and response.in_progress, with the headers and not with the first
    token; headers_delay delays them too."""
    bare_events: bool = False
    """/v1/responses events without sequence_number, output_index and content_index, as llama.cpp sends them."""

    # Loading
    bind_delay_s: float = 0.0
    """Connections are refused for this long. Start only."""
    load_s: float = 0.0
    """All but the control endpoints answer 503 for this long after the start."""
    never_ready: bool = False
    """Stay loading for ever."""
    load_log: tuple[str, ...] = LLAMA_LOG
    """Lines on stderr, spread evenly over load_s. Start only."""
    fail_load: str = ""
    """After load_s print this line on stderr and exit with exit_code or exit_signal; "" = off. Start only."""

    # Death
    die_after_tokens: int | None = None
    """Die once this many tokens were sent in all since the start or the last reset."""
    die_after_s: float | None = None
    """Die this long after the start, or after the merge that set it."""
    die_in_request_s: float | None = None
    """Die this long after the body of a completion request was read; what is sent at once is out by then."""
    die_on_marker: str = ""
    """Die when a request body contains this text."""
    exit_code: int = 1
    """Exit code of a death or a failed load; 0 = a crash that looks like success."""
    exit_signal: int = 0
    """Die by this signal instead of exiting; 0 = off."""
    last_words: str = ""
    """Line on stderr just before a death."""
    ignore_sigterm: bool = False
    """SIGTERM and SIGINT do nothing."""
    sigterm_delay_s: float = 0.0
    """Time between SIGTERM and the exit."""
    sigterm_exit_code: int = 0
    """Exit code after SIGTERM."""
    grandchildren: int = 0
    """Child processes that ignore SIGTERM and outlive the engine (120 s at most). Start only."""
    grandchildren_setsid: bool = False
    """They put themselves in sessions of their own. Start only."""

    # Faults of one reply
    only_marker: str = ""
    """The faults below hit only requests whose body contains this text; "" = every request."""
    hang: bool = False
    """Accept a completion and never answer; health stays 200."""
    hang_health: bool = False
    """GET /health never answers (only_marker does not apply)."""
    hang_counts: bool = False
    """The count paths never answer (only_marker does not apply)."""
    silent_s: float = 0.0
    """Send nothing (but the headers and early events, unless headers_delay) for this long before the prefill."""
    reject_status: int | None = None
    """Answer this HTTP status with an error body of the style."""
    stall_after: int | None = None
    """Stop sending after this many tokens of a reply, for ever."""
    error_in_stream: int | None = None
    """After this many tokens of a reply send the dialect's error event and end; not streamed: status 500."""
    error_then_done: bool = False
    """Send `data: [DONE]` after that error where the dialect has one, as vLLM does."""
    responses_error_event: bool = False
    """/v1/responses says that error with `event: error` instead of `response.failed`."""
    truncate_after: int | None = None
    """End the body cleanly after this many tokens: no finish_reason, no usage, no [DONE] or its like."""
    cut_after: int | None = None
    """Close the TCP connection after this many tokens, in the middle of the body."""
    cut_rst: bool = False
    """cut_after resets the connection (RST) instead of closing it (FIN)."""

    # What tests see
    echo_body: int = 0
    """Keep the last N completion requests (headers, raw body in base64) in the stats; 0 = none."""


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_CHECKS: Mapping[str, Callable[[Any], bool]] = {
    "bool": lambda v: isinstance(v, bool),
    "str": lambda v: isinstance(v, str),
    "int": _integer,
    "float": _number,
    "int | None": lambda v: v is None or _integer(v),
    "float | None": lambda v: v is None or _number(v),
    "tuple[float, ...]": lambda v: isinstance(v, list | tuple) and len(v) > 0 and all(map(_number, v)),
    "tuple[str, ...]": lambda v: isinstance(v, list | tuple) and all(isinstance(x, str) for x in v),
}


def merged(knobs: Knobs, patch: Mapping[str, Any]) -> Knobs:
    """`knobs` with `patch` applied. Raises KnobError, and then nothing of the patch holds."""
    kinds = {field.name: str(field.type) for field in fields(Knobs)}
    clean: dict[str, Any] = {}
    for name, value in patch.items():
        if name not in kinds:
            raise KnobError(f"no knob is called {name!r}")
        if not _CHECKS[kinds[name]](value):
            raise KnobError(f"knob {name} wants {kinds[name]}, not {value!r}")
        clean[name] = tuple(value) if isinstance(value, list) else value
    result = replace(knobs, **clean)
    if min(result.time_scale, result.check_scale, result.prefill_decode_factor) <= 0 or result.tokens_per_chunk < 1:
        raise KnobError("the scales and prefill_decode_factor must be above 0, tokens_per_chunk at least 1")
    if result.style not in STYLES:
        raise KnobError(f"style must be one of {STYLES}, not {result.style!r}")
    if result.host_fault not in HOST_FAULTS:
        raise KnobError(f"host_fault must be one of {HOST_FAULTS}, not {result.host_fault!r}")
    if result.tool_fault not in TOOL_FAULTS:
        raise KnobError(f"tool_fault must be one of {TOOL_FAULTS}, not {result.tool_fault!r}")
    for name, known in (("dialects", INFERENCE_PATHS), ("counts", COUNT_PATHS)):
        if unknown := set(getattr(result, name)) - set(known):
            raise KnobError(f"{name} can be {known}, not {sorted(unknown)}")
    try:
        for rule in result.tool_rules:
            parse_rule(rule)
    except ValueError as error:
        raise KnobError(f"tool_rules: {error}") from error
    return result


def from_json(text: str | bytes) -> Knobs:
    """Knobs from a JSON object. Raises KnobError."""
    return merged(Knobs(), parse_patch(text))


def parse_patch(text: str | bytes) -> dict[str, Any]:
    """A JSON object of knobs, not yet checked. Raises KnobError."""
    try:
        patch = json.loads(text)
    except ValueError as error:
        raise KnobError(f"knobs are not JSON: {error}") from error
    if not isinstance(patch, dict):
        raise KnobError("knobs must be a JSON object")
    return patch
