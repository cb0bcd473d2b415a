"""A client that is killed: its ticket is free at once, whatever it waits for."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from tests.agents.clients import Client
from tests.agents.stage import Box, box

pytestmark = pytest.mark.anyio

FREE_S = 0.5
START_S = 40.0
SLOW = {
    "reply_text": "",
    "reply_tokens": 1000,
    "time_scale": 1.0,
    "prefill_tok_per_s": 1e9,
    "ms_per_token": (50.0,) * 9,
}
"""An engine that decodes for fifty seconds."""


@asynccontextmanager
async def nothing() -> AsyncIterator[None]:
    yield


STAGES: dict[str, tuple[dict[str, object], bool, Callable[[Box, Client], bool]]] = {
    "queued": ({}, True, lambda here, client: here.tickets(client) > 0),
    "prefill": ({"silent_s": 60.0, "only_marker": "pear"}, False, lambda here, client: here.asked(client) > 0),
    "decode": (SLOW, False, lambda here, client: here.tokens(client) > 2),
}
"""What the engine does, whether the box is full, and how a client shows that it is there."""


@pytest.mark.parametrize("stage", STAGES)
async def test_the_ticket_of_a_killed_client_is_free(several: Sequence[Client], stage: str, tmp_path: Path) -> None:
    knobs, is_full, there = STAGES[stage]
    async with box(tmp_path, several, knobs, streams=len(several)) as here, AsyncExitStack() as stack:
        # given: every client waits, for its turn or for the engine
        await stack.enter_async_context(here.full() if is_full else nothing())
        runs = await stack.enter_async_context(here.runs(several, "Where is the pear?"))
        await here.gateway.until(lambda: all(there(here, client) for client in several), START_S)
        for client, run in runs.items():
            assert here.tickets(client) == 1
            # when
            killed_s = run.kill()
            # then
            await here.gateway.until(lambda client=client: not here.tickets(client), 5)  # type: ignore[misc]
            free_s = time.monotonic() - killed_s
            print(f"MEASURED {client} killed in {stage}: ticket free after {free_s * 1000:.0f} ms")
            assert free_s < FREE_S
            assert [line["word"] for line in await here.over(client)] == ["client_gone"]
