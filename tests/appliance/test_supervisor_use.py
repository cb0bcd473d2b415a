"""The supervisor while another pair is about to be tried: one restart, whoever asks for one too, none at a stop."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from appliance.board import Board
from appliance.engine.around import Around
from appliance.engine.examined import Examined
from appliance.engine.external import ExternalEngine
from appliance.engine.in_use import Composed, InUse
from appliance.engine.settings import ExternalSettings
from appliance.engine.supervisor import EngineSupervisor
from gateway import logs
from gateway.state import BoxState, EngineState, Pair, Phase
from tests.fake_engine.knobs import Knobs
from tests.fake_engine.serving import serving

NEW = Pair(plan_file="/plans/new.json")


@dataclass(slots=True)
class Served:
    """A supervisor whose engine is READY, and every engine state that was published."""

    supervisor: EngineSupervisor
    board: Board
    states: list[EngineState] = field(default_factory=list)
    streams: int = 1
    answered: str = ""

    async def until(self, met: Callable[[EngineState], bool]) -> EngineState:
        async with asyncio.timeout(20):
            while not met((box := self.board.state).engine):
                await self.board.newer_than(box.revision, 5)
        return box.engine

    async def ready(self) -> EngineState:
        return await self.until(lambda engine: engine.phase is Phase.READY and not engine.leaving)

    def use(self) -> None:
        self.supervisor.use(NEW, prove=False, drained=lambda: not self.streams, drain_s=600.0)

    def starts(self) -> list[str]:
        """Ids of the starts, oldest first."""
        return list(dict.fromkeys(state.start_id for state in self.states if state.start_id))


@asynccontextmanager
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(Knobs(time_scale=0.01)) as engine:
        adapter = ExternalEngine(ExternalSettings(kind="external", url=engine.url))
        log = logs.configure("daemon", io.StringIO())
        here: Served
        board = Board(BoxState())
        supervisor = EngineSupervisor(
            adapter=adapter,
            board=board,
            state_dir=tmp_path,
            runtime_dir=tmp_path,
            examine=lambda: Examined(()),
            log=log,
            around=Around(served=lambda: here.answered),
            in_use=InUse(tmp_path, Pair(), lambda pair: Composed(adapter, lambda: Examined(())), log),
        )
        here = Served(supervisor, board)
        board.listen(lambda box: here.states.append(box.engine))
        running = asyncio.create_task(supervisor.run())
        try:
            await here.ready()
            yield here
            async with asyncio.timeout(10):
                await supervisor.stop()
        finally:
            running.cancel()
            await asyncio.wait((running,))


@pytest.mark.anyio
async def test_the_engine_that_ends_is_never_shown_as_the_one_that_was_wanted(tmp_path: Path) -> None:
    async with served(tmp_path) as here:
        old = (await here.ready()).start_id
        here.use()
        here.streams = 0
        await here.until(lambda engine: engine.start_id not in ("", old))
        new = await here.ready()
        assert new.trial == NEW
        of_old = [state for state in here.states if state.start_id == old and state.phase is Phase.READY]
        assert {state.leaving for state in of_old if state.trial == NEW} == {True}


@pytest.mark.anyio
async def test_a_restart_meanwhile_hastens_the_change_and_is_the_only_one(tmp_path: Path) -> None:
    # given an engine that is about to be restarted with another pair, and a stream that does not end
    async with served(tmp_path) as here:
        old = (await here.ready()).start_id
        here.use()
        assert (await here.until(lambda engine: engine.leaving)).trial == NEW

        # when somebody restarts it, twice
        assert (here.supervisor.restart(), here.supervisor.restart()) == (NEW, NEW)

        # then the new pair is tried at once, in one start
        await here.until(lambda engine: engine.start_id not in ("", old))
        assert (await here.ready()).trial == NEW
        assert len(here.starts()) == 2
        assert here.supervisor.restart() is None


@pytest.mark.anyio
async def test_a_box_that_is_about_to_stop_changes_and_restarts_nothing(tmp_path: Path) -> None:
    async with served(tmp_path) as here:
        ready = await here.ready()
        here.use()
        await here.until(lambda engine: engine.leaving)
        here.supervisor.ending()
        here.streams = 0
        here.supervisor.restart()
        here.supervisor.start()
        async with asyncio.timeout(10):
            await here.supervisor.stop()
        assert here.starts() == [ready.start_id]
        assert here.supervisor.in_use is not None
        assert here.supervisor.in_use.pairs.trial is None


@pytest.mark.anyio
@pytest.mark.parametrize("answered", [True, False])
async def test_who_was_served_is_known_before_the_end_of_a_run_is_judged(tmp_path: Path, answered: bool) -> None:
    async with served(tmp_path) as here:
        ready = await here.ready()
        here.answered = ready.start_id if answered else "another"
        here.supervisor.start()  # any event
        for _ in range(10):
            await asyncio.sleep(0)
        assert here.supervisor._state.served == answered
