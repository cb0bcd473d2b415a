"""Clients that stall, dribble or vanish: they are cut, all they held comes back, and the others keep their pace."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import statistics
import subprocess
import sys
import time
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest

from gateway import protocol
from tests.gateway.running import Running, key_of, running
from tests.gateway.wire import Wire, chat, connect, head, post, scripted

pytestmark = pytest.mark.anyio

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":" abc"},"finish_reason":null}]}\n\n'
FLOOD = b"data: " + b"x" * 60_000 + b"\n\n"
GAP_S = 0.005
TOKENS = 200
PACE_KEPT = 1.5


async def answer(writer: asyncio.StreamWriter, body: bytes) -> None:
    """An engine: a paced stream, a flood for the request that says so, or a stream without end."""
    writer.write(HEAD)
    if b"flood" in body:
        while True:
            writer.write(FLOOD)
            await writer.drain()
    tokens = 1_000_000 if b"endless" in body else TOKENS
    due_s = time.monotonic()
    for _ in range(tokens):
        writer.write(TOKEN)
        due_s += GAP_S
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))
    writer.write(b"data: [DONE]\n\n")
    await writer.drain()


@asynccontextmanager
async def box(host: str = "127.0.0.1", kernel_stall_s: float | None = None, **limits: float) -> AsyncIterator[Running]:
    async with (
        scripted(answer) as url,
        running(engine_url=url, host=host, streams=5, limits=limits, kernel_stall_s=kernel_stall_s) as gateway,
    ):
        yield gateway


async def median_gap_s(gateway: Running) -> float:
    """Four streams at once; the median time between two of their chunks."""

    async def one(seat: str) -> list[float]:
        async with connect(gateway, post(chat(stream=True), seat=seat)) as client:
            await client.head()
            times: list[float] = []
            while await client.chunk():
                times.append(time.monotonic())
        assert len(times) >= TOKENS / 2
        assert times[-1] - times[0] < TOKENS * GAP_S * PACE_KEPT, "the whole reply, not only its median"
        return [later - earlier for earlier, later in pairwise(times)]

    gaps = await asyncio.gather(*(one(seat) for seat in "bcde"))
    return statistics.median(gap for some in gaps for gap in some)


def kept(what: str, gap_s: float) -> None:
    print("MEASURED", what, "median gap ms", round(gap_s * 1000, 2), "of", GAP_S * 1000)
    assert gap_s < GAP_S * PACE_KEPT


@pytest.mark.parametrize("kernel_stall_s", [0, None])
async def test_a_client_that_stops_reading_is_cut(kernel_stall_s: float | None) -> None:
    async with (
        box(client_stall_s=0.8, kernel_stall_s=kernel_stall_s) as gateway,
        connect(gateway, post(chat("flood", stream=True)), small=True) as slow,
    ):
        await slow.head()
        slow.writer.transport.pause_reading()
        [stalled] = map(weakref.ref, gateway.core.live)
        others = asyncio.create_task(median_gap_s(gateway))
        await gateway.until(lambda: any(line["seat"] == "a" for line in gateway.done()), 3.0)
        assert all(seat != "a" for _, seat, _ in gateway.core.limiter.view().running)
        kept("stalled reader", await others)
        await gateway.idle()
        gc.collect()
        assert stalled() is None, "its buffers are still held"
    line = next(line for line in gateway.done() if line["seat"] == "a")
    assert line["word"] == "client_gone"
    assert 0.7 < line["duration_s"] < 2.5


async def test_a_client_that_reads_slowly_but_reads_is_not_cut() -> None:
    async with (
        box(client_stall_s=0.4) as gateway,
        connect(gateway, post(chat("flood", stream=True)), small=True) as slow,
    ):
        await slow.head()
        until_s = time.monotonic() + 1.2
        while time.monotonic() < until_s:
            assert len(await slow.reader.read(60_000)) > 0
            await asyncio.sleep(0.01)
        assert gateway.done() == []


async def test_a_body_that_dribbles_in_is_a_408_and_its_bytes_come_back() -> None:
    body = json.dumps(chat("x" * 100_000)).encode()
    async with box(body_timeout_s=0.7) as gateway, connect(gateway, post(body)[:-50_000]) as slow:
        others = asyncio.create_task(median_gap_s(gateway))
        await gateway.until(lambda: gateway.core.bodies.used_bytes >= len(body))
        dribble = asyncio.create_task(_dribble(slow.writer, b"x" * 1000, 0.2))
        got = await slow.answer()
        assert (got.status, got.error()["code"]) == (408, "body_timeout")
        assert got.headers["x-request-id"]
        await gateway.until(lambda: gateway.core.bodies.used_bytes < len(body))
        kept("dribbled body", await others)
        await gateway.idle()
        dribble.cancel()


async def _dribble(writer: asyncio.StreamWriter, data: bytes, every_s: float) -> None:
    for byte in data:
        writer.write(bytes([byte]))
        await asyncio.sleep(every_s)


async def test_a_dribbled_chunked_body_holds_only_what_came() -> None:
    request = head("/v1/chat/completions", "a", {"Transfer-Encoding": "chunked"}) + b'5\r\n{"a":\r\n'
    async with box(body_timeout_s=0.4) as gateway, connect(gateway, request) as slow:
        await gateway.until(lambda: gateway.core.bodies.used_bytes == 5)
        got = await slow.answer()
        assert got.status == 408
        await gateway.idle()


@pytest.mark.parametrize("first", [b"", b"POST /v1/chat/completions HTTP/1.1\r\nA: ", b"\r\n\r\n"])
async def test_a_head_that_does_not_come_ends_the_connection(first: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_TIMEOUT_S", 0.3)
    async with box() as gateway, connect(gateway, first) as slow:
        more = b"" if not first else b"x" * 100 if b"A" in first else b"GET /x HTTP/1.1\r\nA: " + b"b" * 99
        await _is_cut(slow, more, answered=bool(first))


async def test_a_second_head_that_does_not_come_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_TIMEOUT_S", 0.3)
    async with box() as gateway, connect(gateway, b"GET /health HTTP/1.1\r\n\r\n") as slow:
        assert (await slow.answer()).status == 200
        await asyncio.sleep(0.4)
        await slow.send(b"GET /")
        await _is_cut(slow, b"x" * 100, answered=True)


async def _is_cut(slow: Wire, data: bytes, answered: bool) -> None:
    since_s = time.monotonic()
    dribble = asyncio.create_task(_dribble(slow.writer, data, 0.05))
    said = b""
    with contextlib.suppress(ConnectionError):
        said = await slow.reader.read()
    assert said.startswith(b"HTTP/1.1 408 ") if answered else not said
    assert 0.2 < time.monotonic() - since_s < 1.5
    dribble.cancel()


# A client that vanishes without FIN


CLIENT = """
import socket, sys
client = socket.create_connection((sys.argv[1], int(sys.argv[2])))
client.sendall(sys.stdin.buffer.read())
client.recv(100)
print("reads", flush=True)
while client.recv(10_000): pass
"""
HERE, THERE = "198.18.77.1", "198.18.77.2"


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@pytest.fixture
def other_host() -> Iterator[str]:
    """A network namespace that stands for a host at the end of a cable; yields its name."""
    name = f"moe{os.getpid()}"
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    try:
        ip("netns", "add", name)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"network namespaces are not permitted here: {getattr(error, 'stderr', error)}")
    try:
        try:
            ip("link", "add", f"{name}a", "type", "veth", "peer", "name", f"{name}b", "netns", name)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no veth pair can be made here: {error.stderr}")
        ip("address", "add", f"{HERE}/30", "dev", f"{name}a")
        ip("link", "set", f"{name}a", "up")
        ip("-n", name, "address", "add", f"{THERE}/30", "dev", f"{name}b")
        ip("-n", name, "link", "set", f"{name}b", "up")
        yield name
    finally:
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        subprocess.run(["ip", "link", "del", f"{name}a"], check=False, capture_output=True)


async def test_a_client_that_vanishes_without_fin_is_cut(other_host: str) -> None:
    async with box(host=HERE, client_stall_s=1.0) as gateway:
        argv = ["ip", "netns", "exec", other_host, sys.executable, "-c", CLIENT, gateway.host, str(gateway.port)]
        client = await asyncio.create_subprocess_exec(
            *argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert client.stdin is not None
        assert client.stdout is not None
        client.stdin.write(post(chat("endless", stream=True)))
        client.stdin.close()
        assert await client.stdout.readline() == b"reads\n"
        others = asyncio.create_task(median_gap_s(gateway))
        vanished_s = time.monotonic()
        ip("-n", other_host, "link", "set", f"{other_host}b", "down")
        await gateway.until(lambda: any(line["seat"] == "a" for line in gateway.done()), 6.0)
        print("measured vanished client cut after s", round(time.monotonic() - vanished_s, 2))
        kept("vanished client", await others)
        await gateway.idle()
        client.kill()
        await client.communicate()
    line = next(line for line in gateway.done() if line["seat"] == "a")
    assert line["word"] == "client_gone"
    assert key_of("a") not in repr(gateway.log)
