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
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise

import pytest

from gateway import protocol
from gateway.exchange import Exchange
from tests.gateway import forms
from tests.gateway.forms import PATHS, together
from tests.gateway.running import Running, key_of, running
from tests.gateway.wire import Wire, ask, connect, head, post, scripted

pytestmark = pytest.mark.anyio

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
FLOOD = b"data: " + b"x" * 60_000 + b"\n\n"
GAP_S = 0.005
TOKENS = 120
PACE_KEPT = 1.5


async def answer(writer: asyncio.StreamWriter, body: bytes) -> None:
    """An engine: a paced stream in the form of the path that the request names, a flood for the one that says so,
    or a stream without end."""
    path = next(path for path in PATHS if f"to {path} ".encode() in body)
    writer.write(HEAD + forms.OPENING[path])
    if b"flood" in body:
        while True:
            writer.write(FLOOD)
            await writer.drain()
    tokens = 1_000_000 if b"endless" in body else TOKENS
    due_s = time.monotonic()
    for _ in range(tokens):
        writer.write(forms.TOKEN[path])
        due_s += GAP_S
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))
    writer.write(forms.DONE[path])
    await writer.drain()


def told(path: str, what: str = "x") -> bytes:
    """A request to that engine."""
    return post(ask(path, f"{what} to {path} ", stream=True), path=path)


@asynccontextmanager
async def box(host: str = "127.0.0.1", kernel_stall_s: float | None = None, **limits: float) -> AsyncIterator[Running]:
    async with (
        scripted(answer) as url,
        running(engine_url=url, host=host, streams=8, limits=limits, kernel_stall_s=kernel_stall_s) as gateway,
    ):
        yield gateway


async def median_gap_s(gateway: Running) -> float:
    """Four streams at once, one of each route; the median time between two of their chunks."""

    async def one(seat: str, path: str) -> list[float]:
        request = told(path).replace(key_of("a").encode(), key_of(seat).encode())
        async with connect(gateway, request) as client:
            await client.head()
            times: list[float] = []
            while await client.chunk():
                times.append(time.monotonic())
        assert len(times) >= TOKENS / 2
        assert times[-1] - times[0] < TOKENS * GAP_S * PACE_KEPT, "the whole reply, not only its median"
        return [later - earlier for earlier, later in pairwise(times)]

    gaps = await asyncio.gather(*map(one, "bcde", PATHS))
    return statistics.median(gap for some in gaps for gap in some)


def kept(what: str, gap_s: float) -> None:
    print("MEASURED", what, "median gap ms", round(gap_s * 1000, 2), "of", GAP_S * 1000)
    assert gap_s < GAP_S * PACE_KEPT


@pytest.mark.parametrize("kernel_stall_s", [0, None])
async def test_clients_that_stop_reading_are_cut_on_every_route(kernel_stall_s: float | None) -> None:
    stalled: weakref.WeakSet[Exchange] = weakref.WeakSet()
    async with box(client_stall_s=0.5, kernel_stall_s=kernel_stall_s) as gateway, AsyncExitStack() as stack:
        for path in PATHS:
            slow = await stack.enter_async_context(connect(gateway, told(path, "flood"), small=True))
            await slow.head()
            slow.writer.transport.pause_reading()
            stalled.update(gateway.core.live)
        others = asyncio.create_task(median_gap_s(gateway))
        await gateway.until(lambda: sum(line["seat"] == "a" for line in gateway.done()) == len(PATHS), 3.0)
        assert all(seat != "a" for _, seat, _ in gateway.core.limiter.view().running)
        kept("stalled readers", await others)
        await gateway.idle()
        await gateway.until(lambda: gc.collect() >= 0 and len(stalled) == 0)  # their buffers are not held
    lines = [line for line in gateway.done() if line["seat"] == "a"]
    assert sorted(line["route"] for line in lines) == sorted(PATHS)
    assert {line["word"] for line in lines} == {"client_gone"}
    assert all(0.4 < line["duration_s"] < 2.0 for line in lines)


@together
async def test_a_client_that_reads_slowly_but_reads_is_not_cut(path: str) -> None:
    async with (
        box(client_stall_s=0.4) as gateway,
        connect(gateway, told(path, "flood"), small=True) as slow,
    ):
        await slow.head()
        until_s = time.monotonic() + 1.0
        while time.monotonic() < until_s:
            assert len(await slow.reader.read(60_000)) > 0
            await asyncio.sleep(0.01)
        assert gateway.done() == []


async def test_bodies_that_dribble_in_are_a_408_on_every_route_and_their_bytes_come_back() -> None:
    async with box(body_timeout_s=0.4) as gateway, AsyncExitStack() as stack:
        slow: dict[str, Wire] = {}
        for path in PATHS:
            body = json.dumps(ask(path, "x" * 100_000)).encode()
            request = post(body, path=path)[:-50_000]
            slow[path] = await stack.enter_async_context(connect(gateway, request))
        others = asyncio.create_task(median_gap_s(gateway))
        await gateway.until(lambda: gateway.core.bodies.used_bytes >= 400_000)
        dribbles = [asyncio.create_task(_dribble(client.writer, b"x" * 1000, 0.2)) for client in slow.values()]
        for path, client in slow.items():
            got = await client.answer()
            assert got.status == 408
            assert forms.error(path, got).code in ("body_timeout", None)
            assert got.headers["x-request-id"]
        await gateway.until(lambda: gateway.core.bodies.used_bytes < 100_000)
        kept("dribbled bodies", await others)
        await gateway.idle()
        for dribble in dribbles:
            dribble.cancel()


async def _dribble(writer: asyncio.StreamWriter, data: bytes, every_s: float) -> None:
    for byte in data:
        writer.write(bytes([byte]))
        await asyncio.sleep(every_s)


@together
async def test_a_dribbled_chunked_body_holds_only_what_came(path: str) -> None:
    request = head(path, "a", {"Transfer-Encoding": "chunked"}) + b'5\r\n{"a":\r\n'
    async with box(body_timeout_s=0.2) as gateway, connect(gateway, request) as slow:
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


async def test_clients_that_vanish_without_fin_are_cut_on_every_route(other_host: str) -> None:
    async with box(host=HERE, client_stall_s=1.0) as gateway:
        argv = ["ip", "netns", "exec", other_host, sys.executable, "-c", CLIENT, gateway.host, str(gateway.port)]
        clients = [
            await asyncio.create_subprocess_exec(
                *argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            for _ in PATHS
        ]
        for client, path in zip(clients, PATHS, strict=True):
            assert client.stdin is not None
            client.stdin.write(told(path, "endless"))
            client.stdin.close()
        for client in clients:
            assert client.stdout is not None
            assert await client.stdout.readline() == b"reads\n"
        others = asyncio.create_task(median_gap_s(gateway))
        vanished_s = time.monotonic()
        ip("-n", other_host, "link", "set", f"{other_host}b", "down")
        await gateway.until(lambda: sum(line["seat"] == "a" for line in gateway.done()) == len(PATHS), 6.0)
        print("measured vanished clients cut after s", round(time.monotonic() - vanished_s, 2))
        kept("vanished clients", await others)
        await gateway.idle()
        for client in clients:
            client.kill()
            await client.communicate()
    lines = [line for line in gateway.done() if line["seat"] == "a"]
    assert sorted(line["route"] for line in lines) == sorted(PATHS)
    assert {line["word"] for line in lines} == {"client_gone"}
    assert key_of("a") not in repr(gateway.log)
