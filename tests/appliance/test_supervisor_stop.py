"""The supervisor while the box is being stopped: what somebody asks meanwhile does not undo it."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from appliance.board import Board
from appliance.engine.embedded import EmbeddedEngine
from appliance.engine.examined import Examined
from appliance.engine.settings import EmbeddedSettings
from appliance.engine.supervisor import EngineSupervisor
from gateway import logs
from gateway.state import BoxState, Phase


@pytest.mark.anyio
@pytest.mark.parametrize("ask", [EngineSupervisor.restart, EngineSupervisor.start])
async def test_a_start_that_is_asked_for_during_a_stop_does_not_keep_the_box_up(
    tmp_path: Path, ask: Callable[[EngineSupervisor], None]
) -> None:
    # given an engine whose start is being prepared
    board, looked = Board(BoxState()), threading.Event()

    def examine() -> Examined:
        looked.wait(20)
        return Examined()

    supervisor = EngineSupervisor(
        adapter=EmbeddedEngine(EmbeddedSettings(), state_dir=tmp_path),
        board=board,
        state_dir=tmp_path,
        runtime_dir=tmp_path,
        examine=examine,
        log=logs.configure("daemon", io.StringIO()),
    )
    running = asyncio.create_task(supervisor.run())
    try:
        async with asyncio.timeout(5):
            while (box := board.state).engine.phase is not Phase.PREPARING:
                await board.newer_than(box.revision, 5)

        # when the box is being stopped, and somebody wants the engine started
        stopping = asyncio.create_task(supervisor.stop())
        await asyncio.sleep(0)
        ask(supervisor)

        # then it stops
        async with asyncio.timeout(5):
            await stopping
        assert board.state.engine.phase is Phase.OFF
    finally:
        looked.set()
        running.cancel()
        await asyncio.wait((running,))
