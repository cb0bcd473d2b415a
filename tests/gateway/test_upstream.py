"""The engine's client over real sockets, with httpx as the oracle, under both event loops."""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from gateway import upstream
from gateway.meter import chat_usage
from gateway.problem import Problem, engine_lost
from gateway.taps import ChatTap, JsonTap, Tap
from gateway.upstream import BUFFER_HIGH_BYTES, EngineAddress, EngineError, EngineReply, send
from tests.fake_engine.knobs import Knobs
from tests.fake_engine.serving import serving
from tests.gateway.scripted import CHUNKED, CLOSE, HOLD, OK, REPLIES, RESET, scripted

CHAT = "/v1/chat/completions"
BODY = b'{"messages":[{"role":"user","content":"hi"}],"max_tokens":5,"stream":%s}'
HEADERS = {"x-request-id": "r1", "accept": "*/*"}
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": request.param}


def tap_for(_: int, content_type: str) -> Tap:
    return (
        ChatTap(False) if content_type.startswith("text/event-stream") else JsonTap(0, chat_usage)
    )  # whole, whatever it is


class Asked:
    """One request through upstream.send; `ends` counts the calls of on_end."""

    def __init__(self) -> None:
        self.ends = 0

    def ended(self) -> None:
        self.ends += 1

    async def send(self, url: str, body: bytes = BODY % b"false") -> EngineReply:
        return await send(EngineAddress.parse(url), CHAT, HEADERS, body, tap_for, self.ended)


async def all_of(reply: EngineReply) -> tuple[bytes, Problem | None]:
    """Every byte of a reply and what it ended with."""
    parts: list[bytes] = []
    try:
        async with asyncio.timeout(5):
            await reply.wait_headers(None)
            while (data := await reply.read()) is not None:
                parts.append(data)
    except EngineError as error:
        return b"".join(parts), error.problem
    return b"".join(parts), None


async def by_httpx(url: str, body: bytes) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False) as client:
        headers = {"content-type": "application/json", **HEADERS}
        return await client.post(url + CHAT, content=body, headers=headers)


async def until(met: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not met():
            await asyncio.sleep(0.001)


def paused(reply: EngineReply) -> bool:
    return reply._transport is not None and not reply._transport.is_reading()


@pytest.mark.anyio
@pytest.mark.parametrize("by_byte", [False, True], ids=["at once", "byte by byte"])
@pytest.mark.parametrize(("reply", "then"), REPLIES.values(), ids=REPLIES)
async def test_a_reply_is_read_as_httpx_reads_it(reply: bytes, then: str, by_byte: bool) -> None:
    pieces = [bytes([byte]) for byte in reply] if by_byte else [reply]
    async with scripted(pieces, then) as script:
        oracle = await by_httpx(script.url, BODY % b"false")
        asked = Asked()
        ours = await asked.send(script.url)
        body, problem = await all_of(ours)
        assert problem is None
        assert (ours.status, body) == (oracle.status_code, oracle.content)
        for name in ("content-type", "x-note", "content-length", "link"):
            assert ours.headers.get(name) == oracle.headers.get(name)
        assert asked.ends == 1
        theirs, sent = script.requests
        assert sent.partition(b"\r\n\r\n")[2] == theirs.partition(b"\r\n\r\n")[2] == BODY % b"false"
        for line in (b"content-type: application/json", b"x-request-id: r1", b"accept: */*"):
            assert line in theirs.lower()
            assert line in sent.lower()


@pytest.mark.anyio
@pytest.mark.parametrize("stream", [b"true", b"false"])
async def test_the_fake_engine_says_the_same_to_both(stream: bytes) -> None:
    async with serving(Knobs(time_scale=0.001)) as engine:
        oracle = await by_httpx(engine.url, BODY % stream)
        ours = await Asked().send(engine.url, BODY % stream)
        body, problem = await all_of(ours)
        assert problem is None
        assert ours.status == oracle.status_code == 200
        assert ours.headers["content-type"] == oracle.headers["content-type"]
        dated = re.compile(rb'"created":\d+')
        assert dated.sub(b"", body) == dated.sub(b"", oracle.content)
        assert ours.tap is not None
        assert ours.tap.whole


# What cannot be read

LOST: dict[str, tuple[bytes, str, bytes]] = {
    "nothing": (b"", CLOSE, b""),
    "nothing, reset": (b"", RESET, b""),
    "another protocol": (b"SSH-2.0-OpenSSH_9.2\r\n", HOLD, b""),
    "binary": (b"\x15\x03\x01\x00\x02\x02\x50", HOLD, b""),
    "a switch of protocols": (b"HTTP/1.1 101 Go\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n", HOLD, b""),
    "a broken chunk": (CHUNKED + b"5\r\nhello\r\nzz\r\n", HOLD, b"hello"),
    "cut in the headers": (OK, CLOSE, b""),
    "cut in the headers, reset": (OK, RESET, b""),
    "cut in the body": (OK + b"content-length: 9\r\n\r\nhello", CLOSE, b"hello"),
    "cut in a chunk": (CHUNKED + b"9\r\nhello", CLOSE, b"hello"),
    "cut between chunks": (CHUNKED + b"5\r\nhello\r\n", CLOSE, b"hello"),
    "cut in a stream": (STREAM + b"9\r\ndata: 1\n\n\r\n", CLOSE, b"data: 1\n\n"),
    "cut in an event": (STREAM + b"d\r\ndata: 1\n\ndata\r\n", CLOSE, b"data: 1\n\n"),
    "a stream without an ending": (STREAM + b"9\r\ndata: 1\n\n\r\n0\r\n\r\n", HOLD, b"data: 1\n\n"),
    "a stream that ends in an event": (STREAM + b"d\r\ndata: 1\n\ndata\r\n0\r\n\r\n", HOLD, b"data: 1\n\n"),
}


@pytest.mark.anyio
@pytest.mark.parametrize(("reply", "then", "read"), LOST.values(), ids=LOST)
async def test_a_lost_reply_gives_what_came_and_then_an_error(reply: bytes, then: str, read: bytes) -> None:
    async with scripted([reply], then) as script:
        asked = Asked()
        ours = await asked.send(script.url)
        body, problem = await all_of(ours)
        assert problem is not None
        begun = reply not in (b"", OK)  # else nothing of an answer was there
        assert (body, problem.status, problem.code) == (read, 502 if begun else 503, "engine_lost")
        assert asked.ends == 1
        if then == HOLD:
            await asyncio.wait_for(script.gone.wait(), 1)


@pytest.mark.anyio
async def test_a_reset_in_the_body_is_an_error_too() -> None:
    async with scripted([CHUNKED + b"5\r\nhello\r\n"], RESET) as script:
        asked = Asked()
        body, problem = await all_of(await asked.send(script.url))
        assert problem is not None
        assert body in (b"", b"hello")  # the kernel may drop what was not read yet
        assert asked.ends == 1


@pytest.mark.anyio
async def test_an_engine_that_takes_no_connection_is_unreachable() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening
        asked = Asked()
        with pytest.raises(EngineError) as caught:
            await asked.send(f"http://127.0.0.1:{taken.getsockname()[1]}")
    assert (caught.value.problem.status, caught.value.problem.retry_after_s) == (503, 10)
    assert asked.ends == 0


@pytest.mark.anyio
async def test_a_silent_engine_is_waited_for_until_somebody_gives_up() -> None:
    async with scripted([], HOLD) as script:
        asked = Asked()
        reply = await asked.send(script.url)
        assert await reply.wait_headers(0.01) is False
        assert (reply.ended, asked.ends) == (False, 0)
        reply.fail(engine_lost("no byte for 240 s"))
        reply.fail(engine_lost("again"))
        assert (reply.ended, asked.ends) == (True, 1)
        with pytest.raises(EngineError, match="240 s"):
            await reply.wait_headers(None)
        await asyncio.wait_for(script.gone.wait(), 1)
    assert asked.ends == 1


@pytest.mark.anyio
async def test_a_stream_that_falls_silent_gives_nothing_and_then_the_error() -> None:
    async with scripted([STREAM + b"9\r\ndata: 1\n\n\r\n"], HOLD) as script:
        reply = await Asked().send(script.url)
        assert await reply.wait_headers(5)
        assert await reply.read(5) == b"data: 1\n\n"
        assert await reply.read(0.01) == b""
        waiting = asyncio.create_task(all_of(reply))
        await asyncio.sleep(0)
        reply.fail(engine_lost("gone"))
        body, problem = await waiting
        assert body == b""
        assert problem is not None
        assert "gone" in problem.message


# Closing, and slow readers


@pytest.mark.anyio
@pytest.mark.parametrize("knobs", [{"hang": True}, {"stall_after": 2}, {"prefill_tok_per_s": 0.001}], ids=str)
async def test_the_engine_sees_an_abort_at_once(knobs: dict[str, Any]) -> None:
    async with serving(Knobs(**knobs)) as engine:
        stats = engine.engine.stats
        asked = Asked()
        reply = await asked.send(engine.url, BODY % b"true")
        await until(lambda: stats.running == 1 and stats.tokens_out >= knobs.get("stall_after", 0))
        left_s = time.monotonic()
        reply.abort()
        reply.abort()
        await until(lambda: bool(stats.last_aborts))
        assert stats.last_aborts[0]["at_s"] - left_s < 0.05
        assert asked.ends == 1
        assert reply.ended


@pytest.mark.anyio
async def test_a_reader_that_is_slow_holds_the_engine_back_and_loses_nothing() -> None:
    size = 5 * BUFFER_HIGH_BYTES
    piece = bytes(range(256)) * 4096
    pieces = [OK + b"content-length: %d\r\n\r\n" % size] + [piece] * (size // len(piece))
    async with scripted(pieces, HOLD) as script:
        asked = Asked()
        reply = await asked.send(script.url)
        await until(lambda: paused(reply))
        assert BUFFER_HIGH_BYTES < reply._buffered < BUFFER_HIGH_BYTES + 2 * 1024 * 1024
        await asyncio.sleep(0.02)
        assert reply._buffered < BUFFER_HIGH_BYTES + 2 * 1024 * 1024
        assert asked.ends == 0
        first = await reply.read()
        assert first is not None
        assert not paused(reply)
        rest, problem = await all_of(reply)
        assert problem is None
        assert first + rest == piece * (size // len(piece))
        assert asked.ends == 1


@pytest.mark.anyio
async def test_a_paused_reply_can_fail_and_still_gives_what_it_holds() -> None:
    size = 5 * BUFFER_HIGH_BYTES
    async with scripted([OK + b"content-length: %d\r\n\r\n" % size, b"x" * size], HOLD) as script:
        reply = await Asked().send(script.url)
        await until(lambda: paused(reply))
        reply.fail(engine_lost("too slow"))
        body, problem = await all_of(reply)
        assert len(body) > BUFFER_HIGH_BYTES
        assert problem is not None


@pytest.mark.anyio
async def test_a_reader_hears_of_the_end_whatever_goes_wrong_in_what_is_done_then() -> None:
    def broken() -> None:
        raise ArithmeticError

    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    async with scripted([STREAM], HOLD) as script:
        reply = await send(EngineAddress.parse(script.url), CHAT, HEADERS, BODY % b"true", tap_for, broken)
        assert await reply.wait_headers(5)
        reading = asyncio.create_task(reply.read())
        await asyncio.sleep(0)
        with pytest.raises(ArithmeticError):
            reply.fail(engine_lost("it was too slow"))
        with pytest.raises(EngineError, match="too slow"):
            await asyncio.wait_for(reading, 5)
        reply.abort()


# The address


@pytest.mark.anyio
async def test_the_path_of_the_address_comes_first() -> None:
    async with scripted([OK + b"content-length: 2\r\n\r\nok"]) as script:
        await all_of(await Asked().send(script.url + "/team/"))
        assert script.requests[0].startswith(b"POST /team/v1/chat/completions HTTP/1.1\r\n")
        assert f"\r\nhost: 127.0.0.1:{script.port}\r\n".encode() in script.requests[0]


@pytest.mark.anyio
async def test_an_ipv6_engine_is_named_in_brackets() -> None:
    async with scripted([OK + b"content-length: 2\r\n\r\nok"], host="::1") as script:
        await all_of(await Asked().send(f"http://[::1]:{script.port}"))
        assert f"\r\nhost: [::1]:{script.port}\r\n".encode() in script.requests[0]


def test_the_system_certificates_are_read_once() -> None:
    assert upstream._tls() is upstream._tls()


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://h", EngineAddress("h", 80, False, "")),
        ("http://h:8000/", EngineAddress("h", 8000, False, "")),
        ("https://h", EngineAddress("h", 443, True, "")),
        ("https://h:8443/a/b/", EngineAddress("h", 8443, True, "/a/b")),
        ("http://[::1]:1", EngineAddress("::1", 1, False, "")),
        ("unix:/run/e/sock", EngineAddress("engine", 80, False, "", "/run/e/sock")),
    ],
)
def test_addresses(url: str, address: EngineAddress) -> None:
    assert EngineAddress.parse(url) == address


@pytest.mark.parametrize("url", ["", "h:8000", "ftp://h", "http://", "unix:x", "http://h:99999"])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(ValueError, match=r"not an http URL|out of range"):
        EngineAddress.parse(url)
