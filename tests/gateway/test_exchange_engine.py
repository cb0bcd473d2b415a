"""gateway.exchange in front of engines that answer as they should not: half, empty, another form, no end."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest

from tests.gateway import forms
from tests.gateway.checks import line_of
from tests.gateway.forms import (
    CHAT,
    COMPLETIONS,
    DONE,
    MESSAGES,
    OPENING,
    RESPONSES,
    ROUTES,
    STREAM_OR_NOT,
    TOKEN,
    WHOLE,
)
from tests.gateway.running import running
from tests.gateway.wire import Answer, call, scripted

pytestmark = pytest.mark.anyio

OK = b"HTTP/1.1 200 OK\r\n"
JSON = OK + b"content-type: application/json\r\n"
EVENTS = OK + b"content-type: text/event-stream\r\n"
HALF = b'{"choices"'


async def answered(
    path: str, raw: bytes, *, stream: bool, hold_s: float = 0.0
) -> tuple[Answer, str, forms.Said | None, float]:
    """What a client gets of an engine that sends `raw`, holds the connection and closes; the word of the log line;
    the error, if there is one; how long the ticket was out."""

    async def say(writer: asyncio.StreamWriter, _: bytes) -> None:
        writer.write(raw)
        await writer.drain()
        await asyncio.sleep(hold_s)

    async with scripted(say) as url, running(engine_url=url) as gateway:
        since_s = asyncio.get_running_loop().time()
        answer = await call(gateway, path, stream=stream)
        await gateway.idle()
        took_s = asyncio.get_running_loop().time() - since_s
        line = await line_of(gateway, answer)
    said = None
    if answer.status != 200:
        said = forms.error(path, answer)
        assert said.code in (None, line["code"])
    elif not answer.whole:
        said = forms.stream_error(path, answer)
    assert (said is None) == (line["word"] == "ok")
    return answer, line["word"], said, took_s


@ROUTES
@pytest.mark.parametrize(
    "raw",
    [
        JSON + b"\r\n" + HALF,
        JSON + b"\r\n",
        JSON + b"content-length: 0\r\n\r\n",
        JSON + b"content-length: 10\r\n\r\n" + HALF,
        JSON + b"transfer-encoding: chunked\r\n\r\na\r\n" + HALF + b"\r\n0\r\n\r\n",
        JSON + b"content-length: 4\r\n\r\nnull",
        EVENTS + b"\r\n" + TOKEN[CHAT] + DONE[CHAT],
    ],
)
async def test_half_an_answer_in_one_piece_is_a_502(path: str, raw: bytes) -> None:
    answer, word, _, _ = await answered(path, raw, stream=False)
    assert (answer.status, word, answer.headers["retry-after"]) == (502, "engine_lost", "10")


@ROUTES
@pytest.mark.parametrize(("status", "stream"), [(400, True), (500, False)])
@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"no", ""),
        (b"", ""),
        (b"<html>", ""),
        (b"[1]", ""),
        (b'{"error":"plain"}', "plain"),
        (b'{"detail":"a detail"}', "a detail"),
        (b'{"detail":[{"loc":["body"],"msg":"x"}]}', ""),
        (b'{"error":{"message":5,"code":{},"param":[]}}', ""),
        (b'{"object":"error","message":"old vllm","code":400}', "old vllm"),
        (b'{"type":"error","error":{"type":"overloaded_error","message":"m","more":1}}', "m"),
    ],
)
async def test_an_error_of_the_engine_is_told_in_the_routes_own_shape(
    path: str, stream: bool, status: int, body: bytes, says: str
) -> None:
    raw = b"HTTP/1.1 %d No\r\ncontent-length: %d\r\n\r\n" % (status, len(body)) + body
    answer, word, said, _ = await answered(path, raw, stream=stream)
    assert (answer.status, word) == (status, "engine_error")
    assert said is not None
    assert said.message == (says or f"The engine refused the request with status {status}.")


@ROUTES
@pytest.mark.parametrize("kind", [b"Text/Event-Stream", b"TEXT/EVENT-STREAM ; charset=utf-8", b"text/event-stream;x"])
async def test_a_media_type_is_compared_without_case(path: str, kind: bytes) -> None:
    body = OPENING[path] + TOKEN[path] + DONE[path]
    answer, word, _, _ = await answered(path, OK + b"Content-Type: " + kind + b"\r\n\r\n" + body, stream=True)
    assert (answer.status, answer.body, answer.whole, word) == (200, body, True, "ok")
    assert answer.headers["x-accel-buffering"] == "no", "it was relayed as a stream"


@ROUTES
@pytest.mark.parametrize("form", range(4))
async def test_what_is_no_stream_is_none_for_a_client_that_asked_for_one(path: str, form: int) -> None:
    body, whole = TOKEN[path] + DONE[path], WHOLE[path]
    raw = (
        OK + b"\r\n" + body,
        OK + b"content-type: text/event-streams\r\n\r\n" + body,
        JSON + b"content-length: %d\r\n\r\n" % len(whole) + whole,
        JSON + b"\r\n" + HALF,
    )[form]
    answer, word, _, _ = await answered(path, raw, stream=True)
    assert (answer.status, word) == (502, "engine_lost")


@ROUTES
@STREAM_OR_NOT
@pytest.mark.parametrize("status", [201, 204, 301, 399, 600, 999])
async def test_a_status_that_means_nothing_here_is_a_502_that_names_it(path: str, status: int, stream: bool) -> None:
    head = b"HTTP/1.1 %d What\r\ncontent-type: text/event-stream\r\nlocation: /x\r\n\r\n" % status
    answer, word, said, _ = await answered(path, head + TOKEN[path] + DONE[path], stream=stream)
    assert (answer.status, word) == (502, "engine_lost")
    assert said is not None
    assert f"status {status}" in said.message


@ROUTES
@pytest.mark.parametrize("framing", [b"", b"transfer-encoding: chunked\r\n"])
@pytest.mark.parametrize("more", [b"", b"data: [DONE]\n\n", b": bye\n\n"], ids=["", "done", "comment"])
async def test_a_reply_is_whole_with_its_ending_also_when_the_engine_holds_the_line(
    path: str, framing: bytes, more: bytes
) -> None:
    body = OPENING[path] + TOKEN[path] + DONE[path]
    sent = body + more
    raw = EVENTS + framing + b"\r\n" + (b"%x\r\n%s\r\n" % (len(sent), sent) if framing else sent)
    answer, word, _, took_s = await answered(path, raw, stream=True, hold_s=5.0)
    assert (answer.status, answer.body, answer.whole, word) == (200, body, True, "ok")
    assert took_s < 1.0


@ROUTES
async def test_another_forms_ending_is_none(path: str) -> None:
    for other, ending in DONE.items():
        if ending == DONE[path]:
            continue
        raw = EVENTS + b"\r\n" + OPENING[path] + TOKEN[path] + ending
        _, word, said, _ = await answered(path, raw, stream=True)
        assert (word, said is not None) == ("engine_lost", True), other


ERRORS = (
    b'event: error\ndata: {"message":"boom"}\n\n',
    b'data: {"object":"error","message":"boom"}\n\n',
    b'error: {"message":"no"}\n\n',
    b'data: {"error":"boom"}\n\n',
    b'event: error\ndata: {"type":"error","error":{"type":"api_error","message":"boom"}}\n\n',
    b'data: {"type":"error","code":"server_error","message":"boom","param":null}\n\n',
    b'event: error\r\ndata: {"message":"boom"}\r\n\r\n',
)
FAILED = b'event: response.failed\ndata: {"type":"response.failed","response":{"error":{"message":"boom"}}}\n\n'


@pytest.mark.parametrize(
    ("path", "error"), [*((path, error) for path in forms.PATHS for error in ERRORS), (forms.RESPONSES, FAILED)]
)
@pytest.mark.parametrize("first", [True, False], ids=["first", "later"])
async def test_an_error_however_it_is_spelled_is_never_a_clean_end(path: str, error: bytes, first: bool) -> None:
    before = b"" if first else OPENING[path] + TOKEN[path]
    answer, word, said, _ = await answered(path, EVENTS + b"\r\n" + before + error + DONE[path], stream=True)
    assert word == "engine_error"
    assert said is not None
    assert (answer.status == 500) == first
    assert "boom" in said.message or b"data" not in error
    assert first or answer.body.startswith(before)
    assert not re.search(rb"\n:|^:", answer.body)


# Answers that are not whole by the engine's own word


def choices(path: str, reason: Any) -> dict[str, Any]:
    output: dict[str, Any] = {"message": {"role": "assistant", "content": "x"}} if path == CHAT else {"text": "x"}
    return {"choices": [{"index": 0, **output, "finish_reason": reason}], "usage": None}


def response(status: str) -> dict[str, Any]:
    return {"id": "resp_1", "object": "response", "status": status, "output": [], "error": None}


NOT_WHOLE: list[tuple[str, dict[str, Any]]] = [
    *((path, choices(path, reason)) for path in (CHAT, COMPLETIONS) for reason in (None, "abort", "error")),
    (MESSAGES, {"type": "message", "role": "assistant", "content": [], "stop_reason": None}),
    *((RESPONSES, response(status)) for status in ("failed", "cancelled", "in_progress", "queued")),
]


@pytest.mark.parametrize(("path", "reply"), NOT_WHOLE)
async def test_an_answer_in_one_piece_that_was_given_up_is_a_502_to_be_tried_again(
    path: str, reply: dict[str, Any]
) -> None:
    body = json.dumps(reply).encode()
    raw = JSON + b"content-length: %d\r\n\r\n" % len(body) + body
    answer, word, _, _ = await answered(path, raw, stream=False)
    assert (answer.status, word, answer.headers["retry-after"]) == (502, "engine_lost", "10")
    assert "x-should-retry" not in answer.headers


WHOLE_BY_WORD: list[tuple[str, dict[str, Any]]] = [
    *((path, choices(path, reason)) for path in (CHAT, COMPLETIONS) for reason in ("stop", "length", "tool_calls")),
    (MESSAGES, {"type": "message", "role": "assistant", "content": [], "stop_reason": "max_tokens"}),
    *((RESPONSES, response(status)) for status in ("completed", "incomplete")),
]


@pytest.mark.parametrize(("path", "reply"), WHOLE_BY_WORD)
async def test_an_answer_that_says_that_it_is_whole_is(path: str, reply: dict[str, Any]) -> None:
    body = json.dumps(reply).encode()
    answer, word, _, _ = await answered(path, JSON + b"content-length: %d\r\n\r\n" % len(body) + body, stream=False)
    assert (answer.status, word, answer.body) == (200, "ok", body)


def chunk(path: str, reason: Any) -> bytes:
    output: dict[str, Any] = {"delta": {}} if path == CHAT else {"text": ""}
    return b"data: " + json.dumps({"choices": [{"index": 0, **output, "finish_reason": reason}]}).encode() + b"\n\n"


def event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


STREAMS_NOT_WHOLE = [
    *((path, chunk(path, reason) + DONE[path]) for path in (CHAT, COMPLETIONS) for reason in (None, "abort", "error")),
    (MESSAGES, event("message_stop")),
    (MESSAGES, event("message_delta", delta={"stop_reason": None}, usage={"output_tokens": 1}) + event("message_stop")),
    *(
        (RESPONSES, event("response.completed", sequence_number=2, response=response(status)))
        for status in ("failed", "cancelled", "in_progress", "queued")
    ),
    (RESPONSES, event("response.failed", sequence_number=2, response=response("failed"))),
]


@pytest.mark.parametrize(("path", "ending"), STREAMS_NOT_WHOLE)
async def test_a_stream_that_was_given_up_ends_with_an_error_that_is_tried_again(path: str, ending: bytes) -> None:
    before = OPENING[path] + TOKEN[path]
    answer, word, said, _ = await answered(path, EVENTS + b"\r\n" + before + ending, stream=True)
    assert (answer.status, answer.whole) == (200, False)
    assert word in ("engine_lost", "engine_error")
    assert answer.body.startswith(before)
    assert said is not None
    assert said.heals
