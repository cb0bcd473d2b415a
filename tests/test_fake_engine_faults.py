"""The fake engine fails as its knobs say: one reply, all replies, the whole process."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fake_engine.asking import CHAT, FAST, chat, events, served
from tests.fake_engine.knobs import Knobs, merged
from tests.fake_engine.process import fake_engine, is_grandchild
from tests.fake_engine.serving import Served

# Faults of one reply


@pytest.mark.anyio
async def test_error_truncation_and_rejection() -> None:
    async with served(error_in_stream=3, tokens_per_chunk=2) as (engine, client):
        chunks = events((await client.post(CHAT, json=chat(stream=True))).content)
        assert [len(c["choices"][0]["delta"]["content"] or "") // 4 for c in chunks[:-1]] == [0, 2, 1]
        assert chunks[-1]["error"]["code"] == 500
        assert (await client.post(CHAT, json=chat())).status_code == 500
        engine.engine.apply(merged(Knobs(time_scale=FAST), {"truncate_after": 2}))
        chunks = events((await client.post(CHAT, json=chat(stream=True))).content)
        assert [c["choices"][0]["finish_reason"] for c in chunks] == [None] * 3
        engine.engine.apply(merged(Knobs(time_scale=FAST), {"reject_status": 429, "only_marker": "bad"}))
        assert (await client.post(CHAT, json=chat("bad"))).status_code == 429
        assert (await client.post(CHAT, json=chat("good"))).status_code == 200
        outcomes = [record.outcome for record in engine.engine.stats.log]
        assert outcomes == ["error", "error", "truncated", "rejected", "completed"]
        assert engine.engine.stats.running == engine.engine.stats.sequences == 0


@pytest.mark.anyio
@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("stream", [False, True])
async def test_cut_closes_the_connection_in_the_middle_of_the_body(reset: bool, stream: bool) -> None:
    async with served(cut_after=2, cut_rst=reset) as (engine, client):
        with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
            await client.post(CHAT, json=chat(stream=stream))
        assert engine.engine.stats.log[0].outcome == "cut"


@asynccontextmanager
async def raw(engine: Served, **ask: Any) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, port = engine.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps(chat(**ask)).encode()
    writer.write(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
    try:
        yield reader, writer
    finally:
        writer.close()
        await writer.wait_closed()


async def until(met: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not met():
            await asyncio.sleep(0.001)


async def until_aborted(engine: Served) -> None:
    await until(lambda: engine.engine.stats.aborted == 1 and engine.engine.stats.running == 0)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("knobs", "ask"),
    [
        ({"time_scale": 1.0}, {"stream": True, "max_tokens": 10_000}),
        ({"prefill_tok_per_s": 0.001}, {"stream": True}),
        ({"stall_after": 0}, {"stream": True}),
        ({"silent_s": 1000.0}, {"stream": True}),
        ({"hang": True}, {"stream": True}),
        ({"hang": True}, {"stream": False}),
    ],
    ids=["decode", "prefill", "stall", "silent", "hang", "hang-whole"],
)
async def test_a_client_that_leaves_is_noticed_at_once(knobs: dict[str, Any], ask: dict[str, Any]) -> None:
    async with served(**knobs) as (engine, client):
        async with raw(engine, **ask) as (reader, _):
            if knobs.get("hang"):
                await until(lambda: engine.engine.stats.running == 1)
            else:
                assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            assert (await client.get("/health")).status_code == 200
            left_s = time.monotonic()
        await until_aborted(engine)
        (abort,) = engine.engine.stats.last_aborts
        assert abort["at_s"] - left_s < 0.05
        assert engine.engine.scheduler.decoding == engine.engine.stats.sequences == 0


@pytest.mark.anyio
async def test_headers_come_at_once_or_with_the_first_token() -> None:
    for delayed in (False, True):
        async with served(headers_delay=delayed, prefill_tok_per_s=0.001) as (engine, client):
            async with raw(engine, stream=True) as (reader, _):
                waiting = asyncio.create_task(reader.readline())
                await until(lambda: engine.engine.stats.running == 1)
                await client.get("/health")
                assert waiting.done() is not delayed
                waiting.cancel()
            await until_aborted(engine)


@pytest.mark.anyio
async def test_death_in_process_closes_every_socket() -> None:
    async with served(die_after_tokens=3) as (_, client):
        with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
            await client.post(CHAT, json=chat(stream=True))
        with pytest.raises(httpx.ConnectError):
            await client.get("/health")


@pytest.mark.anyio
async def test_who_is_being_accepted_when_the_engine_dies_is_cut_too() -> None:
    """The kernel has taken the connection, the loop has not told the protocol of it yet."""
    made: list[Callable[[], asyncio.Protocol]] = []
    loop = asyncio.get_running_loop()
    create = loop.create_server

    async def spied(factory: Callable[[], asyncio.Protocol], **more: Any) -> asyncio.Server:
        made.append(factory)
        return await create(factory, **more)

    loop.create_server = spied  # type: ignore[method-assign, assignment]
    async with served(die_in_request_s=0) as (_, client):
        with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
            await client.post(CHAT, json=chat(stream=True))
        here, there = socket.socketpair()
        with here, there:
            here.setblocking(False)
            there.setblocking(False)
            await loop.connect_accepted_socket(made[0], here)
            assert await asyncio.wait_for(loop.sock_recv(there, 1), 1) == b""


@pytest.mark.anyio
async def test_a_death_in_a_request_waits_for_the_request_and_lets_its_headers_out() -> None:
    async with served(die_in_request_s=0.05, silent_s=9.0) as (_, client):
        await asyncio.sleep(0.1)
        assert (await client.get("/health")).status_code == 200
        async with client.stream("POST", CHAT, json=chat(stream=True)) as reply:
            assert reply.status_code == 200
            with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
                await reply.aread()


@pytest.mark.anyio
async def test_decode_keeps_its_deadlines_in_real_time() -> None:
    async with served(time_scale=0.1, prefill_tok_per_s=1e9) as (engine, client):
        await client.post(CHAT, json=chat(max_tokens=301))
        record = engine.engine.stats.log[0]
        assert record.ended_s is not None
        assert record.first_token_s is not None
        assert record.ended_s - record.first_token_s == pytest.approx(300 * 0.00079, rel=0.1)


# The process


def test_process_loads_serves_and_ends_with_all_grandchildren(tmp_path: Path) -> None:
    key_file = tmp_path / "key"
    key_file.write_text("secret\n")
    knobs = {"grandchildren": 1, "grandchildren_setsid": True, "never_ready": True}
    with fake_engine(key_file=key_file, wait=False, **knobs) as engine:
        assert engine.request("GET", "/health")[0] == 503
        engine.set(never_ready=False)
        engine.wait_ready()
        assert engine.request("POST", CHAT, chat(max_tokens=1))[0] == 200
        assert engine.stats()["completed"] == 1
        assert abs(engine.stats()["now_s"] - time.monotonic()) < 1
        assert "init: loading model" in engine.log()
        engine.process.terminate()
        assert engine.process.wait() == 0
        assert all(is_grandchild(pid) for pid in engine.grandchildren)
    give_up_at = time.monotonic() + 2
    while any(is_grandchild(pid) for pid in engine.grandchildren):
        assert time.monotonic() < give_up_at


def test_process_can_ignore_sigterm_then_die_with_exit_code_0() -> None:
    with fake_engine(ignore_sigterm=True) as engine:
        engine.process.send_signal(signal.SIGTERM)
        while "SIGTERM ignored" not in engine.log():
            assert engine.request("GET", "/health")[0] == 200
        engine.set(exit_code=0, last_words="CUDA error: out of memory", die_after_s=0)
        assert engine.process.wait(5) == 0
        assert "CUDA error: out of memory" in engine.log()


def test_process_dies_by_signal_on_a_marker() -> None:
    with fake_engine(die_on_marker="boom", exit_signal=signal.SIGSEGV) as engine:
        assert engine.request("POST", CHAT, chat(max_tokens=1))[0] == 200
        with pytest.raises(OSError, match=r"closed|reset"):
            engine.request("POST", CHAT, chat("boom"))
        assert engine.process.wait(5) == -signal.SIGSEGV


def test_process_fails_while_loading() -> None:
    with fake_engine(fail_load="tensor is not within the file bounds", exit_code=7) as engine:
        assert engine.process.wait(5) == 7
        assert engine.log().splitlines()[-1].endswith("tensor is not within the file bounds")


def test_process_refuses_connections_before_it_binds() -> None:
    with fake_engine(wait=False, bind_delay_s=60) as engine:
        with pytest.raises(ConnectionRefusedError):
            engine.request("GET", "/health")
        port = int(engine.url.rsplit(":", 1)[1])
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
