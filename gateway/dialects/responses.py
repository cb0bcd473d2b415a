"""The OpenAI form /v1/responses, which Codex speaks. Pure.

Rules:
- Comments do not keep Codex waiting: a heartbeat is an event, of a type that clients pass over.
- A stream that waits begins with a `response.created` of ours; the engine's own is then dropped (ResponsesTap).
- A failure inside the stream is `response.failed`, with a code that Codex tries again (`rate_limit_exceeded` with
  a time, `server_error`) or, where trying again does not help, one that it shows. Never `server_is_overloaded`:
  it gives up at that one. Source: facts/clients.md section 3.3.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import orjson

from gateway.dialects import Prepared, fields, rewrite, traits
from gateway.dialects.openai import openai_error
from gateway.dialects.traits import Traits
from gateway.meter import responses_usage
from gateway.problem import Problem, bad_request
from gateway.taps import JsonTap, ResponsesTap, Tap, responses_ended

_FIELDS = {"messages": "input", "max_tokens": "max_output_tokens"}
"""What the fields that a length is about are called here."""
PING = b'event: ping\ndata: {"type":"ping"}\n\n'


@dataclass(frozen=True, slots=True)
class Responses:
    """The one form; an `input` is a text or a list of items."""

    path: str = "/v1/responses"

    def prepare(self, raw: bytes, body: dict[str, Any]) -> Prepared | Problem:
        given = body.get("input")
        problem = None if isinstance(given, str) and given else fields.check_list(body, "input")
        problem = problem or fields.check(body)
        if problem is not None:
            return problem
        try:
            raw = rewrite.without_hosted_tools(rewrite.without_control(raw, body, "echo"), body)
        except ValueError as error:
            return bad_request(f"A field of the body cannot be read: {error}.")
        return Prepared(raw, body.get("stream") is True, body.get("model"), _traits(body), fields.max_tokens(body))

    def tap(self, prepared: Prepared, status: int, is_stream: bool) -> Tap:
        return ResponsesTap() if status == 200 and is_stream else JsonTap(status, responses_usage, responses_ended)

    def error(self, problem: Problem) -> bytes:
        if problem.tokens is not None:
            problem = replace(problem, param=_FIELDS.get(problem.param or "", problem.param))
        return openai_error(problem)

    def opening(self, request_id: str) -> bytes:
        """Helpers of the OpenAI SDKs want `response.created` before anything else, a ping or a failure too."""
        return _event("response.created", 0, _response(f"resp_{request_id}", "queued", None))

    def stream_error(self, problem: Problem, tap: Tap | None) -> bytes:
        code, message = _code(problem)
        sequence = tap.sequence + 1 if isinstance(tap, ResponsesTap) else 1
        reply_id = tap.meter.reply_id if tap is not None else ""
        failed = _response(reply_id or "resp_none", "failed", {"code": code, "message": message})
        return _event("response.failed", sequence, failed)

    def heartbeat(self, position: int, depth: int, why: str = "") -> bytes:
        return PING


RESPONSES = Responses()


def _response(id: str, status: str, error: dict[str, str] | None) -> dict[str, Any]:
    """A response object without an answer."""
    return {
        "id": id,
        "object": "response",
        "created_at": 0,
        "status": status,
        "error": error,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": "",
        "output": [],
        "parallel_tool_calls": True,
        "temperature": None,
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
        "usage": None,
    }


def _event(kind: str, sequence: int, response: dict[str, Any]) -> bytes:
    data = {"type": kind, "sequence_number": sequence, "response": response}
    return f"event: {kind}\ndata: ".encode() + orjson.dumps(data) + b"\n\n"


def _code(problem: Problem) -> tuple[str, str]:
    """(code, message) of `response.failed`."""
    if problem.tokens is not None and problem.answer_tokens is None:
        return "context_length_exceeded", problem.message
    if not problem.heals:
        return "invalid_prompt", problem.message
    if problem.status in (429, 503) and problem.retry_after_s:
        return "rate_limit_exceeded", f"{problem.message} Please try again in {problem.retry_after_s}s."
    return "server_error", problem.message


def _traits(body: dict[str, Any]) -> Traits:
    given, text = body["input"], body.get("text")
    form = text.get("format") if isinstance(text, dict) else None
    key = body.get("prompt_cache_key")
    return Traits(
        first_text=traits.first_user_text(given),
        image_at=traits.image_at(given, "input"),
        continues_at=traits.unfinished_at(given),
        tools=bool(body.get("tools")),
        json_output=isinstance(form, dict) and form.get("type") == "json_schema",
        prompt_key=key if isinstance(key, str) else "",
    )
