"""Reads what an engine answers instead of a reply: its own error shapes become ours. Pure.

Engines have one error shape for all dialects (llama.cpp) or other type names than a dialect's own (vLLM), so
nothing of theirs is passed on but the sentence, the code and the field.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

from gateway import problem as problems
from gateway.problem import Problem

MESSAGE_MAX = 2000
"""vLLM's validation errors quote the whole body."""
_WINDOW = re.compile(
    r"exceeds the max_model_len (\d+)|maximum (?:context|model) length (?:is|of) (\d+)|context size \((\d+)"
    r"|context length is only (\d+)|context length \((\d+)"
)
_TOKENS = re.compile(
    r"engine prompt length (\d+)|(?:request|input) \((\d+) tokens\)|resulted in (\d+) tokens|(\d+) in the messages"
    r"|contains (?:at least )?(\d+) (?:input )?tokens|(\d+) input tokens|(\d+) tokens from the input"
)
_ANSWER = re.compile(
    r"requested (\d+) output tokens|(\d+) in the completion|(\d+) tokens for the completion|is too large: (\d+)"
)
_UNFIT = re.compile(
    r"Unsupported tool type|Missing tool type|Failed to parse (?:tools|messages|tool call)|Unknown reasoning format"
    r"|chat template to an empty conversation|cannot be greater than max_model_len|object has no attribute|^'\w+'$"
)
"""What llama.cpp, then vLLM answer with 500 although the request is at fault: agents would send it again and again."""
_NO_IMAGES = re.compile(r"(?:image|audio|video) input is not supported|is not a multimodal model")
_DEAD = re.compile(r"EngineCore encountered|EngineDeadError|cannot schedule new futures")
"""vLLM whose engine is gone, or going, while its HTTP server still answers."""
_QUOTED = re.compile(r"'input':|input_value=|; messages =|; tools =")
"""From here on a validation error repeats the request, whose text may say anything."""
_DIGITS_MAX = 9
_AT_LEAST = "at least"
_CHARACTERS = re.compile(r"contains \d+ characters")
"""vLLM that did not even count: so long that it cannot fit."""


def read_error(status: int, body: bytes, path: str) -> Problem:
    """The problem behind an engine's answer with another status than 200 to a request on `path`."""
    error = _error_of(body)
    message = error if isinstance(error, str) else _text(error, "message") or _text(error, "detail")
    own = _QUOTED.split(message, maxsplit=1)[0]
    fields = error if isinstance(error, dict) else {}
    if status in (400, 500) and _NO_IMAGES.search(own):
        return problems.image_on_text_only("The request")
    if status in (400, 500) and (too_long := _too_long(own, fields)) is not None:
        return too_long
    if status == 500 and _DEAD.search(own):
        return problems.engine_unreachable("it says that it is gone")
    if status == 500 and _UNFIT.search(own):
        status = 400
    if status in (401, 403):
        return problems.engine_refused_key()
    if status in (429, 503, 529):
        return problems.engine_busy(status)
    if status == 501 or (status in (404, 405) and "model" not in message.lower()):
        return problems.dialect_not_served(path, ())
    code, param = fields.get("code"), fields.get("param")
    return problems.engine_said(
        status,
        message[:MESSAGE_MAX],
        code if isinstance(code, str) else "",
        param if isinstance(param, str) else None,
    )


def read_failure(data: bytes, path: str) -> Problem:
    """The problem behind the data of an error event inside a stream on `path`."""
    error = _error_of(data)
    code = error.get("code") if isinstance(error, dict) else None
    status = code if isinstance(code, int) and 400 <= code < 600 else 500
    problem = read_error(status, data, path)
    gone = problem.code == "engine_lost"
    noise = problem.heals and "validation error" in problem.message  # of pydantic, about vLLM's own error
    return problems.engine_lost("it says that it is gone" if gone else "it failed") if gone or noise else problem


def is_lower_bound(body: bytes) -> bool:
    """True when the engine does not say how many tokens the prompt has, or only that there are at least so many:
    vLLM ceases to count where the answer that was asked for would not fit any more."""
    error = _error_of(body)
    message = error if isinstance(error, str) else _text(error, "message")
    known = isinstance(error, dict) and isinstance(error.get("n_prompt_tokens"), int)
    return not known and (_AT_LEAST in message or _tokens(message) is None)


def recounted(problem: Problem, tokens: int | None) -> Problem:
    """A problem with the length of a prompt, now that it is known: `tokens`, None = it is not."""
    if problem.tokens is None or problem.window is None:
        return problem
    if tokens is None:  # what does not fit with certainty is what an agent can act upon
        return problems.context_too_long(max(problem.tokens, problem.window + 1), problem.window)
    tokens = max(tokens, problem.tokens)
    return _of_length(tokens, problem.answer_tokens, problem.window) or problem


def _error_of(body: bytes) -> Any:
    """The `error` of an answer or of its `response`, else all of it (`{"detail": ...}`); {} when it is not JSON."""
    try:
        said = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    if not isinstance(said, dict):
        return {}
    response = said.get("response")
    return said.get("error") or (response.get("error") if isinstance(response, dict) else None) or said


def _text(error: Any, name: str) -> str:
    value = error.get(name) if isinstance(error, dict) else None
    return value if isinstance(value, str) else ""


def _too_long(message: str, fields: dict[str, Any]) -> Problem | None:
    tokens, window = fields.get("n_prompt_tokens"), fields.get("n_ctx")
    if isinstance(tokens, int) and isinstance(window, int):
        return problems.context_too_long(tokens, window)
    size = _first(_WINDOW.search(message))
    if size is None:
        return None
    return _of_length(_tokens(message) or size, _first(_ANSWER.search(message)), size)


def _tokens(message: str) -> int | None:
    """How many tokens the prompt has, in the engine's words."""
    return None if _CHARACTERS.search(message) else _first(_TOKENS.search(message))


def _of_length(tokens: int, answer_tokens: int | None, window: int) -> Problem | None:
    """What is too long: the prompt, or the prompt and the answer; None when neither is."""
    if tokens >= window:
        return problems.context_too_long(tokens, window)
    if answer_tokens is not None and tokens + answer_tokens > window:
        return problems.answer_too_long(tokens, answer_tokens, window)
    return None


def _first(match: re.Match[str] | None) -> int | None:
    if match is None:
        return None
    digits = next(group for group in match.groups() if group is not None)
    return int(digits) if len(digits) <= _DIGITS_MAX else None
