"""For tests: the four routes, and what a request, an answer, an ending, an error and a heartbeat are on each. Pure.

Rules: what is true of every route is said once, in a test that is parametrised by `ROUTES`; what differs is here.
A test that mostly waits is run on all routes at once by `together`: it takes no longer than on one.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.fake_engine.asking import CHAT, COMPLETIONS, MESSAGES, RESPONSES, ask, texts
from tests.gateway.wire import Answer

PATHS = (CHAT, COMPLETIONS, RESPONSES, MESSAGES)
NAMES = {CHAT: "chat", COMPLETIONS: "text", RESPONSES: "resp", MESSAGES: "msgs"}
ROUTES = pytest.mark.parametrize("path", PATHS, ids=NAMES.get)


def together(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """Run a test of a `path` on every route at the same time, each with what it sets up itself."""

    async def on(path: str, given: dict[str, Any]) -> None:
        try:
            await test(path=path, **given)
        except BaseException as error:
            error.add_note(f"on {path}")
            raise

    @functools.wraps(test)
    async def on_all(**given: Any) -> None:
        async with asyncio.TaskGroup() as group:
            for path in PATHS:
                group.create_task(on(path, given))

    signature = inspect.signature(test)
    rest = [parameter for name, parameter in signature.parameters.items() if name != "path"]
    on_all.__signature__ = signature.replace(parameters=rest)  # type: ignore[attr-defined]
    return on_all


STREAM_OR_NOT = pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
WITH_USAGE = {"stream_options": {"include_usage": True}}
LIMIT = {CHAT: "max_tokens", COMPLETIONS: "max_tokens", RESPONSES: "max_output_tokens", MESSAGES: "max_tokens"}
PROMPT = {CHAT: "messages", COMPLETIONS: "prompt", RESPONSES: "input", MESSAGES: "messages"}
ENDINGS = {CHAT: b"[DONE]", COMPLETIONS: b"[DONE]", RESPONSES: b"response.completed", MESSAGES: b"message_stop"}
PING = b'event: ping\ndata: {"type":"ping"}'
_OPENAI = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 408: "timeout_error"}
_OPENAI |= {429: "rate_limit_error", 503: "service_unavailable_error"}
_ANTHROPIC = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large"}
_ANTHROPIC |= {408: "timeout_error", 429: "rate_limit_error", 503: "overloaded_error", 504: "timeout_error"}


def _events(*values: dict[str, Any]) -> bytes:
    pairs = [(value["type"], json.dumps(value, separators=(",", ":"))) for value in values]
    return "".join(f"event: {kind}\ndata: {data}\n\n" for kind, data in pairs).encode()


def _chat(token: str) -> bytes:
    return b'data: {"choices":[{"index":0,' + token.encode() + b'}],"usage":null}\n\n'


_OPENED: dict[str, Any] = {"id": "resp_1", "object": "response", "status": "in_progress", "output": [], "error": None}
_MESSAGE = {"id": "msg_1", "type": "message", "role": "assistant", "content": [], "usage": {"input_tokens": 3}}
OPENING = {
    CHAT: b"",
    COMPLETIONS: b"",
    RESPONSES: _events({"type": "response.created", "sequence_number": 0, "response": _OPENED}),
    MESSAGES: _events({"type": "message_start", "message": _MESSAGE}),
}
"""What a scripted engine begins with, before a token."""
TOKEN = {
    CHAT: _chat('"delta":{"content":"x"}'),
    COMPLETIONS: _chat('"text":"x"'),
    RESPONSES: _events({"type": "response.output_text.delta", "sequence_number": 1, "delta": "x"}),
    MESSAGES: _events({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "x"}}),
}
DONE = {
    CHAT: b"data: [DONE]\n\n",
    COMPLETIONS: b"data: [DONE]\n\n",
    RESPONSES: _events(
        {"type": "response.completed", "sequence_number": 2, "response": _OPENED | {"status": "completed"}}
    ),
    MESSAGES: _events(
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    ),
}
"""What a whole stream ends with."""
WHOLE = {
    CHAT: b'{"choices":[],"usage":null}',
    COMPLETIONS: b'{"choices":[],"usage":null}',
    RESPONSES: b'{"object":"response","output":[],"error":null}',
    MESSAGES: b'{"type":"message","content":[]}',
}
"""A whole answer in one piece."""


def plain(body: bytes) -> bytes:
    """A reply without what is made anew each time: the second, and random ids."""
    body = re.sub(rb'"created(_at)?":\d+', b'"created":0', body)
    return re.sub(rb'"(msg|fc|call|toolu)_[0-9a-f]{32}"', rb'"\1"', body)


def values(answer: Answer) -> list[Any]:
    """The data of each event, parsed; comments left out, an ending that is no JSON stays text."""
    found: list[Any] = []
    for event in answer.events():
        lines = [line[6:] for line in event.split(b"\n") if line.startswith(b"data: ")]
        if lines:
            data = b"\n".join(lines)
            found.append(data.decode() if data == b"[DONE]" else json.loads(data))
    return found


def text_of(path: str, answer: Answer) -> str:
    """The text of an answer, whole or in pieces."""
    if answer.headers["content-type"].startswith("text/event-stream"):
        return "".join(texts(path, [value for value in values(answer) if value != "[DONE]"]))
    body = answer.json()
    read: dict[str, Callable[[], str]] = {
        CHAT: lambda: body["choices"][0]["message"]["content"],
        COMPLETIONS: lambda: body["choices"][0]["text"],
        RESPONSES: lambda: body["output"][0]["content"][0]["text"],
        MESSAGES: lambda: body["content"][0]["text"],
    }
    return read[path]()


def whole(path: str, answer: Answer) -> bool:
    """True for a 200 that a client may take for a whole answer."""
    if answer.status != 200 or not answer.whole:
        return False
    if not answer.headers["content-type"].startswith("text/event-stream"):
        return "error" not in answer.json() or answer.json()["error"] is None
    ends = (b"response.incomplete", ENDINGS[path]) if path == RESPONSES else (ENDINGS[path],)
    return any(end in answer.events()[-1] for end in ends)


def is_beat(path: str, event: bytes) -> bool:
    """True for a heartbeat in the form of the route."""
    return event == PING if path in (RESPONSES, MESSAGES) else event.startswith(b":")


def beats(path: str, answer: Answer) -> list[bytes]:
    """The heartbeats in a stream."""
    return [event for event in answer.events() if is_beat(path, event)]


@dataclass(frozen=True, slots=True)
class Said:
    """An error as a client reads it. `code` and `param` are None where the dialect has none."""

    type: str
    message: str
    code: str | None = None
    param: str | None = None

    @property
    def heals(self) -> bool:
        """Whether an error inside a stream is one that agents try again."""
        if self.type == "response.failed":
            in_time = self.code == "rate_limit_exceeded" and re.search(r"try again in \d+s\.$", self.message)
            return bool(in_time) or self.code == "server_error"
        return self.type in ("overloaded_error", "server_error", "service_unavailable_error", "rate_limit_error")


def type_of(path: str, status: int) -> str:
    """The error type of a response."""
    if path.startswith(MESSAGES):
        return _ANTHROPIC.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return _OPENAI.get(status, "server_error" if status >= 500 else "invalid_request_error")


def error(path: str, answer: Answer) -> Said:
    """The error of a response with a status of its own; checks its shape."""
    assert answer.whole
    assert answer.status >= 400
    assert answer.headers["content-type"] == "application/json"
    return _said(path, answer.json(), type_of(path, answer.status))


def _said(path: str, body: Any, kind: str) -> Said:
    if path.startswith(MESSAGES):
        assert set(body) == {"type", "error"}
        assert body["type"] == "error"
        assert set(body["error"]) == {"type", "message"}
    else:
        assert set(body) == {"error"}
        assert set(body["error"]) == {"message", "type", "param", "code"}
    said = Said(**body["error"])
    assert said.type == kind or not kind
    assert isinstance(said.message, str)
    assert said.message
    return said


def stream_error(path: str, answer: Answer) -> Said:
    """The error in the last event of a stream that has no end; checks its shape, and that it is the only one."""
    assert answer.status == 200
    assert not answer.whole
    for end in (b"[DONE]", ENDINGS[path], b"response.incomplete"):
        assert end not in answer.body
    assert b"rror" not in b"".join(answer.events()[:-1]).replace(b'"error":null', b"")
    name, _, data = answer.events()[-1].rpartition(b"\n")
    assert data.startswith(b"data: ")
    said = json.loads(data[6:])
    if path == RESPONSES:
        return _failed(name, said, values(answer))
    assert name == (b"event: error" if path == MESSAGES else b"")
    return _said(path, said, "")


def _failed(name: bytes, said: Any, events: list[Any]) -> Said:
    assert name == b"event: response.failed"
    assert events[0]["type"] == "response.created"
    assert said["type"] == "response.failed"
    numbers = [event["sequence_number"] for event in events if "sequence_number" in event]
    assert numbers == sorted(set(numbers))
    response = said["response"]
    assert (response["object"], response["status"], response["usage"]) == ("response", "failed", None)
    fault = response["error"]
    assert set(fault) == {"code", "message"}
    assert fault["code"] in ("context_length_exceeded", "rate_limit_exceeded", "server_error", "invalid_prompt")
    return Said("response.failed", fault["message"], fault["code"])


__all__ = ["CHAT", "COMPLETIONS", "MESSAGES", "RESPONSES", "ask"]
