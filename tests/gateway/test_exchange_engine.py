"""gateway.exchange in front of engines that answer as they should not: half, empty, another form, no end."""

from __future__ import annotations

import asyncio
import re

import pytest

from tests.gateway import forms
from tests.gateway.checks import line_of
from tests.gateway.forms import CHAT, DONE, OPENING, ROUTES, STREAM_OR_NOT, TOKEN, WHOLE
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
