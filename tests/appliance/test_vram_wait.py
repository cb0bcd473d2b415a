"""The wait between two engines: with a driver that is made up, and time that passes when it is slept."""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from appliance.box.gpu import GpuProcess, GpuReport
from appliance.engine import vram_wait
from appliance.engine.tree import start_of
from appliance.engine.vram import LIMIT_S
from appliance.engine.vram_wait import CardsWait
from gateway import logs
from gateway.state import Cause
from tests.appliance.test_vram import GIB, gpu, report


class Driver:
    """Answers with one report after another, the last for ever."""

    def __init__(self, *reports: GpuReport) -> None:
        self.reports = list(reports)
        self.asked = 0

    def __call__(self, root: Path) -> GpuReport:
        self.asked += 1
        return self.reports.pop(0) if len(self.reports) > 1 else self.reports[0]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[], float]:
    now = [1000.0]
    real = asyncio.sleep

    async def sleep(seconds: float) -> None:
        now[0] += seconds
        await real(0)

    monkeypatch.setattr(vram_wait.asyncio, "sleep", sleep)
    return lambda: now[0]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root/proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "root/dev").mkdir()
    (tmp_path / "root/dev/kmsg").write_text("6,1,5,-;NVRM: Xid (PCI:0000:40:00): 79, of last week\n")
    return tmp_path / "root"


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def cards(tmp_path: Path, root: Path, driver: Driver, clock: Callable[[], float]) -> tuple[CardsWait, io.StringIO]:
    said = io.StringIO()
    return CardsWait(tmp_path, logs.configure("daemon", said), root=root, gather=driver, now=clock), said


def name_of(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


Steps = list[str]


async def wait(cards: CardsWait) -> tuple[Cause | None, Steps]:
    steps: Steps = []
    return await cards.free(lambda step, part: steps.append(step)), steps


@pytest.mark.anyio
async def test_the_next_start_waits_until_the_cards_are_as_before(
    tmp_path: Path, root: Path, clock: Callable[[], float]
) -> None:
    driver = Driver(report(gpu(0)), report(gpu(0, 72 * GIB)), report(gpu(0, 30 * GIB)), report(gpu(0)))
    waiting, _ = cards(tmp_path, root, driver, clock)
    await waiting.before_start()
    assert waiting.used_before == {0: GIB}
    waiting.ended({})
    held = [f"waiting for the cards' memory ({size} GiB held)" for size in ("71.0", "29.0")]
    assert await wait(waiting) == (None, held)
    assert not (tmp_path / vram_wait.NAME).exists()
    assert await wait(waiting) == (None, [])
    assert driver.asked == 4


@pytest.mark.anyio
async def test_without_a_driver_nobody_is_asked_and_nothing_is_waited_for(
    tmp_path: Path, clock: Callable[[], float]
) -> None:
    driver = Driver(report(gpu(0, 90 * GIB)))
    waiting, said = cards(tmp_path, tmp_path, driver, clock)
    await waiting.before_start()
    waiting.ended({})
    assert await wait(waiting) == (None, [])
    assert driver.asked == 0
    assert said.getvalue() == ""


@pytest.mark.anyio
async def test_memory_that_stays_is_told_with_its_holder_and_what_the_kernel_said_since(
    tmp_path: Path, root: Path, clock: Callable[[], float]
) -> None:
    pid = os.getpid()
    full = report(gpu(0, 72 * GIB, GpuProcess(pid, 71 * GIB, "VLLM::Worker")))
    driver = Driver(report(gpu(0)), full)
    waiting, _ = cards(tmp_path, root, driver, clock)
    await waiting.before_start()
    start = start_of(pid)
    assert start is not None
    waiting.note({pid: start}, kept=True)
    waiting.ended({})
    with (root / "dev/kmsg").open("a") as log:
        log.write("6,2,9,-;NVRM: Xid (PCI:0000:40:00): 119, Timeout\n")
    began_s = clock()
    held, _ = await wait(waiting)
    assert held is not None
    assert held.id == "engine.vram_held"
    assert f"process {pid} (VLLM::Worker)" in held.title
    assert "119" in held.evidence
    assert "last week" not in held.evidence
    assert LIMIT_S <= clock() - began_s < LIMIT_S + 3
    # when somebody asks again it looks first, and decides at once
    asked = driver.asked
    assert (await wait(waiting))[0] == held
    assert driver.asked == asked + 1
    driver.reports = [report(gpu(0))]
    assert await wait(waiting) == (None, [])


@pytest.mark.anyio
async def test_who_held_memory_before_the_start_and_lives_is_known_by_name(
    tmp_path: Path, root: Path, clock: Callable[[], float], child: subprocess.Popen[bytes]
) -> None:
    gone = 1 << 30  # no pid is so large
    held = GpuProcess(gone, GIB, "gone"), GpuProcess(os.getpid(), GIB, "ours"), GpuProcess(child.pid, 2 * GIB, "orphan")
    waiting, _ = cards(tmp_path, root, Driver(report(gpu(0, 9 * GIB, *held), gpu(1, 2 * GIB, held[1]))), clock)
    assert waiting.holders == ()
    await waiting.before_start()
    assert {one.pid: (one.command, one.bytes) for one in waiting.holders} == {
        pid: (name_of(pid), 2 * GIB) for pid in (os.getpid(), child.pid)
    }


@pytest.mark.anyio
async def test_a_daemon_that_was_killed_leaves_the_wait_to_the_next_one(
    tmp_path: Path, root: Path, clock: Callable[[], float]
) -> None:
    first, _ = cards(tmp_path, root, Driver(report(gpu(0))), clock)
    await first.before_start()
    second, _ = cards(tmp_path, root, Driver(report(gpu(0, 72 * GIB)), report(gpu(0))), clock)
    assert (await wait(second))[1] == ["waiting for the cards' memory (71.0 GiB held)"]
    assert json.loads(json.dumps(second.used_before)) == {}


@pytest.mark.anyio
async def test_what_was_before_a_reboot_means_nothing(tmp_path: Path, root: Path, clock: Callable[[], float]) -> None:
    first, _ = cards(tmp_path, root, Driver(report(gpu(0))), clock)
    await first.before_start()
    file = tmp_path / vram_wait.NAME
    file.write_text(file.read_text().replace(vram_wait._boot_id(), "another"))
    driver = Driver(report(gpu(0, 72 * GIB)))
    second, _ = cards(tmp_path, root, driver, clock)
    assert await wait(second) == (None, [])
    assert driver.asked == 0


@pytest.mark.anyio
async def test_what_outlived_sigkill_is_waited_for_without_cards(
    tmp_path: Path, clock: Callable[[], float], child: subprocess.Popen[bytes]
) -> None:
    waiting, _ = cards(tmp_path, tmp_path, Driver(report()), clock)
    await waiting.before_start()
    start = start_of(child.pid)
    assert start is not None
    waiting.ended({child.pid: start})
    held, steps = await wait(waiting)
    assert held is not None
    assert held.id == "engine.unkillable"
    assert f"process {child.pid} (" in steps[0]
    child.kill()
    child.wait()
    assert await wait(waiting) == (None, [])


@pytest.mark.anyio
async def test_a_stranger_is_logged_and_the_start_goes_on(
    tmp_path: Path, root: Path, clock: Callable[[], float], child: subprocess.Popen[bytes]
) -> None:
    taken = report(gpu(0, 72 * GIB, GpuProcess(child.pid, 71 * GIB, "blender")))
    waiting, said = cards(tmp_path, root, Driver(report(gpu(0)), taken), clock)
    await waiting.before_start()
    waiting.ended({})
    assert await wait(waiting) == (None, [])
    assert "blender" in said.getvalue()
