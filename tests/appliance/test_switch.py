"""The change from one pair to another: what ends the wait for streams, and when it has begun. In virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from appliance.engine.switch import LOOK_S, Switch
from gateway.state import Pair
from tests.appliance.test_in_use import in_use
from tests.virtual_time import START_S, run

NEW = Pair(plan_file="/plans/new.json")
OTHER = Pair(plan_file="/plans/other.json")
DRAIN_S = 600.0


@dataclass(slots=True)
class Box:
    """A supervisor as far as a switch knows one. `asked_s`: when restarts were asked for, since the wish."""

    state_dir: Path
    ready: bool = True
    streams: int = 1
    asked_s: list[float] = field(default_factory=list)
    shown: list[Pair | None] = field(default_factory=list)
    switch: Switch = field(init=False)

    def __post_init__(self) -> None:
        self.switch = Switch(in_use(self.state_dir), lambda: self.ready, lambda: "", self._changed, self._restart)

    def _changed(self) -> None:
        self.shown.append(self.switch.wanted)

    def _restart(self) -> None:
        self.asked_s.append(asyncio.get_running_loop().time() - START_S)

    def begin(self, group: asyncio.TaskGroup, pair: Pair = NEW) -> None:
        self.switch.begin(group, pair, prove=False, drained=lambda: not self.streams, drain_s=DRAIN_S)


def played(play: Callable[[asyncio.TaskGroup], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            await play(group)

    run(main())


def drained(box: Box) -> None:
    box.streams = 0


def lost(box: Box) -> None:
    box.ready = False


def hastened(box: Box) -> None:
    assert box.switch.hasten() == NEW


@pytest.mark.parametrize(("end", "after_s"), [(drained, 100.0), (lost, 100.0), (hastened, 100.0), (None, DRAIN_S)])
def test_what_ends_the_wait_asks_for_one_restart_with_the_new_pair(
    tmp_path: Path, end: Callable[[Box], None] | None, after_s: float
) -> None:
    box = Box(tmp_path)

    async def play(group: asyncio.TaskGroup) -> None:
        box.begin(group)
        await asyncio.sleep(100.0)
        assert (box.asked_s, box.switch.in_use.pairs.trial) == ([], None)
        if end is not None:
            end(box)
        await asyncio.sleep(DRAIN_S)

    played(play)
    (asked_s,) = box.asked_s
    assert after_s <= asked_s <= after_s + LOOK_S
    assert box.switch.in_use.pairs.trial == NEW


def test_the_pair_is_wanted_until_its_restart_has_begun_however_long_that_takes(tmp_path: Path) -> None:
    box = Box(tmp_path, streams=0)

    async def play(group: asyncio.TaskGroup) -> None:
        box.begin(group)
        await asyncio.sleep(3600.0)
        assert (len(box.asked_s), box.switch.wanted) == (1, NEW)
        assert box.switch.hasten() == NEW, "it is on its way"
        box.switch.begun()
        assert box.switch.wanted is None
        assert box.switch.hasten() is None

    played(play)
    assert (len(box.asked_s), box.shown) == (1, [NEW])


def test_a_restart_from_before_the_wish_is_not_taken_for_its_own(tmp_path: Path) -> None:
    box = Box(tmp_path)

    async def play(group: asyncio.TaskGroup) -> None:
        box.begin(group)
        box.switch.begun()
        assert box.switch.wanted == NEW
        box.streams = 0

    played(play)
    assert (len(box.asked_s), box.switch.wanted) == (1, NEW)


def test_the_last_wish_counts_and_a_stop_forgets_it(tmp_path: Path) -> None:
    box = Box(tmp_path)

    async def play(group: asyncio.TaskGroup) -> None:
        box.begin(group, OTHER)
        await asyncio.sleep(100.0)
        assert box.switch.hasten() == OTHER
        box.begin(group)
        await asyncio.sleep(100.0)
        assert box.asked_s == [], "who hastened the other one did not mean this one"
        box.switch.cancel()
        box.streams = 0

    played(play)
    assert (box.asked_s, box.switch.wanted, box.switch.in_use.pairs.trial) == ([], None, None)
