"""After many clients that left at any moment nothing is left of them: no ticket, pin, reading, body or open run."""

from __future__ import annotations

import asyncio
import random

import pytest

from gateway.learning.watch import KEPT_BYTES
from tests.gateway.running import SEATS, Running, running
from tests.gateway.wire import ask, connect, post

PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses")
CLIENTS = 150
AT_ONCE = 24
LEAVES = ("in the body", "in line", "in the prefill", "in the reply", "at the end", "at the end, not streamed")
SIZES = (50, 2_000, 60_000, 200_000)


async def come(gateway: Running, rng: random.Random, number: int) -> None:
    """One client: a short prompt or a cold one, new or one that others send too."""
    leaves, path = rng.choice(LEAVES), rng.choice(PATHS)
    text = f"w{rng.randrange(5)} " * (rng.choice(SIZES) // 3) + rng.choice(("", str(number)))
    asked = ask(path, text, max_tokens=rng.choice((5, 50, 400)), stream=not leaves.endswith("not streamed"))
    data = post(asked, path=path, seat=rng.choice(SEATS))
    async with connect(gateway, data[: len(data) // 2] if leaves == "in the body" else data) as wire:
        if leaves.startswith("at the end"):
            await wire.answer()
        elif leaves == "in the reply":
            await wire.head()
            await wire.reader.read(200)
        else:
            await asyncio.sleep(rng.random() * (0.03 if leaves == "in line" else 0.3))
        wire.vanish()


@pytest.mark.anyio
async def test_nothing_is_left_of_clients_that_leave_at_any_moment() -> None:
    rng, turn = random.Random(6), asyncio.Semaphore(AT_ONCE)
    admission = {"queue_max": 100, "queue_per_seat": 100, "queue_cold_per_seat": 0}
    async with running({"cache_tokens": 200_000}, admission=admission) as gateway:

        async def one(number: int) -> None:
            async with turn:
                await come(gateway, rng, number)

        await asyncio.gather(*map(one, range(CLIENTS)))
        await gateway.idle(30)
        core, care = gateway.core, gateway.core.care
        assert {line["word"] for line in gateway.done()} == {"ok", "client_gone"}
        assert (care.running, care._reads._sent_s, care._together._since, care._together._reading) == (
            {},
            {},
            {},
            set(),
        )
        blocks = care.index._blocks
        assert blocks._pinned == {}
        assert blocks.tokens == sum(block.tokens for block in blocks._free.values())
        assert all(block.read and block.pins == 0 for block in blocks._free.values())
        kept = [own for run in care.watch._runs.values() for own in run]
        assert care.watch.held_bytes == sum(KEPT_BYTES + len(own.prompt.data) for own in kept)
        heads = core.prewarm.heads
        assert heads.held_bytes == sum(len(head.body) for head in heads._heads.values())
        assert sum(run.open for run in core.runs._runs.values()) == 0
        assert core.limiter.policy.running == 0
