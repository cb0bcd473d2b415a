"""An engine that only computes for another box: when it is well, and what ends it."""

from __future__ import annotations

import asyncio

import pytest

from appliance.engine.part import Part
from gateway.state import Cause

pytestmark = pytest.mark.anyio
GONE = Cause(id="engine.nodes_left", title="t", remedy="r")


class Seen:
    """What was told, in order; `head`: set = what it helps has gone."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.head = asyncio.Event()
        self.asked = asyncio.Event()
        self.well = asyncio.Event()
        self.spawned = asyncio.Event()
        self.part = Part(self._gone, self.spawned, ok=self._ok, lost=lambda cause: self.told.append(cause.id))

    async def _gone(self) -> Cause:
        self.asked.set()
        await self.head.wait()
        return GONE

    def _ok(self) -> None:
        self.told.append("ok")
        self.well.set()


async def test_it_is_well_once_it_joined_and_lost_once_what_it_helps_has_gone() -> None:
    seen = Seen()
    running = asyncio.create_task(seen.part.run())
    seen.spawned.set()
    await seen.asked.wait()
    assert not seen.part.healthy.is_set()
    seen.part.joined.set()
    await seen.well.wait()
    assert seen.part.healthy.is_set()
    seen.head.set()
    await running
    assert seen.told == ["ok", GONE.id]


async def test_what_it_helps_may_go_before_it_joined() -> None:
    seen = Seen()
    running = asyncio.create_task(seen.part.run())
    seen.spawned.set()
    await seen.asked.wait()
    seen.head.set()
    await running
    assert seen.told == [GONE.id]


async def test_nobody_is_asked_before_there_is_a_process() -> None:
    seen = Seen()
    running = asyncio.create_task(seen.part.run())
    seen.head.set()
    await asyncio.sleep(0)
    assert not seen.asked.is_set()
    seen.spawned.set()
    await running
    assert seen.told == [GONE.id]
