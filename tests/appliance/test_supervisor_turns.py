"""The supervisor when several things happen before it gets its turn: it never waits for an answer that nobody gives."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from appliance.board import Board
from appliance.engine.adapter import Progress
from appliance.engine.examined import Examined
from appliance.engine.external import ExternalEngine
from appliance.engine.settings import ExternalSettings
from appliance.engine.supervisor import EngineSupervisor
from gateway import logs
from gateway.state import BoxState, EngineState, Finding, Phase, Severity
from tests.fake_engine.knobs import Knobs
from tests.fake_engine.serving import serving

pytestmark = pytest.mark.anyio
FAULT = Finding(id="gpu.count", severity=Severity.FAIL, title="t", observed="o", required="r", remedy="do")


class Engine(ExternalEngine):
    """One that somebody else runs. `preparing`: called once, as its next preparation ends."""

    preparing: Callable[[], object] | None = None

    async def prepare(self, progress: Progress) -> None:
        preparing, self.preparing = self.preparing, None
        if preparing is not None:
            preparing()


class Box:
    """A supervisor, how often it looked at the box, and what its looks find or raise."""

    def __init__(self, folder: Path, url: str) -> None:
        self.found: tuple[Finding, ...] = ()
        self.raised: OSError | None = None
        self.looks = 0
        self.board = Board(BoxState())
        self.engine = Engine(ExternalSettings(kind="external", url=url))
        self.supervisor = EngineSupervisor(
            adapter=self.engine,
            board=self.board,
            state_dir=folder,
            runtime_dir=folder,
            examine=self._examine,
            log=logs.configure("daemon", io.StringIO()),
        )

    def _examine(self) -> Examined:
        self.looks += 1
        if self.raised is not None:
            raise self.raised
        return Examined(self.found)

    async def until(self, met: Callable[[EngineState], bool]) -> EngineState:
        async with asyncio.timeout(10):
            while not met((box := self.board.state).engine):
                await self.board.newer_than(box.revision, 5)
        return box.engine


@asynccontextmanager
async def running(folder: Path, *found: Finding) -> AsyncIterator[Box]:
    """It is stopped in the end, which must not last."""
    async with serving(Knobs(time_scale=0.01)) as engine:
        box = Box(folder, engine.url)
        box.found = found
        task = asyncio.create_task(box.supervisor.run())
        try:
            yield box
            async with asyncio.timeout(5):
                await box.supervisor.stop()
            assert box.board.state.engine.phase is Phase.OFF
        finally:
            task.cancel()
            await asyncio.wait((task,))


async def test_two_restarts_at_once_of_an_engine_at_rest_are_one(tmp_path: Path) -> None:
    async with running(tmp_path, FAULT) as box:
        refused = await box.until(lambda engine: engine.phase is Phase.REFUSED)
        # when the second one cancels the look of the first before that has begun
        box.supervisor.restart()
        box.supervisor.restart()
        # then it looks again
        await box.until(lambda engine: engine.phase is Phase.REFUSED and engine.since_s > refused.since_s)
        assert box.looks == 2


def at_once(restart: Callable[[], None]) -> None:
    """Just before the preparation answers."""
    restart()


def in_the_next_turn(restart: Callable[[], None]) -> None:
    """In the turn of the loop in which the run is begun, before an engine of somebody else's is asked."""
    asyncio.get_running_loop().call_soon(restart)


@pytest.mark.parametrize("comes", [at_once, in_the_next_turn])
async def test_a_restart_as_the_preparation_ends_begins_anew(
    comes: Callable[[Callable[[], None]], None], tmp_path: Path
) -> None:
    async with running(tmp_path, FAULT) as box:
        await box.until(lambda engine: engine.phase is Phase.REFUSED)
        box.found = ()
        box.engine.preparing = lambda: comes(box.supervisor.restart)
        box.supervisor.restart()
        await box.until(lambda engine: engine.phase is Phase.READY)
        assert box.looks == 3


async def test_a_look_that_meets_a_file_it_cannot_use_is_a_preparation_that_failed(tmp_path: Path) -> None:
    async with running(tmp_path, FAULT) as box:
        await box.until(lambda engine: engine.phase is Phase.REFUSED)
        box.raised = PermissionError(13, "Permission denied", "/root/of all")
        box.supervisor.restart()
        failed = await box.until(lambda engine: engine.phase is Phase.BACKOFF)
        assert failed.cause is not None
        assert failed.cause.id == "engine.prepare"
        assert failed.cause.title == "The start cannot be prepared: [Errno 13] Permission denied: '/root/of all'"
        assert failed.cause.remedy == "ls -ld '/root/of all'; df -h '/root/of all'"
