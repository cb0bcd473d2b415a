"""appliance.box.gauges: what the cards do, and that a driver that hangs costs its child only."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from appliance.box.gauges import PERIOD_S, SILENT_S, Gauges, Pace
from appliance.box.gauges_child import NO_DRIVER
from gateway.state import GaugesState
from gateway.status.gauges import STALE_S
from tests.fake_nvml import FakeNvml
from tests.fake_nvml.setup import CARDS

pytestmark = pytest.mark.anyio
FAST = Pace(period_s=0.02, silent_s=1.0, pause_min_s=0.05, pause_max_s=0.1)


class Told:
    """What was told, and a way to wait for it."""

    def __init__(self) -> None:
        self.states: list[GaugesState | None] = []
        self._new = asyncio.Event()

    def __call__(self, state: GaugesState | None) -> None:
        self.states.append(state)
        self._new.set()

    async def until(self, right: Callable[[GaugesState | None], Any], limit_s: float = 15.0) -> GaugesState:
        """The first new state that is right."""
        seen = len(self.states)
        async with asyncio.timeout(limit_s):
            while True:
                while seen < len(self.states):
                    state = self.states[seen]
                    seen += 1
                    if right(state):
                        return state or GaugesState(at_s=0.0)
                self._new.clear()
                await self._new.wait()


@asynccontextmanager
async def watched(fake: FakeNvml, pace: Pace = FAST) -> AsyncIterator[Told]:
    told = Told()
    task = asyncio.create_task(Gauges(told, fake.environ(), pace).run())
    try:
        yield told
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def children() -> set[int]:
    """The pids of this process's living children that watch cards."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parent = (entry / "stat").read_text().rpartition(")")[2].split()
                words = (entry / "cmdline").read_bytes()
                if int(parent[1]) == os.getpid() and b"gauges_child" in words:
                    found.add(int(entry.name))
    return found


async def test_what_two_busy_cards_do_is_told_in_full(tmp_path: Path) -> None:
    busy = replace(
        CARDS[0], busy=87, used_bytes=80 * 1024**3, temperature=71, power_now_mw=512_300, pcie_rx_kb=21_000_000,
        pcie_tx_kb=3_100, throttle=1 | 4 | 64,
    )  # fmt: skip
    async with watched(FakeNvml(tmp_path).configure(cards=(busy, CARDS[1]))) as told:
        state = await told.until(lambda state: state is not None)
    first, second = state.gpus
    assert (first.index, second.index) == (0, 1)
    assert first.busy_share == 0.87
    assert first.memory_used_bytes == 80 * 1024**3
    assert first.temperature_c == 71
    assert first.power_w == pytest.approx(512.3)
    assert first.power_limit_w == 600
    assert first.pcie_rx_bytes_per_s == 21e9
    assert first.pcie_tx_bytes_per_s == pytest.approx(3.1e6)
    assert (first.link_gen, first.link_width) == (5, 16)
    assert first.slowed_by == ("power cap", "heat (hardware)"), "an idle clock is no slowdown"
    assert second.slowed_by == ()
    assert state.error == ""


async def test_what_one_call_refuses_is_unknown_and_a_lost_card_stays_in_the_list(tmp_path: Path) -> None:
    shy = replace(CARDS[0], fails={"nvmlDeviceGetPcieThroughput": 3, "nvmlDeviceGetPowerUsage": 3})
    async with watched(FakeNvml(tmp_path).configure(cards=(shy, replace(CARDS[1], lost=15)))) as told:
        state = await told.until(lambda state: state is not None)
    assert (state.gpus[0].pcie_rx_bytes_per_s, state.gpus[0].power_w) == (None, None)
    assert state.gpus[0].temperature_c == 41
    assert (state.gpus[1].index, state.gpus[1].name, state.gpus[1].busy_share) == (1, "", None)


async def test_figures_change_with_the_cards(tmp_path: Path) -> None:
    fake = FakeNvml(tmp_path)
    async with watched(fake) as told:
        await told.until(lambda state: state is not None)
        fake.configure(cards=(replace(CARDS[0], busy=55), CARDS[1]))
        await told.until(lambda state: state is not None and state.gpus[0].busy_share == 0.55)


async def test_a_driver_that_hangs_keeps_the_last_figures_marked_and_is_asked_again(tmp_path: Path) -> None:
    fake = FakeNvml(tmp_path)
    async with watched(fake, replace(FAST, silent_s=0.4)) as told:
        good = await told.until(lambda state: state is not None and not state.error)
        fake.configure(hang="nvmlDeviceGetUtilizationRates")
        bad = await told.until(lambda state: state is not None and state.error)
        assert bad.error == "the driver has not answered for 0.4 s"
        assert bad.gpus == good.gpus
        fake.configure(hang="")
        assert (await told.until(lambda state: state is not None and not state.error)).at_s > bad.at_s


async def test_a_driver_that_crashes_is_told_and_asked_again(tmp_path: Path) -> None:
    fake = FakeNvml(tmp_path)
    async with watched(fake) as told:
        fake.configure(crash="nvmlDeviceGetTemperature")
        bad = await told.until(lambda state: state is not None and state.error)
        assert bad.error == "the child that watches the cards ended with -11"
        fake.configure(crash="")
        await told.until(lambda state: state is not None and not state.error)


async def test_a_driver_that_goes_takes_its_gauges_along(tmp_path: Path) -> None:
    fake = FakeNvml(tmp_path)
    async with watched(fake) as told:
        await told.until(lambda state: state is not None)
        fake.configure(crash="nvmlDeviceGetName", init=9)
        await told.until(lambda state: state is None)
        fake.configure(crash="", init=0)
        await told.until(lambda state: state is not None and not state.error)


@pytest.mark.parametrize("changes", [{"library": False}, {"init": 9}])
async def test_a_box_without_a_driver_is_no_error(tmp_path: Path, changes: dict[str, Any]) -> None:
    environ = dict(FakeNvml(tmp_path).configure(**changes).environ())
    argv = [sys.executable, "-I", "-m", "appliance.box.gauges_child", "1"]
    child = await asyncio.create_subprocess_exec(*argv, env=environ, stdin=asyncio.subprocess.PIPE)
    assert await child.wait() == NO_DRIVER


@pytest.mark.parametrize("code", [18, 999], ids=["library and module differ", "unknown error"])
async def test_a_driver_that_takes_no_calls_is_an_error_and_asked_again(tmp_path: Path, code: int) -> None:
    fake = FakeNvml(tmp_path).configure(init=code)
    async with watched(fake, replace(FAST, silent_s=SILENT_S)) as told:
        bad = await told.until(lambda state: state is not None and state.error)
        assert bad.error == "the child that watches the cards ended with 1"
        fake.configure(init=0)
        await told.until(lambda state: state is not None and not state.error)


async def test_names_cannot_move_a_terminals_cursor(tmp_path: Path) -> None:
    async with watched(FakeNvml(tmp_path).configure(cards=(replace(CARDS[0], name="a\x1b[2Jb"),))) as told:
        state = await told.until(lambda state: state is not None)
    assert state.gpus[0].name == "a\\x1b[2Jb"


async def test_the_page_marks_figures_when_the_child_is_given_up() -> None:
    assert STALE_S == SILENT_S == 3 * PERIOD_S


async def test_the_child_ends_with_the_task(tmp_path: Path) -> None:
    async with watched(FakeNvml(tmp_path)) as told:
        await told.until(lambda state: state is not None)
        assert len(children()) == 1
    assert children() == set()
