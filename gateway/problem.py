"""Every refusal and failure a client can be told, as a value with the sentence that people read. Pure.

A dialect turns a `Problem` into its own shape. The message is shown by most agents, so it says what is
the matter, in which numbers, and what to do. `retry_after_s` becomes the Retry-After header; `heals` False
becomes `x-should-retry: false`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gateway.admission_types import RETRY_MAX_S, RETRY_MIN_S, Reason, Rejected, TicketId
from gateway.state import EngineState, Phase

_QUOTATION = re.compile("“[^”]*(?:”|$)")
"""What the engine said, in a sentence of the daemon's: it may be of another seat's prompt."""
LOADING_S = 30
"""Retry-After while an engine loads that does not say how far it is: Codex tries six times, so it lasts 3 min."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What went wrong with one request.

    `status`: HTTP status (used when no response was started). `code`: stable word for programs; `param`: the
    field of the request at fault. `reason`: the word for `x-moe-reject-reason`, when admission refused.
    `tokens` and `window` are set when the prompt is too long: of the prompt, and what fits. With `answer_tokens`, what
    was asked for on top, it is the two together that are.
    """

    status: int
    code: str
    message: str
    param: str | None = None
    retry_after_s: int | None = None
    heals: bool = True
    reason: Reason | None = None
    position: int | None = None
    depth: int | None = None
    tokens: int | None = None
    window: int | None = None
    answer_tokens: int | None = None


def bad_request(message: str, param: str | None = None, code: str = "invalid_request") -> Problem:
    """400: the request itself is wrong; sending it again will not help."""
    return Problem(400, code, message, param=param, heals=False)


def denied(status: int, code: str, message: str) -> Problem:
    """401 or 403: no key, an unknown key, or a seat that may not use the box."""
    return Problem(status, code, message, heals=False)


def unknown_path(path: str, served: tuple[str, ...]) -> Problem:
    """404: the gateway serves a fixed list of paths."""
    return Problem(
        404, "unknown_path", f"This box does not serve {path[:200]!r}. Served: {', '.join(served)}.", heals=False
    )


def method_not_allowed(path: str, allowed: str) -> Problem:
    """405: the path is served, with another method."""
    return Problem(405, "method_not_allowed", f"Use {allowed} on {path}.", heals=False)


def unknown_model(model: str, models: tuple[str, ...]) -> Problem:
    """404: the model that was asked for is not the one that runs here."""
    served = ", ".join(models) or "none yet"
    message = f"The model {model[:200]!r} is not served here. Served: {served}."
    return Problem(404, "model_not_found", message, param="model", heals=False)


def context_too_long(tokens: int, window: int) -> Problem:
    """400: a prompt of `tokens` does not fit into `window` tokens. Agents read the numbers and recover."""
    message = (
        f"This model's maximum context length is {window} tokens. However, your messages resulted in {tokens} tokens. "
        "Please reduce the length of the messages."
    )
    return Problem(400, "context_length_exceeded", message, param="messages", heals=False, tokens=tokens, window=window)


def answer_too_long(tokens: int, answer_tokens: int, window: int) -> Problem:
    """400: a prompt of `tokens` fits, but not with an answer of `answer_tokens` behind it."""
    message = (
        f"This model's maximum context length is {window} tokens. However, you requested {tokens + answer_tokens} "
        f"tokens ({tokens} in the messages, {answer_tokens} in the completion). "
        "Please reduce the length of the messages or completion."
    )
    return Problem(
        400,
        "context_length_exceeded",
        message,
        "max_tokens",
        heals=False,
        tokens=tokens,
        window=window,
        answer_tokens=answer_tokens,
    )


def image_on_text_only(where: str) -> Problem:
    """400: the engine of this box reads no images; `where` is the path of the part in the body."""
    message = (
        f"{where} has an image, and the model of this box reads text only. "
        "Take the image out of the conversation, or start a new one, and describe what it shows."
    )
    return Problem(400, "images_not_supported", message, param=where, heals=False)


def continuation_not_honoured(where: str) -> Problem:
    """400: the last message is an assistant turn to be continued, and the engine would answer it instead."""
    message = (
        f"{where} is an assistant message at the end, to be continued. The engine of this box did not show at its "
        "start that it continues one: it would begin a new answer, and you could not tell. End with a user message."
    )
    return Problem(400, "continuation_not_supported", message, param=where, heals=False)


def nothing_to_continue() -> Problem:
    """400: the last message is to be continued, and it is not the assistant's."""
    message = "'continue_final_message' continues an assistant message, and the last message is none."
    return Problem(400, "continuation_not_supported", message, param="continue_final_message", heals=False)


def dialect_not_served(path: str, served: tuple[str, ...]) -> Problem:
    """501: the gateway knows the path, the engine behind it does not."""
    others = f" It answers {', '.join(served)}." if served else ""
    message = f"The engine of this box does not answer {path}.{others}"
    return Problem(501, "dialect_not_served", message, heals=False)


def count_failed() -> Problem:
    """503: the engine did not count the tokens in time."""
    message = f"The engine did not count the tokens in time; retry in {RETRY_MIN_S} s."
    return Problem(503, "count_failed", message, retry_after_s=RETRY_MIN_S)


def first_token_late(limit_s: float) -> Problem:
    """503: queue and prefill together took longer than agents wait for a first token."""
    message = f"This answer could not begin within {limit_s:g} s, the limit of this box. Retry in {RETRY_MIN_S} s."
    return Problem(503, "first_token_late", message, retry_after_s=RETRY_MIN_S)


def body_too_large(limit_bytes: int) -> Problem:
    """413: the body is above `body_max_bytes`."""
    mib = limit_bytes / (1024 * 1024)
    limit = f"{mib:g} MiB" if mib.is_integer() else f"{limit_bytes} bytes"
    message = f"The request body is larger than {limit}, the limit of this box."
    return Problem(413, "body_too_large", message, heals=False)


def body_too_slow(limit_s: float) -> Problem:
    """408: the body did not arrive in time."""
    return Problem(408, "body_timeout", f"The request body did not arrive within {limit_s:g} s.")


def bodies_full(retry_after_s: int = RETRY_MIN_S) -> Problem:
    """503: the gateway holds as many request bodies as it may."""
    message = f"The box is holding too many large requests at once; retry in {retry_after_s} s."
    return Problem(503, "bodies_full", message, retry_after_s=retry_after_s)


def engine_not_ready(engine: EngineState, now_s: float) -> Problem:
    """503: the engine loads, restarts or was stopped; says which and for how long. One that only helps another box
    never serves here, and no wait mends that. `now_s` is wall-clock."""
    if engine.profile.helps:
        message = f"This box computes for {engine.profile.helps.rpartition(':')[0]}; ask there."
        return Problem(503, "engine_not_ready", message, heals=False, reason=Reason.ENGINE_NOT_READY)
    step = f" ({engine.step})" if engine.step else ""
    reason = _QUOTATION.sub("…", engine.cause.title).rstrip(".") if engine.cause else ""
    cause = f" The reason: {reason}." if reason else ""
    retry_after_s = RETRY_MIN_S
    match engine.phase:
        case Phase.PREPARING | Phase.STARTING | Phase.WARMING:
            state = f"The engine is {engine.phase}{step}."
            retry_after_s = _loading_s(engine, now_s)
        case Phase.BACKOFF:
            wait_s = max(0.0, (engine.retry_at_s or now_s) - now_s)
            retry_after_s = min(59, max(RETRY_MIN_S, int(wait_s) + 5))
            state = "The engine ended and will be started again."
        case Phase.FAILED | Phase.REFUSED | Phase.NEEDS_REBOOT:
            retry_after_s = 59
            state = f"The engine does not run ({engine.phase}); the operator of this box must act."
        case _:
            state = "The engine is not running."
    message = f"{state}{cause} Retry in {retry_after_s} s."
    return Problem(503, "engine_not_ready", message, retry_after_s=retry_after_s, reason=Reason.ENGINE_NOT_READY)


def _loading_s(engine: EngineState, now_s: float) -> int:
    """How long the start is likely to go on, by the last one, else the step, by how far it is; an agent has few tries,
    so rather longer."""
    if engine.left_s is not None:
        return min(RETRY_MAX_S, max(RETRY_MIN_S, int(engine.left_s) + 1))
    elapsed_s = max(0.0, now_s - engine.since_s)
    if not engine.progress:
        return LOADING_S
    return min(RETRY_MAX_S, max(RETRY_MIN_S, int(elapsed_s * (1 / engine.progress - 1)) + 1))


def engine_lost(detail: str) -> Problem:
    """502 before the answer began, an error event afterwards: the engine went away in the middle."""
    message = f"The engine stopped in the middle of this request ({detail}). Nothing is lost but this answer: retry."
    return Problem(502, "engine_lost", message, retry_after_s=RETRY_MIN_S)


def engine_busy(status: int) -> Problem:
    """503: the engine itself has no room, or loads, although it said that it was ready."""
    message = f"The engine did not take the request (it answered {status}). Retry in {RETRY_MIN_S} s."
    return Problem(503, "engine_busy", message, retry_after_s=RETRY_MIN_S)


def engine_unreachable(detail: str) -> Problem:
    """503: the engine takes no connections, or closed one before it began to answer: it is gone or going."""
    message = f"The engine cannot be reached ({detail}). Retry in {RETRY_MIN_S} s."
    return Problem(503, "engine_lost", message, retry_after_s=RETRY_MIN_S, reason=Reason.ENGINE_LOST)


def engine_said(status: int, message: str, code: str, param: str | None) -> Problem:
    """The engine's own refusal; 4xx is the client's to mend. "" = it gave none."""
    message = message or f"The engine refused the request with status {status}."
    return Problem(status, code or "engine_refused", message, param=param, heals=status >= 500)


def engine_refused_key() -> Problem:
    """502: the engine does not take the gateway's own key."""
    return Problem(502, "engine_key", "The engine refused the gateway's own key; tell the operator of this box.")


def maintenance() -> Problem:
    """503: the operator lets no new requests in."""
    return refused(Rejected(TicketId(0), Reason.MAINTENANCE, RETRY_MAX_S, 0, 0), 0)


def ended(reason: Reason, limits_s: float) -> Problem:
    """The gateway ends a running stream; `limits_s` is the limit that was reached, seconds."""
    match reason:
        case Reason.MAX_STREAM:
            message = f"This answer ran for {limits_s:g} s, the limit of this box (max_stream_s), and was ended."
            return Problem(504, "max_stream", message, heals=False, reason=reason)
        case Reason.SEAT_GONE:
            message = "Your seat was disabled or removed while this answer was running; it was ended."
            return Problem(403, "seat_gone", message, heals=False, reason=reason)
        case _:
            message = f"The box is being stopped or restarted and this answer was ended; retry in {RETRY_MIN_S} s."
            return Problem(503, "draining", message, retry_after_s=RETRY_MIN_S, reason=reason)


def refused(rejected: Rejected, streams: int) -> Problem:
    """429 or 503 from admission, with the place in line and the time to come back."""
    retry = rejected.retry_after_s
    place = f"you would be {ordinal(rejected.position)} in line" if rejected.position else "nobody waits"
    busy = f"This box serves {streams} streams at once and {place}"
    others = _others(rejected.depth)
    code = str(rejected.reason)
    match rejected.reason:
        case Reason.QUEUE_FULL | Reason.QUEUE_BYTES:
            status, message = (
                429,
                f"{busy}, but the line is full ({others}). Retry in {retry} s.",
            )
        case Reason.SEAT_QUEUE_FULL:
            status = 429
            message = f"{busy}, but your seat has as many requests waiting as it may. Retry in {retry} s."
        case Reason.SEAT_COLD_QUEUE_FULL:
            status = 429
            message = f"A long prompt of your seat waits to be read, and one at a time may. Retry in {retry} s."
        case Reason.PREDICTED_WAIT:
            status, message = (
                429,
                f"{busy}; that would take longer than the box lets anyone wait. Retry in {retry} s.",
            )
        case Reason.DEADLINE:
            status, message = (
                429,
                f"No stream came free in time; {others}. Retry in {retry} s.",
            )
        case Reason.SEAT_GONE:
            status, message = 403, "Your seat was disabled or removed; ask the operator of this box."
        case Reason.DRAINING:
            status, message = 503, f"The box is being stopped or restarted. Retry in {retry} s."
        case Reason.MAINTENANCE:
            status, message = 503, f"The operator of this box lets no new requests in for now. Retry in {retry} s."
        case Reason.PAUSED:
            status, message = (
                503,
                f"The operator paused this box: its line does not move ({others}). Retry in {retry} s.",
            )
        case Reason.ENGINE_NOT_READY:
            status, message = 503, f"The engine is being started or is about to be. Retry in {retry} s."
        case _:
            status, message = 503, f"The engine is not running at the moment. Retry in {retry} s."
    return Problem(
        status,
        code,
        message,
        retry_after_s=retry or None,
        heals=retry > 0,
        reason=rejected.reason,
        position=rejected.position,
        depth=rejected.depth,
    )


def _others(depth: int) -> str:
    """Who waits beside the one that is told so, which is in line no more or never was."""
    if not depth:
        return "nobody else waits"
    return "1 other waits" if depth == 1 else f"{depth} others wait"


def ordinal(n: int) -> str:
    """1 -> 1st, 2 -> 2nd, 11 -> 11th."""
    suffix = "th" if n % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{suffix}"
