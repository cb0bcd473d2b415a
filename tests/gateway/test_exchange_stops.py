"""gateway.exchange, whole: a drain that expires, a bug of our own, a client that stops reading, on every route."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway import exchange as exchange_module
from gateway.client import Client
from tests.gateway import forms
from tests.gateway.checks import EARLY, ended, line_of, refused
from tests.gateway.forms import DONE, ROUTES, STREAM_OR_NOT, together
from tests.gateway.running import Running, running
from tests.gateway.wire import ask, call, connect, exchange, post, scripted

pytestmark = pytest.mark.anyio

# The drain is over: core.end_all


STANDING = [
    pytest.param({"reply_tokens": 100_000}, id="decode"),
    pytest.param({"silent_s": 60.0}, id="behind the headers"),
    pytest.param({"silent_s": 60.0, "headers_delay": True}, id="before the headers"),
    pytest.param({"hang": True}, id="before anything"),
    pytest.param({"stall_after": 3}, id="stalled"),
]


@together
@STREAM_OR_NOT
@pytest.mark.parametrize("knobs", STANDING)
async def test_what_runs_when_the_drain_is_over_ends_with_an_honest_error(
    path: str, stream: bool, knobs: dict[str, Any]
) -> None:
    async with running(knobs, limits=EARLY) as gateway, asyncio.TaskGroup() as group:
        asked = group.create_task(call(gateway, path, stream=stream))
        await gateway.until(lambda: gateway.engine.stats.running == 1)
        if stream:
            await gateway.until(lambda: all(live.client.started for live in gateway.core.live))
        gateway.core.drain()
        await asyncio.sleep(0.05)
        assert not asked.done()
        assert not gateway.core.all_done.is_set()
        gateway.core.end_all()
        answer = await asked
        await gateway.idle(1.0)
        await gateway.until(lambda: gateway.engine.stats.aborted == 1)
        if stream:
            await ended(path, answer, gateway, "draining")
        else:
            await refused(path, answer, gateway, 503, "draining")
            assert "x-should-retry" not in answer.headers
        assert (await line_of(gateway, answer))["word"] == "ended"
        assert gateway.core.all_done.is_set()


@together
async def test_all_are_ended_at_once_also_who_waits_with_and_without_a_200(path: str) -> None:
    """A second SIGTERM comes when it likes: also while there is a line."""
    async with running({"reply_tokens": 100_000}, streams=1, limits=EARLY) as gateway, asyncio.TaskGroup() as group:
        first = group.create_task(call(gateway, path, stream=True))
        await gateway.until(lambda: gateway.core.limiter.running == 1)
        waiting = [
            group.create_task(call(gateway, path, seat=seat, stream=stream))
            for seat, stream in (("b", True), ("c", False))
        ]
        await gateway.until(lambda: len(gateway.core.limiter.view().waiting) == 2)
        await gateway.until(lambda: any(live.client.started for live in gateway.core.live if live.step == "queued"))
        gateway.core.drain()
        gateway.core.end_all()
        answer, streamed, other = [await asked for asked in (first, *waiting)]
        await gateway.idle(1.0)
        await ended(path, answer, gateway, "draining")
        await ended(path, streamed, gateway, "draining")
        await refused(path, other, gateway, 503, "draining")
        assert gateway.engine.stats.requests == 1
    assert gateway.core.all_done.is_set()


# What nobody expected


@ROUTES
@STREAM_OR_NOT
async def test_a_failure_of_the_gateway_is_a_500_with_its_id_and_is_logged(
    path: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(exchange_module, "send_to_engine", broken)
    async with running() as gateway:
        answer = await exchange(gateway, post(ask(path, stream=stream), path=path, headers={"X-Request-Id": "mine"}))
        await gateway.idle()
        said = forms.error(path, answer)
        line = await line_of(gateway, answer)
    assert answer.status == 500
    assert said.code == ("internal_error" if path != forms.MESSAGES else None)
    assert answer.headers["x-request-id"] == "mine"
    assert "a bug" not in answer.body.decode()
    [failed] = [line for line in gateway.log if line["event"] == "request.failed"]
    assert failed["request_id"] == "mine"
    assert line["word"] == "failed"


@ROUTES
@pytest.mark.parametrize("knobs", [{"silent_s": 30.0, "headers_delay": True}, {"reply_tokens": 100_000}])
async def test_a_failure_after_the_200_never_becomes_a_clean_end(
    path: str, knobs: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    puts, put = 3, Client.put

    async def breaking(self: Client, data: bytes, more: bool = True) -> None:
        nonlocal puts
        puts -= 1
        if puts == -1:
            raise ZeroDivisionError("a bug")
        await put(self, data, more)

    monkeypatch.setattr(Client, "put", breaking)
    async with running(knobs, limits=EARLY) as gateway:
        answer = await call(gateway, path, stream=True)
        await gateway.idle()
        await gateway.until(lambda: gateway.engine.stats.aborted == 1)
        line = await line_of(gateway, answer)
    assert (answer.status, answer.whole, line["word"]) == (200, False, "failed")
    assert b"The gateway failed on this request" in answer.body
    assert b"a bug" not in answer.body
    for end in (b"[DONE]", forms.ENDINGS[path], b"response.incomplete"):
        assert end not in answer.body
    assert [line["event"] for line in gateway.log].count("request.failed") == 1


# Clients that stop reading


def slow(gateway: Running, path: str) -> Any:
    """A client with a small buffer, which asked for a stream."""
    return connect(gateway, post(ask(path, stream=True), path=path), small=True)


@together
async def test_a_client_that_stops_reading_is_not_an_engine_that_is_silent(path: str) -> None:
    event = b"data: " + b"x" * 65_000 + b"\n\n"

    async def flood(writer: asyncio.StreamWriter, _: bytes) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + forms.OPENING[path])
        while True:
            writer.write(event)
            await writer.drain()

    async with (
        scripted(flood) as url,
        running(engine_url=url, limits={"engine_silence_s": 0.15}) as gateway,
        slow(gateway, path) as client,
    ):
        await client.head()
        client.writer.transport.pause_reading()
        await asyncio.sleep(0.5)
        assert len(gateway.core.live) == 1
        assert gateway.core.limiter.running == 1


@together
@pytest.mark.parametrize("done", [False, True], ids=["half", "whole"])
async def test_a_client_that_stopped_reading_before_the_last_word_is_cut_too(path: str, done: bool) -> None:
    event = b"data: " + b"x" * 900_000 + b"\n\n"

    async def one_big_event(writer: asyncio.StreamWriter, _: bytes) -> None:
        writer.write(b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + forms.OPENING[path])
        writer.write(event + (DONE[path] if done else b""))
        await writer.drain()

    async with (
        scripted(one_big_event) as url,
        running(engine_url=url, limits={"client_stall_s": 0.3}, kernel_stall_s=0) as gateway,
        slow(gateway, path) as client,
    ):
        await client.head()
        client.writer.transport.pause_reading()
        await gateway.until(lambda: gateway.core.limiter.running == 0, 0.25)
        await gateway.idle(3.0)
    assert gateway.done()[0]["word"] == ("ok" if done else "engine_lost")
