"""gateway.exchange in front of engines that answer as they should not: half, empty, another form, no end."""

from __future__ import annotations

import asyncio

import pytest

from tests.gateway.running import running
from tests.gateway.wire import Answer, chat, exchange, post, scripted

pytestmark = pytest.mark.anyio

STREAM_OR_NOT = pytest.mark.parametrize("stream", [True, False])
OK = b"HTTP/1.1 200 OK\r\n"
JSON = OK + b"content-type: application/json\r\n"
EVENTS = OK + b"content-type: text/event-stream\r\n"
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
WHOLE = b'{"choices":[],"usage":null}'


async def answered(raw: bytes, *, stream: bool, hold_s: float = 0.0) -> tuple[Answer, str, float]:
    """What a client gets of an engine that sends `raw`, holds the connection and closes; the word of the log line;
    how long the ticket was out."""

    async def say(writer: asyncio.StreamWriter, _: bytes) -> None:
        writer.write(raw)
        await writer.drain()
        await asyncio.sleep(hold_s)

    async with scripted(say) as url, running(engine_url=url) as gateway:
        since_s = asyncio.get_running_loop().time()
        answer = await exchange(gateway, post(chat(stream=stream)))
        await gateway.idle()
        return answer, gateway.done()[0]["word"], asyncio.get_running_loop().time() - since_s


HALF = WHOLE[:10]


@pytest.mark.parametrize(
    "raw",
    [
        JSON + b"\r\n" + HALF,
        JSON + b"\r\n",
        JSON + b"content-length: 0\r\n\r\n",
        JSON + b"content-length: 10\r\n\r\n" + HALF,
        JSON + b"transfer-encoding: chunked\r\n\r\na\r\n" + HALF + b"\r\n0\r\n\r\n",
        JSON + b"content-length: 4\r\n\r\nnull",
        EVENTS + b"\r\n" + TOKEN + DONE,
    ],
)
async def test_half_an_answer_in_one_piece_is_a_502(raw: bytes) -> None:
    answer, word, _ = await answered(raw, stream=False)
    assert (answer.status, answer.error()["code"], word) == (502, "engine_lost", "engine_lost")
    assert answer.headers["retry-after"] == "10"


@pytest.mark.parametrize("status", [400, 500])
async def test_an_error_of_the_engine_is_passed_on_however_it_looks(status: int) -> None:
    answer, word, _ = await answered(b"HTTP/1.1 %d No\r\ncontent-length: 2\r\n\r\nno" % status, stream=False)
    assert (answer.status, answer.body, word) == (status, b"no", "engine_error")


@pytest.mark.parametrize("kind", [b"Text/Event-Stream", b"TEXT/EVENT-STREAM ; charset=utf-8", b"text/event-stream;x"])
async def test_a_media_type_is_compared_without_case(kind: bytes) -> None:
    raw = OK + b"Content-Type: " + kind + b"\r\n\r\n" + TOKEN + DONE
    answer, word, _ = await answered(raw, stream=True)
    assert (answer.status, answer.body, answer.whole, word) == (200, TOKEN + DONE, True, "ok")
    assert answer.headers["x-accel-buffering"] == "no", "it was relayed as a stream"


@pytest.mark.parametrize(
    "raw",
    [
        OK + b"\r\n" + TOKEN + DONE,
        OK + b"content-type: text/event-streams\r\n\r\n" + TOKEN + DONE,
        JSON + b"content-length: %d\r\n\r\n" % len(WHOLE) + WHOLE,
        JSON + b"\r\n" + HALF,
    ],
)
async def test_what_is_no_stream_is_none_for_a_client_that_asked_for_one(raw: bytes) -> None:
    answer, word, _ = await answered(raw, stream=True)
    assert (answer.status, answer.error()["code"], word) == (502, "engine_lost", "engine_lost")


@STREAM_OR_NOT
@pytest.mark.parametrize("status", [201, 204, 206, 301, 304, 399, 600, 999])
async def test_a_status_that_means_nothing_here_is_a_502_that_names_it(status: int, stream: bool) -> None:
    raw = b"HTTP/1.1 %d What\r\ncontent-type: text/event-stream\r\nlocation: /x\r\n\r\n" % status + TOKEN + DONE
    answer, word, _ = await answered(raw, stream=stream)
    assert (answer.status, answer.error()["code"], word) == (502, "engine_lost", "engine_lost")
    assert f"status {status}" in answer.error()["message"]


@pytest.mark.parametrize("framing", [b"", b"transfer-encoding: chunked\r\n"])
async def test_a_reply_is_whole_with_its_done_also_when_the_engine_holds_the_line(framing: bytes) -> None:
    body = TOKEN + DONE
    raw = EVENTS + framing + b"\r\n" + (b"%x\r\n%s\r\n" % (len(body), body) if framing else body)
    answer, word, took_s = await answered(raw, stream=True, hold_s=5.0)
    assert (answer.status, answer.body, answer.whole, word) == (200, body, True, "ok")
    assert took_s < 1.0


@pytest.mark.parametrize(
    "error",
    [
        b'event: error\ndata: {"message":"no"}\n\n',
        b'data: {"object":"error","message":"no"}\n\n',
        b'error: {"message":"no"}\n\n',
    ],
)
async def test_an_error_however_it_is_spelled_is_never_a_clean_end(error: bytes) -> None:
    answer, word, _ = await answered(EVENTS + b"\r\n" + TOKEN + error + DONE, stream=True)
    assert (answer.body, answer.whole, word) == (TOKEN + error, False, "engine_error")
