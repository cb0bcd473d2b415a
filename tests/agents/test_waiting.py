"""A box that is full: everybody waits and gets the answer, or is refused and comes back in time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path

import pytest

from tests.agents.clients import AGENT_CLIENTS, Client
from tests.agents.stage import ANSWER, Box, Heard, box

pytestmark = pytest.mark.anyio

STREAMS = 4
WAIT_S = 60.0
WAIT_OF_SDKS_S = 7.0
"""The always-tier waits a shorter time for the same thing."""
HEARTBEAT_S = 5.0
HEARTBEAT_OF_SDKS_S = 0.5
LATE_S = 1.5
"""What a heartbeat may be late by on a machine that starts seven programs."""
START_S = 40.0
RETRY_MIN_S = 10.0
"""Retry-After is 10 s at least."""
RETRY_MAX_S = 75.0
"""Retry-After is 60 s at most."""


async def stays(here: Box, clients: Sequence[Client], seconds: float) -> None:
    """For so long nobody gives up and nobody asks again: the same exchanges are there, each with its 200, and each is
    sent heartbeats in time. Clients of today would forgive a minute of silence; proxies, and those of tomorrow, not."""
    exchanges = {client: here.live(client) for client in clients}
    heard = [(client, Heard(exchange)) for client, found in exchanges.items() for exchange in found]
    began_s = time.monotonic()
    until_s = began_s + seconds
    while time.monotonic() < until_s:
        assert {client: here.live(client) for client in clients} == exchanges
        await asyncio.sleep(0.5)
    assert all(exchange.client.started for found in exchanges.values() for exchange in found)
    assert {client for client, _ in heard} == set(clients)
    beat_s = here.gateway.core.settings.limits.heartbeat_s
    for client, stream in heard:
        beats_s = stream.beats_s
        print(f"MEASURED {client} was sent {len(beats_s)} heartbeats in {seconds:g} s")
        assert len(beats_s) >= seconds / beat_s - 2, f"{client}: {len(beats_s)} heartbeats in {seconds:g} s"
        gaps_s = [later - sooner for sooner, later in pairwise([began_s, *beats_s, time.monotonic()])]
        assert max(gaps_s) < beat_s + LATE_S, f"{client}: {gaps_s}"


async def seen_refused(here: Box, clients: Sequence[Client]) -> dict[Client, float]:
    """When each was refused first, on the monotonic clock; waits for the last of them."""
    seen: dict[Client, float] = {}

    def all_seen() -> bool:
        for client in clients:
            if client not in seen and here.done(client):
                seen[client] = time.monotonic()
        return len(seen) == len(clients)

    await here.gateway.until(all_seen, START_S)
    return seen


async def test_all_wait_for_a_full_box_and_get_the_answer(several: Sequence[Client], tmp_path: Path) -> None:
    agents = set(AGENT_CLIENTS) <= set(several)
    seconds = WAIT_S if agents else WAIT_OF_SDKS_S
    limits = {"heartbeat_s": HEARTBEAT_S if agents else HEARTBEAT_OF_SDKS_S}
    async with box(tmp_path, several, streams=STREAMS, limits=limits) as here, AsyncExitStack() as stack:
        # given: every stream busy, and every client in the queue
        full = await stack.enter_async_context(AsyncExitStack())
        await full.enter_async_context(here.full())
        runs = await stack.enter_async_context(here.runs(several, "Where is the pear?"))
        await here.gateway.until(lambda: all(here.tickets(client) for client in several), START_S)
        await here.gateway.until(lambda: all(x.client.started for c in several for x in here.live(c)), START_S)
        # when: it stays so for a minute
        await stays(here, several, seconds)
        await full.aclose()
        # then: each has its answer from its first request
        for client, run in runs.items():
            result = await run.result()
            assert (result.code, result.stdout.strip()) == (0, ANSWER), f"{client}: {result.told()}"
            waited_s = [line["queue_s"] for line in await here.over(client)]
            assert len(waited_s) == 1
            assert waited_s[0] >= seconds
        assert here.gateway.engine.stats.peak_sequences <= STREAMS


async def test_whoever_is_refused_comes_back_when_told_and_succeeds(several: Sequence[Client], tmp_path: Path) -> None:
    admission = {"queue_max": 0}
    async with box(tmp_path, several, streams=len(several), admission=admission) as here, AsyncExitStack() as stack:
        # given: every stream busy and no queue, so that every client is refused
        full = await stack.enter_async_context(AsyncExitStack())
        await full.enter_async_context(here.full())
        runs = await stack.enter_async_context(here.runs(several, "Where is the pear?"))
        refused_s = await seen_refused(here, several)
        # when: tickets free soon after
        await full.aclose()
        # then: each waits at least as long as Retry-After said, and then has its answer
        for client, run in runs.items():
            result = await run.result(RETRY_MAX_S)
            assert (result.code, result.stdout.strip()) == (0, ANSWER), f"{client}: {result.told()}"
            first, *others = await here.over(client)
            assert [first["status"], *(line["status"] for line in others)] == [429, 200], client
            waited_s = here.arrived_s(others[0]["request_id"]) - refused_s[client]
            print(f"MEASURED {client} came back {waited_s:.1f} s after the 429")
            assert waited_s > RETRY_MIN_S - 0.5
