"""Replies of engines as streams of events, one for each form and each way of spelling it, for the taps' tests.

Rules: a `Reply` says which of its events must reach the client; line ends and comments are added by the test, so that
they change nothing else. The spellings are those that were measured: facts/engine-vllm.md section 4 for vLLM, the
notes of issue 3 for llama.cpp.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gateway.meter import Usage
from gateway.taps import ChatTap, EventTap, MessagesTap, ResponsesTap

DONE = b"data: [DONE]\n\n"
TRICKY = 'say "error" and event: error, data: [DONE], "usage", {"type":"error"}, .delta" message_stop\n\nété \U0001f600'
"""Text with everything in it that a search of bytes could take for something else."""


@dataclass(frozen=True, slots=True)
class Reply:
    """`events` in order, each with whether it is sent on. `usage` at the end; `whole` and `failed` say how it ends.
    `tokens`: how many events carry output."""

    name: str
    tap: Callable[[], EventTap]
    events: tuple[tuple[bytes, bool], ...]
    usage: Usage | None
    tokens: int
    failed: bool = False

    def stream(self, *, crlf: bool, comments: bool) -> tuple[bytes, bytes]:
        """What comes, and what must be sent on."""
        came, kept = b"", b""
        for number, (event, keep) in enumerate(self.events):
            event = event.replace(b"\n", b"\r\n") if crlf else event
            ends = b"\r\n\r\n" if crlf else b"\n\n"
            came += (b":" if number % 2 else b": keep-alive") + ends if comments else b""
            came += event
            kept += event if keep else b""
        return came, kept


def _data(value: Any) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


def named(value: dict[str, Any]) -> bytes:
    """An event named by its type."""
    return f"event: {value['type']}\n".encode() + _data(value)


def _all(*events: bytes) -> tuple[tuple[bytes, bool], ...]:
    return tuple((event, True) for event in events)


# Chat and completions


def _chunk(choices: list[dict[str, Any]], **more: Any) -> bytes:
    return _data({"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": choices, **more})


def _delta(delta: dict[str, Any], reason: str | None = None, **more: Any) -> bytes:
    return _chunk([{"index": 0, "delta": delta, "finish_reason": reason}], **more)


def _text(text: str, reason: str | None = None, **more: Any) -> bytes:
    return _chunk([{"index": 0, "text": text, "finish_reason": reason}], **more)


_CHAT_USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 4}}
_COUNTED = Usage(11, 7, 4)
_USED = _chunk([], usage=_CHAT_USAGE)
_USED_LLAMA = _chunk([], usage=_CHAT_USAGE, timings={"predicted_n": 7, "predicted_ms": 1.5})
_WORDS = (_delta({"content": TRICKY}), _delta({"content": " more"}))
_CALL = (
    _delta({"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": {"name": "f.delta"}}]}),
    _delta({"tool_calls": [{"index": 0, "function": {"arguments": '{"error":'}}]}),
    _delta({"tool_calls": [{"index": 0, "function": {"arguments": '"usage"}'}}]}),
)
_CHAT_ERRORS = (
    _data({"error": {"message": "EngineCore encountered an issue.", "type": "InternalServerError", "code": 500}}),
    _data({"object": "error", "message": "no", "code": 500}),
    b'error: {"code":500,"message":"no"}\n\n',
    b'event: error\ndata: {"message":"no"}\n\n',
)


def _chat() -> list[Reply]:
    vllm = (_delta({"role": "assistant", "content": ""}), *_WORDS, _delta({}, "stop"))
    llama = (_delta({"role": "assistant", "content": None}), *_WORDS, _delta({}, "length"))
    call = (_delta({"role": "assistant", "content": None}), *_CALL, _delta({}, "tool_calls"))
    stripped, asked = lambda: ChatTap(True), lambda: ChatTap(False)
    return [
        Reply("chat vllm, asked", asked, _all(*vllm, _USED, DONE), _COUNTED, 2),
        Reply("chat vllm", stripped, (*_all(*vllm), (_USED, False), (DONE, True)), _COUNTED, 2),
        Reply("chat llama.cpp", stripped, (*_all(*llama), (_USED_LLAMA, False), (DONE, True)), _COUNTED, 2),
        Reply("chat tools", stripped, (*_all(*call), (_USED, False), (DONE, True)), _COUNTED, 3),
        Reply("chat without usage", stripped, _all(*vllm, DONE), None, 2),
        Reply("completions vllm", stripped, (*_all(_text("a"), _text(TRICKY), _text("", "stop")), (_USED, False),
              (DONE, True)), _COUNTED, 2),
        Reply("completions llama.cpp", stripped, _all(_text("a"), _text(TRICKY), _text("", "stop", usage=_CHAT_USAGE),
              DONE), _COUNTED, 2),
        *(
            Reply(f"chat error {at}", stripped, (*_all(*vllm[:3]), (error, False), *((event, False) for event in
                  (*_WORDS, _USED, DONE))), None, 2, failed=True)
            for at, error in enumerate(_CHAT_ERRORS)
        ),
        Reply("chat error at once", stripped, ((_CHAT_ERRORS[0], False), (DONE, False)), None, 0, failed=True),
    ]  # fmt: skip


# Messages


def _message_start(usage: dict[str, Any]) -> bytes:
    return named({"type": "message_start", "message": {"id": "msg_1", "role": "assistant", "usage": usage}})


def _block(at: int, block: dict[str, Any], *deltas: dict[str, Any]) -> tuple[bytes, ...]:
    return (
        named({"type": "content_block_start", "index": at, "content_block": block}),
        *(named({"type": "content_block_delta", "index": at, "delta": delta}) for delta in deltas),
        named({"type": "content_block_stop", "index": at}),
    )


def _message_delta(reason: str, usage: dict[str, Any]) -> bytes:
    return named({"type": "message_delta", "delta": {"stop_reason": reason}, "usage": usage})


_STOP = named({"type": "message_stop"})
_PROMPT = {"input_tokens": 7, "cache_read_input_tokens": 4, "output_tokens": 0}
_ERROR = named({"type": "error", "error": {"type": "api_error", "message": "EngineCore encountered an issue."}})


def _messages() -> list[Reply]:
    text = _block(0, {"type": "text", "text": ""}, {"type": "text_delta", "text": TRICKY}, {"type": "text_delta"})
    tool = _block(
        1, {"type": "tool_use", "id": "toolu_1", "name": "f"}, {"type": "input_json_delta", "partial_json": '{"error":'}
    )
    llama = (_message_start(_PROMPT), *text, _message_delta("end_turn", {"output_tokens": 7}), _STOP)
    calls = (_message_start(_PROMPT), *text, *tool, _message_delta("tool_use", {"output_tokens": 7}), _STOP)
    again = _PROMPT | {"output_tokens": 7}
    vllm = (_message_start({"input_tokens": 11, "output_tokens": 0}), *text, _message_delta("max_tokens", again), _STOP)
    nulls = {"input_tokens": None, "cache_read_input_tokens": None, "output_tokens": 7}
    empty = (_message_start(_PROMPT), _message_delta("end_turn", {"output_tokens": 0}), _STOP)
    ping = named({"type": "ping"})
    return [
        Reply("messages llama.cpp", MessagesTap, _all(*llama), _COUNTED, 2),
        Reply("messages tools", MessagesTap, _all(*calls), _COUNTED, 3),
        Reply("messages vllm", MessagesTap, (*_all(*vllm), (DONE, False)), _COUNTED, 2),
        Reply("messages pings", MessagesTap, _all(llama[0], ping, *llama[1:3], ping, *llama[3:]), _COUNTED, 2),
        Reply("messages nulls", MessagesTap, _all(*llama[:-2], _message_delta("end_turn", nulls), _STOP), _COUNTED, 2),
        Reply("messages empty", MessagesTap, _all(*empty), Usage(11, 0, 4), 0),
        Reply("messages done early", MessagesTap, (*_all(*llama[:3]), (DONE, False), *_all(*llama[3:])), _COUNTED, 2),
        Reply("messages error", MessagesTap, (*_all(*llama[:3]), (_ERROR, False), *((event, False) for event in
              (*llama[3:], DONE))), None, 1, failed=True),
        Reply("messages error of chat", MessagesTap, (*_all(*llama[:3]), (_CHAT_ERRORS[0], False),
              *((event, False) for event in llama[3:])), None, 1, failed=True),
    ]  # fmt: skip


# Responses

_RESPONSES_USAGE = {"input_tokens": 11, "output_tokens": 7, "input_tokens_details": {"cached_tokens": 4}}


def _responses_events(*, numbered: bool, end: str, kind: str = "response.output_text") -> tuple[bytes, ...]:
    response = {"id": "resp_1", "object": "response", "status": "in_progress", "error": None}
    ended = response | {"status": end, "usage": _RESPONSES_USAGE, "output": [{"text": TRICKY}]}
    values: list[dict[str, Any]] = [
        {"type": "response.created", "response": response},
        {"type": "response.in_progress", "response": response},
        {"type": "response.output_item.added", "item": {"id": "x_1", "type": "message"}},
        {"type": f"{kind}.delta", "item_id": "x_1", "delta": TRICKY},
        {"type": f"{kind}.delta", "item_id": "x_1", "delta": '{"sequence_number": 99}'},
        {"type": f"{kind}.done", "item_id": "x_1", "text": TRICKY},
        {"type": f"response.{end}", "response": ended},
    ]
    return tuple(named(value | ({"sequence_number": at} if numbered else {})) for at, value in enumerate(values))


def _opened() -> ResponsesTap:
    tap = ResponsesTap()
    tap.opened = True
    return tap


def _responses() -> list[Reply]:
    vllm = _responses_events(numbered=True, end="completed")
    llama = _responses_events(numbered=False, end="completed")
    tools = _responses_events(numbered=True, end="completed", kind="response.function_call_arguments")
    failed = named({"type": "response.failed", "response": {"id": "resp_1", "error": {"code": "server_error"}}})
    error = named({"type": "error", "code": "server_error", "message": "no", "param": None})
    behind = tuple((event, False) for event in (*vllm[4:], DONE))
    hidden = named({"type": "response.completed", "response": {"error": {"code": "server_error", "message": "no"}}})
    return [
        Reply("responses vllm", ResponsesTap, (*_all(*vllm), (DONE, False)), _COUNTED, 2),
        Reply("responses llama.cpp", ResponsesTap, _all(*llama), _COUNTED, 2),
        Reply("responses tools", ResponsesTap, _all(*tools), _COUNTED, 2),
        Reply("responses opened", _opened, ((vllm[0], False), *_all(*vllm[1:])), _COUNTED, 2),
        Reply("responses incomplete", ResponsesTap, _all(*_responses_events(numbered=True, end="incomplete")),
              _COUNTED, 2),
        Reply("responses failed", ResponsesTap, (*_all(*vllm[:4]), (failed, False), *behind), None, 1, failed=True),
        Reply("responses error", ResponsesTap, (*_all(*vllm[:4]), (error, False), *behind), None, 1, failed=True),
        Reply("responses failed inside", ResponsesTap, (*_all(*vllm[:4]), (hidden, False)), None, 1, failed=True),
    ]  # fmt: skip


REPLIES = {reply.name: reply for reply in (*_chat(), *_messages(), *_responses())}
