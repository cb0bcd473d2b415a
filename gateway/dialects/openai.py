"""The OpenAI forms /v1/chat/completions and /v1/completions. Pure.

Rules:
- A ticket is one sequence: whatever would start more than one is refused, naming the field.
- The client's bytes are forwarded; `stream_options.include_usage` is the only thing spliced in, and the chunk
  that it brings is dropped again when the client did not ask for it.
- What the gateway does not need to know is the engine's to validate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from gateway.dialects import Prepared
from gateway.meter import ChatTap, JsonTap, Tap
from gateway.problem import Problem, bad_request
from gateway.splice import put_value, replace_value, value_span

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}
_ONE_AT_MOST = ("n", "best_of", "n_cmpl")
_MUST_BE_OFF = ("use_beam_search", "background")


@dataclass(frozen=True, slots=True)
class OpenAI:
    """Either form; `prompt_field` is the field that holds the prompt and must be there."""

    path: str
    prompt_field: str

    def prepare(self, raw: bytes, body: dict[str, Any]) -> Prepared | Problem:
        """Checks in the order in which a person would want to hear of them."""
        problem = self._check(body)
        if problem is not None:
            return problem
        stream = body.get("stream") is True
        options = body.get("stream_options")
        asked = isinstance(options, dict) and options.get("include_usage") is True
        if stream and not asked:
            try:
                raw = _asking_for_usage(raw, isinstance(options, dict))
            except ValueError:
                return bad_request("'stream_options' is too long.", "stream_options")
        return Prepared(raw, stream, body.get("model"), strip_usage=not asked)

    def _check(self, body: dict[str, Any]) -> Problem | None:
        prompt = body.get(self.prompt_field)
        if prompt is None:
            return bad_request(f"{self.prompt_field!r} is missing.", self.prompt_field)
        if self.prompt_field == "messages" and (not isinstance(prompt, list) or not prompt):
            return bad_request("'messages' must be a list with at least one message.", "messages")
        if self.prompt_field == "prompt" and _prompts(prompt) > 1:
            return _several("prompt", "a list of several prompts")
        for field in _ONE_AT_MOST:
            value = body.get(field)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                return bad_request(f"{field!r} must be a whole number.", field)
            if value != 1:
                return _several(field, f"{field}={value}")
        for field in _MUST_BE_OFF:
            if body.get(field) not in (None, False):
                return _several(field, f"{field}={body[field]!r}")
        return _wrong_type(body)

    def tap(self, prepared: Prepared, status: int, is_stream: bool) -> Tap:
        return ChatTap(prepared.strip_usage) if status == 200 and is_stream else JsonTap(status)

    def error(self, problem: Problem) -> bytes:
        return orjson.dumps(_error_object(problem))

    def stream_error(self, problem: Problem) -> bytes:
        return b"data: " + orjson.dumps(_error_object(problem)) + b"\n\n"

    def heartbeat(self, position: int, depth: int) -> bytes:
        return f": queued position={position} of={depth}\n\n".encode() if position else b": reading the prompt\n\n"


CHAT = OpenAI("/v1/chat/completions", "messages")
COMPLETIONS = OpenAI("/v1/completions", "prompt")


def _asking_for_usage(raw: bytes, has_options: bool) -> bytes:
    """`raw` with `include_usage`; what else its options say stays. Raises ValueError when they are too long."""
    span = value_span(raw, "stream_options")
    old = raw[span[0] : span[1]] if span is not None and has_options else b"{}"
    return put_value(raw, "stream_options", span, replace_value(old, "include_usage", b"true"))


def _error_object(problem: Problem) -> dict[str, Any]:
    kind = _TYPES.get(problem.status, "server_error")
    return {"error": {"message": problem.message, "type": kind, "param": problem.param, "code": problem.code}}


def _several(field: str, what: str) -> Problem:
    message = f"{what} would run more than one sequence, or outlive the request; this box runs one per request. "
    return bad_request(message + f"Leave {field!r} out.", field, code="one_sequence_only")


def _prompts(prompt: Any) -> int:
    """How many sequences a `prompt` starts: a string or a list of token ids is one."""
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        return len(prompt)
    return 1


def _wrong_type(body: dict[str, Any]) -> Problem | None:
    """The fields that the gateway itself reads must have the type that it reads."""
    if not isinstance(body.get("stream"), bool | None):
        return bad_request("'stream' must be true or false.", "stream")
    if not isinstance(body.get("stream_options"), dict | None):
        return bad_request("'stream_options' must be an object.", "stream_options")
    if not isinstance(body.get("model"), str | None):
        return bad_request("'model' must be a string.", "model")
    for field in ("max_tokens", "max_completion_tokens"):
        value = body.get(field)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
            return bad_request(f"{field!r} must be a whole number, 0 or more.", field)
    return None
