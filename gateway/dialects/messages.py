"""The Anthropic form /v1/messages, which Claude Code speaks. Pure.

Rules:
- A partial assistant turn at the end is always to be continued here.
- Inside a stream whatever may be tried again is `overloaded_error`: Claude Code sends it again.
- "prompt is too long: N tokens > M maximum" is read by Claude Code, which cuts its history by the numbers; at "input
  length and `max_tokens` exceed context limit: N + A > M" it asks for a shorter answer.
  Source: facts/clients.md section 3.4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from gateway.dialects import Prepared, fields, rewrite, traits
from gateway.dialects.responses import PING
from gateway.dialects.traits import Traits
from gateway.meter import messages_usage
from gateway.problem import Problem, bad_request
from gateway.taps import JsonTap, MessagesTap, Tap, messages_ended

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


@dataclass(frozen=True, slots=True)
class Messages:
    """The one form."""

    path: str = "/v1/messages"

    def prepare(self, raw: bytes, body: dict[str, Any]) -> Prepared | Problem:
        problem = fields.check_list(body, "messages") or fields.check(body)
        if problem is not None:
            return problem
        try:
            raw = rewrite.without_billing(rewrite.without_control(raw, body, "echo"), body)
            raw = rewrite.without_vendor_tools(raw, body)
        except ValueError as error:
            return bad_request(f"A field of the body cannot be read: {error}.")
        return Prepared(raw, body.get("stream") is True, body.get("model"), _traits(body), fields.max_tokens(body))

    def tap(self, prepared: Prepared, status: int, is_stream: bool) -> Tap:
        return MessagesTap() if status == 200 and is_stream else JsonTap(status, messages_usage, messages_ended)

    def error(self, problem: Problem) -> bytes:
        kind = "api_error" if problem.status >= 500 else "invalid_request_error"
        return _error(_TYPES.get(problem.status, kind), problem)

    def stream_error(self, problem: Problem, tap: Tap | None) -> bytes:
        kind = "overloaded_error" if problem.heals else "invalid_request_error"
        return b"event: error\ndata: " + _error(kind, problem) + b"\n\n"

    def opening(self, request_id: str) -> bytes:
        return b""

    def heartbeat(self, position: int, depth: int, why: str = "") -> bytes:
        return PING


MESSAGES = Messages()


def _error(kind: str, problem: Problem) -> bytes:
    message = problem.message
    if problem.tokens is not None and problem.window is not None:
        message = _too_long(problem.tokens, problem.answer_tokens, problem.window)
    return orjson.dumps({"type": "error", "error": {"type": kind, "message": message}})


def _too_long(tokens: int, answer_tokens: int | None, window: int) -> str:
    """What Claude Code reads. A prompt that just fills the window is too long too, since an answer needs room."""
    if answer_tokens is None:
        return f"prompt is too long: {tokens} tokens > {min(window, tokens - 1)} maximum"
    return (
        f"input length and `max_tokens` exceed context limit: {tokens} + {answer_tokens} > {window}, "
        "decrease input length or `max_tokens` and try again"
    )


def _traits(body: dict[str, Any]) -> Traits:
    config = body.get("output_config")
    form = config.get("format") if isinstance(config, dict) else body.get("output_format")
    messages = body["messages"]
    return Traits(
        first_text=traits.first_user_text(messages),
        image_at=traits.image_at(messages, "messages"),
        continues_at=traits.continues_at(messages),
        tools=bool(body.get("tools")),
        json_output=isinstance(form, dict) and form.get("type") == "json_schema",
    )
