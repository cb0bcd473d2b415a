"""A client that goes away: noticed at every step, the engine's connection closed and the ticket free at once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import struct
import time
from collections.abc import Callable

import pytest

from gateway.counting import PLACES
from tests.gateway.forms import PATHS, ROUTES, STREAM_OR_NOT
from tests.gateway.running import ABILITIES, SEATS, Running, running, times_left
from tests.gateway.wire import Wire, ask, call, chat, connect, exchange, head, post

pytestmark = pytest.mark.anyio

WANTED_S = 0.05
ALLOWED_S = 0.05
"""What the assertion allows on a loaded box; the figure itself is recorded."""

Gone = Callable[[Wire], None]


def close(client: Wire) -> None:
    client.vanish()


def reset(client: Wire) -> None:
    sock = client.writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.vanish()


def half_close(client: Wire) -> None:
    client.writer.write_eof()


def big(text: str, **fields: bool) -> bytes:
    """A body that is parsed in its turn."""
    return json.dumps(chat(padding=text * 3_000_000, **fields)).encode()


HOW = pytest.mark.parametrize("how", [close, reset, half_close])


@pytest.fixture
def left_at(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When places were left, monotonic seconds."""
    return times_left(monkeypatch)


async def measured(gateway: Running, client: Wire, how: Gone, left_at: list[float], *, upstream: bool) -> None:
    """Let the client go away and check how long everything takes."""
    aborted = gateway.engine.stats.aborted
    gone_s = time.monotonic()
    how(client)
    await gateway.until(lambda: len(left_at) > 0, 2.0)
    figures = {"ticket_ms": left_at[0] - gone_s}
    if upstream:
        await gateway.until(lambda: gateway.engine.stats.aborted == aborted + 1, 2.0)
        figures["engine_ms"] = gateway.engine.stats.last_aborts[-1]["at_s"] - gone_s
    print("MEASURED", {name: round(seconds * 1000, 2) for name, seconds in figures.items()})
    assert max(figures.values()) < ALLOWED_S
    await gateway.until(lambda: len(gateway.done()) == 1)
    assert gateway.done()[0]["word"] == "client_gone"


@ROUTES
@HOW
@STREAM_OR_NOT
async def test_in_the_queue(path: str, how: Gone, stream: bool, left_at: list[float]) -> None:
    async with running({"silent_s": 30.0}, streams=1) as gateway, connect(gateway, post(chat(), seat="b")):
        await gateway.until(lambda: gateway.engine.stats.running == 1)
        async with connect(gateway, post(ask(path, stream=stream), path=path)) as client:
            await gateway.until(lambda: len(gateway.core.limiter.view().waiting) == 1)
            await measured(gateway, client, how, left_at, upstream=False)
        assert gateway.core.limiter.view().waiting == ()
        assert gateway.engine.stats.requests == 1


PREFILLS = pytest.mark.parametrize(
    ("stream", "early"),
    [(False, {}), (True, {"headers_delay": True}), (True, {"early_events": False}), (True, {})],
    ids=["whole", "nothing sent", "headers sent", "events sent"],
)


@ROUTES
@HOW
@PREFILLS
async def test_in_a_silent_prefill(
    path: str, how: Gone, stream: bool, early: dict[str, bool], left_at: list[float]
) -> None:
    async with (
        running({"silent_s": 30.0} | early) as gateway,
        connect(gateway, post(ask(path, stream=stream), path=path)) as client,
    ):
        await gateway.until(lambda: gateway.engine.stats.running == 1)
        await measured(gateway, client, how, left_at, upstream=True)


@ROUTES
@HOW
async def test_in_decode(path: str, how: Gone, left_at: list[float]) -> None:
    knobs = {"reply_tokens": 200_000, "time_scale": 1.0}
    async with running(knobs) as gateway, connect(gateway, post(ask(path, stream=True), path=path)) as client:
        await client.head()
        for _ in range(7):
            await client.chunk()
        await measured(gateway, client, how, left_at, upstream=True)
        assert gateway.done()[0]["completion_tokens"] >= 3


@ROUTES
async def test_in_the_decode_of_a_reply_in_one_piece(path: str, left_at: list[float]) -> None:
    knobs = {"reply_tokens": 200_000, "time_scale": 1.0}
    async with running(knobs) as gateway, connect(gateway, post(ask(path), path=path)) as client:
        await gateway.until(lambda: gateway.engine.stats.tokens_out > 0)
        await measured(gateway, client, close, left_at, upstream=True)


@ROUTES
@HOW
async def test_while_it_is_counted(path: str, how: Gone) -> None:
    """It has no place in line yet, and nothing of it may stay: not its bytes, not the engine's counting."""
    body = post(ask(path, "word " * 1200), path=path)
    counting = counters()
    async with running({"hang_counts": True}, context_tokens=1000) as gateway, connect(gateway, body) as client:
        await gateway.until(lambda: sum(gateway.engine.stats.paths[name] for name in counting) == 1)
        gone_s = time.monotonic()
        how(client)
        await gateway.until(lambda: not gateway.core.live, 2.0)
        assert time.monotonic() - gone_s < ALLOWED_S
        await gateway.idle()
        assert gateway.core.counting._checks._value == PLACES
        await gateway.until(lambda: len(gateway.done()) == 1)
        assert gateway.done()[0]["word"] == "client_gone"
        assert gateway.engine.stats.requests == 0


def counters() -> set[str]:
    return set(ABILITIES.counters.values())


@ROUTES
async def test_while_it_does_not_read(path: str, left_at: list[float]) -> None:
    knobs = {"reply_tokens": 250_000, "tokens_per_chunk": 400, "time_scale": 0.0005}
    request = post(ask(path, stream=True), path=path)
    async with running(knobs) as gateway, connect(gateway, request, small=True) as client:
        await client.head()
        client.writer.transport.pause_reading()
        await gateway.until(lambda: any(live.client.sending for live in gateway.core.live))
        await measured(gateway, client, reset, left_at, upstream=True)


@ROUTES
@HOW
async def test_while_its_body_is_being_read(path: str, how: Gone) -> None:
    body = json.dumps(ask(path, "x" * 200_000)).encode()
    request = post(body, path=path)[: -len(body) // 2]
    async with running() as gateway, connect(gateway, request) as client:
        await gateway.until(lambda: gateway.core.bodies.used_bytes == len(body))
        gone_s = time.monotonic()
        how(client)
        await gateway.until(lambda: not gateway.core.live, 2.0)
        assert time.monotonic() - gone_s < ALLOWED_S
        await gateway.idle()
        assert gateway.engine.stats.requests == 0
        assert gateway.done()[0]["word"] == "client_gone"


@ROUTES
async def test_the_ticket_of_one_that_leaves_goes_to_the_next_in_line(path: str) -> None:
    async with running({"silent_s": 0.1}, streams=1) as gateway:
        async with connect(gateway, post(ask(path), path=path)) as first:
            await gateway.until(lambda: gateway.engine.stats.running == 1)
            second = asyncio.create_task(call(gateway, path, seat="b"))
            await gateway.until(lambda: len(gateway.core.limiter.view().waiting) == 1)
            first.vanish()
            await gateway.until(lambda: gateway.engine.stats.requests == 2, 0.2)
        assert (await second).status == 200


async def test_200_cancels_at_any_point_leave_nothing_behind() -> None:
    dice = random.Random(20_26)
    knobs = {"silent_s": 0.004, "reply_tokens": 20, "time_scale": 0.02}
    limits = {"queue_max": 100, "queue_per_seat": 100, "queue_cold_per_seat": 0}
    async with running(knobs, admission=limits) as gateway:
        engine = gateway.engine
        tasks: list[asyncio.Task[None]] = []
        async with asyncio.TaskGroup() as group:
            for number in range(200):
                tasks.append(group.create_task(_one_that_leaves(gateway, random.Random(dice.random()))))
                if number % 8 == 7:
                    await asyncio.sleep(0.025)
        await gateway.idle()
        await gateway.until(lambda: engine.stats.running == 0, 2.0)
        words = {word: sum(n for (_, w), n in gateway.core.outcomes.items() if w == word) for word in _WORDS}
        print("words", words)
        assert len(tasks) == 200
        assert engine.stats.peak_sequences <= 8  # an engine learns of those that left as their successors arrive
        assert set(gateway.core.outcomes) <= {(seat, word) for seat in SEATS for word in _WORDS}
        assert words["client_gone"] >= 50
        assert words["ok"] >= 10
        assert not [line for line in gateway.log if line["event"] != "request.done" and "loaded" not in line["event"]]
        assert (await exchange(gateway, post(chat()))).status == 200


_WORDS = ("ok", "client_gone")


async def _one_that_leaves(gateway: Running, dice: random.Random) -> None:
    path = dice.choice(PATHS)
    seat = dice.choice(SEATS)
    body = json.dumps(ask(path, "x" * dice.choice([10, 90_000]), stream=dice.random() < 0.7)).encode()
    request = head(path, seat, {"Content-Length": str(len(body))}) + body
    half, stays = dice.random() < 0.15, dice.random() < 0.15
    if half:
        request = request[: dice.randrange(len(request))]
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        async with connect(gateway) as client:
            client.writer.write(request)
            if stays and not half:  # on a slow machine all others may leave too early for an answer
                await client.answer()
                return
            await asyncio.sleep(dice.random() * 0.08)
            dice.choice([close, reset, half_close])(client)
            if dice.random() < 0.3:
                await asyncio.sleep(0.02)


@HOW
async def test_who_leaves_before_the_turn_of_a_large_body_holds_nothing(how: Gone) -> None:
    async with running() as gateway, connect(gateway, post(big("x"))) as client:
        async with gateway.core.large_bodies.turn("b"):
            await gateway.until(lambda: bool(gateway.core.bodies.used_bytes) and len(gateway.core.live) == 1)
            await gateway.until(lambda: next(iter(gateway.core.live)).outcome.body_bytes > 0)
            how(client)
            await gateway.until(lambda: not gateway.core.live, 0.5)
            assert gateway.core.bodies.used_bytes == 0
        assert gateway.done()[0]["word"] == "client_gone"
        assert gateway.engine.stats.requests == 0
        assert (await exchange(gateway, post(big("y")))).status == 200


async def test_large_bodies_are_all_served_and_held_by_nothing_while_they_stream() -> None:
    async with running({"silent_s": 0.6}, context_tokens=None) as gateway, asyncio.TaskGroup() as group:
        tasks = [group.create_task(exchange(gateway, post(big(text, stream=True), seat=text))) for text in "abc"]
        await gateway.until(lambda: gateway.engine.stats.running == 3)
        await gateway.until(lambda: gateway.core.bodies.used_bytes == 0, 0.2)
        assert all(not live._raw and live.prepared and not live.prepared.body for live in gateway.core.live)
    assert [task.result().status for task in tasks] == [200] * 3
