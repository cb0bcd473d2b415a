"""gateway.protocol on the wire: heads that are too long, too late, in pieces, or none at all."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest

from gateway import protocol
from tests.gateway.running import running
from tests.gateway.wire import connect

pytestmark = pytest.mark.anyio

HEALTH = b"GET /health HTTP/1.1\r\nHost: box\r\n\r\n"


@pytest.mark.parametrize("before", [b"", b"\r\n", b"\r\n\r\n", b"\r\n" * 9])
@pytest.mark.parametrize("piece", [1000, 10**6])
async def test_a_head_above_64_kib_is_a_431(before: bytes, piece: int) -> None:
    data = before + b"POST /v1/chat/completions HTTP/1.1\r\n" + b"X-A: " + b"a" * 200_000
    async with running() as gateway, connect(gateway) as client:
        since_s = time.monotonic()
        with contextlib.suppress(ConnectionError):
            for start in range(0, len(data), piece):
                await client.send(data[start : start + piece])
                await asyncio.sleep(0)
        status, headers = await client.head()
        assert (status, headers["x-should-retry"], headers["connection"]) == (431, "false", "close")
        assert await client.closed()
        assert time.monotonic() - since_s < 2.0
        assert gateway.core.live == set()


async def test_a_head_may_come_byte_by_byte_and_after_an_empty_line() -> None:
    async with running() as gateway, connect(gateway) as client:
        for byte in b"\r\n" + HEALTH:
            await client.send(bytes([byte]))
            await asyncio.sleep(0)
        assert (await client.answer()).status == 200
        await client.send(HEALTH)
        assert (await client.answer()).status == 200


NOT_HTTP = [
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 300, "http, not https"),
    (b"\r\n\x16\x03\x01", "http, not https"),
    (b"\x00\x00\x00", "not an HTTP request"),
    (b"{}", "not an HTTP request"),
    (b"GET /health HTTP/1.1\nHost: box\n\n", "CR LF"),
    (b"POST /v1/chat/completions HTTP/1.1\nContent-Length: 5\n\nhello", "CR LF"),
]


@pytest.mark.parametrize(("data", "says"), NOT_HTTP)
@pytest.mark.parametrize("pieces", [False, True])
async def test_what_will_never_be_a_head_is_answered_at_once(data: bytes, says: str, pieces: bool) -> None:
    async with running() as gateway, connect(gateway) as client:
        since_s = time.monotonic()
        for start in range(0, len(data), 1 if pieces else len(data)):
            await client.send(data[start : start + (1 if pieces else len(data))])
            await asyncio.sleep(0)
        answer = await client.answer()
        assert (answer.status, answer.headers["connection"]) == (400, "close")
        assert says in answer.body.decode()
        assert await client.closed()
        assert time.monotonic() - since_s < 1.0


async def test_a_head_that_comes_too_late_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_TIMEOUT_S", 0.2)
    async with running() as gateway, connect(gateway, b"GET /health HTTP/1.1\r\nHost: b") as client:
        answer = await client.answer()
        assert (answer.status, answer.headers["connection"]) == (408, "close")
        assert "x-should-retry" not in answer.headers
        await client.send(b"ox\r\n\r\n")
        assert await client.closed(1.0)


async def test_a_chunked_body_behind_an_early_answer_is_not_parsed() -> None:
    """A byte a chunk, without a key: it must not cost the others anything, and the 401 must arrive."""
    request = b"POST /v1/chat/completions HTTP/1.1\r\nHost: box\r\nTransfer-Encoding: chunked\r\n\r\n"
    loop = asyncio.get_running_loop()
    async with running() as gateway, connect(gateway, request) as client:
        assert (await client.answer()).status == 401
        longest_s = 0.0
        for _ in range(20):
            began_s = loop.time()
            client.writer.write(b"1\r\na\r\n" * 50_000)
            await asyncio.sleep(0.005)
            longest_s = max(longest_s, loop.time() - began_s)
        assert longest_s < 0.25
        assert await client.closed()
