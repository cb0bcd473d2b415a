"""gateway.protocol on the wire: what strangers send before, beside and after a request."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import time
import tracemalloc

import pytest

from gateway import protocol
from gateway.exchange import Exchange
from tests.gateway.running import running
from tests.gateway.wire import CHAT, Answer, Wire, chat, connect, exchange, head, post

pytestmark = pytest.mark.anyio

MIB = 1024 * 1024
BIG = 70 * MIB
HEALTH = b"GET /health HTTP/1.1\r\nHost: box\r\n\r\n"


async def pour(client: Wire, size: int, piece: int = MIB) -> None:
    """Send `size` bytes until done or told to stop."""
    with contextlib.suppress(ConnectionError):
        for start in range(0, size, piece):
            await client.send(b"x" * min(piece, size - start))


async def pour_chunked(client: Wire, size: int) -> None:
    with contextlib.suppress(ConnectionError):
        for _ in range(size // MIB):
            await client.send(b"%x\r\n" % MIB + b"x" * MIB + b"\r\n")
        await client.send(b"0\r\n\r\n")


# Requests


@pytest.mark.parametrize("name", ["Upgrade", "upgrade", "UPGRADE"])
@pytest.mark.parametrize("value", ["h2c", "websocket"])
async def test_an_upgrade_does_not_hide_the_body(name: str, value: str) -> None:
    async with running({"echo_body": 1}) as gateway:
        request = post(chat(), headers={name: value, "Connection": "Upgrade", "HTTP2-Settings": "AA"})
        assert (await exchange(gateway, request)).status == 200
        assert json.loads(base64.b64decode(gateway.engine.stats.echoes[-1]["body_b64"])) == chat()


@pytest.mark.parametrize(
    "request_line",
    [b"CONNECT box:443 HTTP/1.1", b"OPTIONS * HTTP/1.1", b"GET http://box HTTP/1.1", b"PRI * HTTP/2.0", b"GET /a"],
)
async def test_odd_request_lines_are_refused(request_line: bytes) -> None:
    async with running() as gateway:
        answer = await exchange(gateway, request_line + b"\r\nHost: box\r\n\r\n")
        assert answer.status in (400, 404)
        assert (await exchange(gateway, HEALTH)).status == 200


CHUNKED_BODY = b"5\r\nhello\r\n0\r\n\r\n"
SMUGGLED = [
    b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKED_BODY,
    b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n" + CHUNKED_BODY,
    b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
    b"Content-Length: +5\r\n\r\nhello",
    b"Content-Length: 5, 5\r\n\r\nhello",
    b"Content-Length : 5\r\n\r\nhello",
    b"Transfer-Encoding: chunked, identity\r\n\r\n" + CHUNKED_BODY,
    b"Transfer-Encoding: xchunked\r\n\r\n" + CHUNKED_BODY,
    b"Transfer-Encoding: chunked\r\n\r\n5;\x00\r\nhello\r\n0\r\n\r\n",
    b"Transfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n0\r\n\r\n",
    b"Transfer-Encoding: chunked\r\n\r\n5\nhello\n0\n\n",
    b"Content-Length: 5\nX-A: b\r\n\r\nhello",
    b"X-A: b\r\n Transfer-Encoding: chunked\r\nContent-Length: 99999999999999999999\r\n\r\n",
    b"X-A: \x00b\r\nContent-Length: 5\r\n\r\nhello",
]


@pytest.mark.parametrize("rest", SMUGGLED)
async def test_ambiguous_lengths_are_a_400_and_the_end_of_the_connection(rest: bytes) -> None:
    start = head(CHAT, "a").removesuffix(b"\r\n")
    async with running() as gateway, connect(gateway, start + rest) as client:
        status, headers = await client.head()
        assert (status, headers["connection"]) == (400, "close")
        await client.rest(headers)
        assert await client.closed()
        await gateway.idle()
        assert gateway.engine.stats.requests == 0


# Bodies


async def test_a_chunked_body_is_read_whole() -> None:
    body = json.dumps(chat("x" * 5000)).encode()
    pieces = [body[i : i + 700] for i in range(0, len(body), 700)]
    raw = b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in pieces) + b"0\r\n\r\n"
    async with running({"echo_body": 1}) as gateway, connect(gateway) as client:
        await client.send(head(CHAT, "a", {"Transfer-Encoding": "chunked"}))
        for start in range(0, len(raw), 997):
            await client.send(raw[start : start + 997])
            await asyncio.sleep(0)
        assert (await client.answer()).status == 200
        assert base64.b64decode(gateway.engine.stats.echoes[-1]["body_b64"]) == body
        await gateway.idle()


async def test_a_client_that_expects_a_100_gets_it_and_then_its_answer() -> None:
    body = json.dumps(chat()).encode()
    async with running() as gateway, connect(gateway) as client:
        await client.send(head(CHAT, "a", {"Content-Length": str(len(body)), "Expect": "100-continue"}))
        assert (await client.head())[0] == 100
        await client.send(body)
        assert (await client.answer()).status == 200


@pytest.mark.parametrize(("seat", "size", "status"), [(None, 100, 401), ("a", BIG, 413)])
async def test_a_client_that_expects_a_100_is_refused_without_one(seat: str | None, size: int, status: int) -> None:
    headers = {"Content-Length": str(size), "Expect": "100-continue"}
    async with running() as gateway, connect(gateway, head(CHAT, seat, headers)) as client:
        assert (await client.answer()).status == status


async def test_http_1_0_is_answered_and_closed() -> None:
    async with running() as gateway, connect(gateway, post(chat(), version="1.0")) as client:
        answer = await client.answer()
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert await client.closed()


@pytest.mark.parametrize("headers", [{}, {"Connection": "keep-alive"}, {"Expect": "100-continue"}])
async def test_an_http_1_0_stream_has_no_chunks(headers: dict[str, str]) -> None:
    request = post(chat(stream=True), version="1.0", headers=headers)
    async with running() as gateway:
        chunked = await exchange(gateway, post(chat(stream=True)))
        async with connect(gateway, request) as client:
            status, got = await client.head()
            assert (status, got["connection"], "transfer-encoding" in got) == (200, "close", False)
            body = await client.reader.read()
        await gateway.idle()
    assert body.startswith(b"data: {")
    assert body.endswith(b"\n\ndata: [DONE]\n\n")
    assert body.count(b"\n") == chunked.body.count(b"\n")


async def test_an_http_1_0_stream_that_fails_ends_with_its_error() -> None:
    async with running({"cut_after": 5}) as gateway, connect(gateway, post(chat(stream=True), version="1.0")) as client:
        await client.head()
        body = await client.reader.read()
    last = body.split(b"\n\n")[-2]
    assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "engine_lost"


async def test_a_body_in_chunks_of_one_byte_passes() -> None:
    body = json.dumps(chat(padding="x" * MIB)).encode()
    raw = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\nx-late: 1\r\n\r\n"
    async with running({"echo_body": 1}) as gateway, connect(gateway) as client:
        await client.send(head(CHAT, "a", {"Transfer-Encoding": "chunked"}))
        await client.send(raw)
        assert (await client.answer()).status == 200
        assert base64.b64decode(gateway.engine.stats.echoes[-1]["body_b64"]) == body


ENDLESS = {
    "trailers": (b"2\r\n{}\r\n0\r\n", b"x-late: aaaaaaaaaaaaaaaaaaaaaa\r\n"),
    "one trailer": (b"0\r\nx-late: ", b"a" * 32),
    "the name of a trailer": (b"0\r\n", b"a" * 32),
    "chunk extension": (b"2;a=", b"a" * 32),
    "leading zeros": (b"", b"0" * 32),
}


@pytest.mark.parametrize("seat", ["a", None])
@pytest.mark.parametrize("kind", ENDLESS)
async def test_bytes_of_a_body_that_bring_no_body_are_bounded(kind: str, seat: str | None) -> None:
    first, more = ENDLESS[kind]
    request = head(CHAT, seat, {"Transfer-Encoding": "chunked"})
    async with running() as gateway, connect(gateway, request + first) as client:
        sent = 0
        tracemalloc.start()
        with contextlib.suppress(ConnectionError):
            while sent < 50 * MIB:
                await client.send(more * 2048)
                sent += len(more) * 2048
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        if seat is not None:  # without one it was answered, and what comes is dropped unread
            assert sent < 8 * MIB
        assert peak < 4 * MIB
        await gateway.idle()
        assert gateway.engine.stats.requests == 0


async def test_trailers_are_not_headers_of_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    close_books = Exchange._close_books
    monkeypatch.setattr(Exchange, "_close_books", lambda self: (seen.append(self.scope), close_books(self))[1])
    body = json.dumps(chat()).encode()
    raw = b"%x\r\n%s\r\n0\r\nx-late: 1\r\nauthorization: Bearer other\r\n\r\n" % (len(body), body)
    async with running() as gateway:
        request = head(CHAT, "a", {"Transfer-Encoding": "chunked", "X-Early": "1"})
        assert (await exchange(gateway, request + raw)).status == 200
    names = [name for name, _ in seen[0]["headers"]]
    assert b"x-early" in names
    assert b"x-late" not in names
    assert names.count(b"authorization") == 1


@pytest.mark.parametrize("seat", [None, "nobody"])
async def test_a_401_does_not_wait_for_the_body_and_the_connection_goes_on_behind_it(seat: str | None) -> None:
    async with running() as gateway, connect(gateway, head(CHAT, seat, {"Content-Length": str(BIG)})) as client:
        answer = await client.answer()
        assert (answer.status, answer.headers["x-should-retry"]) == (401, "false")
        assert gateway.core.bodies.used_bytes == 0
        await pour(client, BIG)
        await client.send(post(chat()))
        assert (await client.answer()).status == 200
        await gateway.idle()


@pytest.mark.parametrize("end", [True, False])
@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_a_client_that_wants_the_connection_closed_may_finish_its_body_first(version: str, end: bool) -> None:
    """As nginx does: closing with bytes unread would reset the connection and could lose the answer."""
    request = head(CHAT, None, {"Content-Length": str(BIG), "Connection": "close"}, version=version)
    async with running() as gateway, connect(gateway, request) as client:
        for _ in range(30):
            await client.send(b"x" * MIB)
        if end:
            for _ in range(40):
                await client.send(b"x" * MIB)
        answer = await client.answer()
        assert (answer.status, answer.headers["connection"]) == (401, "close")
        assert not end or await client.closed()


async def test_nothing_is_served_behind_a_request_that_closes_the_connection() -> None:
    first = head(CHAT, None, {"Content-Length": "1000", "Connection": "close"})
    async with running() as gateway, connect(gateway, first) as client:
        assert (await client.answer()).status == 401
        await client.send(b"x" * 1000 + post(chat()))
        assert await client.closed()
        assert gateway.core.live == set()
        assert len(gateway.done()) == 1


@pytest.mark.parametrize("cut", [0, 1, 30, 150])
async def test_a_request_right_behind_a_discarded_body_is_served(cut: int) -> None:
    first = head(CHAT, None, {"Content-Length": "1000"})
    second = post(chat("x" * 200))
    async with running() as gateway, connect(gateway, first) as client:
        assert (await client.answer()).status == 401
        tail = b"x" * 1000 + second
        await client.send(tail[: len(tail) - cut])
        await asyncio.sleep(0.02)
        await client.send(tail[len(tail) - cut :])
        assert (await client.answer()).status == 200
        await client.send(HEALTH)
        assert (await client.answer()).status == 200


async def test_a_declared_body_above_the_limit_is_a_413_before_it_is_read() -> None:
    async with running() as gateway, connect(gateway, head(CHAT, "a", {"Content-Length": str(BIG)})) as client:
        answer = await client.answer()
        assert (answer.status, answer.error()["code"]) == (413, "body_too_large")
        await gateway.idle()
        await pour(client, BIG)
        await client.send(HEALTH)
        assert (await client.answer()).status == 200


async def test_a_chunked_body_above_the_limit_is_a_413_and_the_rest_is_thrown_away() -> None:
    async with running() as gateway, connect(gateway, head(CHAT, "a", {"Transfer-Encoding": "chunked"})) as client:
        pouring = asyncio.create_task(pour_chunked(client, BIG))
        answer = await client.answer()
        assert (answer.status, answer.error()["code"]) == (413, "body_too_large")
        assert await client.closed(), "its end is not looked for"
        await pouring
        await gateway.idle()
        assert gateway.engine.stats.requests == 0


async def test_what_is_thrown_away_is_bounded_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "DISCARD_TIMEOUT_S", 0.3)
    async with running() as gateway, connect(gateway, head(CHAT, None, {"Content-Length": str(BIG)})) as client:
        assert (await client.answer()).status == 401
        since_s = time.monotonic()
        with contextlib.suppress(ConnectionError):
            while time.monotonic() - since_s < 3.0:
                await client.send(b"x")
                await asyncio.sleep(0.01)
        assert 0.2 < time.monotonic() - since_s < 2.0


# Pipelining


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("later", [True, False])
@pytest.mark.parametrize("second", [post(chat("second")), HEALTH, b"GET /he", b"x" * 300_000])
async def test_a_pipelined_request_is_not_read_and_the_connection_closed(
    stream: bool, later: bool, second: bytes
) -> None:
    first = post(chat("first", stream=stream))
    async with running({"silent_s": 0.05}) as gateway, connect(gateway) as client:
        if later or second.startswith(b"x"):
            await client.send(first)
            await gateway.until(lambda: gateway.core.limiter.running == 1)
            await client.send(second)
        else:
            await client.send(first + second)
        answer = await client.answer()
        assert (answer.status, answer.whole) == (200, True)
        assert await client.closed()
        await gateway.idle()
        assert gateway.engine.stats.requests == 1


@pytest.mark.parametrize("second", [post(chat("second")), b"x" * 300_000])
async def test_a_client_that_pipelines_and_leaves_is_noticed(second: bytes) -> None:
    async with running({"silent_s": 30.0}) as gateway, connect(gateway, post(chat())) as client:
        await gateway.until(lambda: gateway.core.limiter.running == 1)
        await client.send(second)
        await asyncio.sleep(0.05)
        client.vanish()
        await gateway.until(lambda: gateway.core.limiter.running == 0, 0.25)
        await gateway.until(lambda: gateway.engine.stats.aborted == 1)


async def test_requests_one_after_the_other_share_a_connection() -> None:
    async with running() as gateway, connect(gateway) as client:
        answers: list[Answer] = []
        for number in range(3):
            await client.send(post(chat(stream=number % 2 == 0)))
            answers.append(await client.answer())
        assert all((answer.status, answer.whole) == (200, True) for answer in answers)
        await gateway.idle()
