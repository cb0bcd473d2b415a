"""A whole box whose engine is killed while every client is in the middle of its answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from gateway.agents.settings import Target
from tests.agents.clients import AGENT_CLIENTS, Client, Seat, Task
from tests.agents.processes import Desk, Run, started
from tests.agents.stage import ANSWER, CONTEXT_TOKENS, MODEL
from tests.e2e.box import SEATS, Box, kill9

pytestmark = pytest.mark.anyio

BEFORE_TOKENS = 3
START_S = 60.0
BACK_S = 120.0
"""The engine is back after two seconds; agents that were refused meanwhile come when Retry-After says."""
STALL = {"stall_after": BEFORE_TOKENS, "only_marker": "pear"}
SHAPE = {"reply_text": ANSWER, "ms_per_token": [1.0]}


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[Box]:
    """A daemon with gateway and fake engine, whose answers stop after a few tokens until it is started anew."""
    box = Box(folder, tables={"engine": {"streams": len(SEATS), "grace_s": 0.3}}, knobs={**SHAPE, **STALL})
    try:
        await asyncio.to_thread(box.start().wait_ready)
        yield box
    finally:
        fault = await asyncio.to_thread(box.close)
        assert not fault, fault


async def until_sent(box: Box, tokens: int) -> None:
    """Wait until the engine has sent so many tokens in all."""
    async with asyncio.timeout(START_S):
        while (await asyncio.to_thread(box.stats))["tokens_out"] < tokens:
            await asyncio.sleep(0.1)


async def test_an_engine_that_is_killed_costs_nobody_a_whole_answer(
    several: tuple[Client, ...], tmp_path: Path
) -> None:
    async with served(tmp_path) as box, AsyncExitStack() as stack:
        # given: all of them in the middle of an answer
        runs: dict[Client, Run] = {}
        warm_up = (await asyncio.to_thread(box.stats))["tokens_out"]
        for client, seat in zip(several, SEATS, strict=False):
            desk = Desk.at(tmp_path / "desks" / client.name)
            place = Seat(Target(box.url, MODEL, CONTEXT_TOKENS), box.keys[seat])
            launch = client.launch(desk, place, Task("Where is the pear?"))
            runs[client] = await stack.enter_async_context(started(launch, desk))
        await until_sent(box, warm_up + BEFORE_TOKENS * len(several))
        # when
        box.set_knobs(**SHAPE)
        kill9(box.engine_pid)
        results = {client: await run.result(BACK_S) for client, run in runs.items()}
        # then: agents ask again and have all of it; the others say what happened; nobody has half
        for client, result in results.items():
            assert (result.code == 0) == (client in AGENT_CLIENTS), f"{client}: {result.told()}"
            if result.code == 0:
                assert result.stdout.strip() == ANSWER, f"{client}: {result.told()}"
            else:
                assert "engine" in (result.stdout + result.stderr).lower(), f"{client}: {result.told()}"
        took = ", ".join(f"{client} {result.took_s:.1f} s" for client, result in results.items() if result.code == 0)
        print(f"MEASURED kill -9 of the engine in mid-answer, whole answers after: {took or 'none'}")
