"""The key of an engine that somebody else runs, when its file is not what it was at the look: the start fails."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from appliance.board import Board
from appliance.engine.examined import Examined
from appliance.engine.external import ExternalEngine
from appliance.engine.settings import ExternalSettings
from appliance.engine.supervisor import EngineSupervisor
from gateway import logs
from gateway.state import BoxState, Cause, Phase
from tests.fake_engine.knobs import Knobs
from tests.fake_engine.serving import serving

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def asked_with(key: Path) -> AsyncIterator[Board]:
    """A supervisor whose looks find nothing; it goes on until it is stopped."""
    board = Board(BoxState())
    async with serving(Knobs(time_scale=0.01)) as engine:
        supervisor = EngineSupervisor(
            adapter=ExternalEngine(ExternalSettings(kind="external", url=engine.url, key_file=key)),
            board=board,
            state_dir=key.parent,
            runtime_dir=key.parent,
            examine=lambda: Examined(()),
            log=logs.configure("daemon", io.StringIO()),
        )
        running = asyncio.create_task(supervisor.run())
        try:
            yield board
            async with asyncio.timeout(5):
                await supervisor.stop()
        finally:
            running.cancel()
            await asyncio.wait((running,))


async def failed(board: Board) -> Cause:
    async with asyncio.timeout(10):
        while (box := board.state).engine.phase is not Phase.BACKOFF:
            await board.newer_than(box.revision, 5)
    assert box.engine.cause is not None
    return box.engine.cause


async def test_a_key_file_that_vanishes_while_the_start_waits_fails_the_warm_up(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("secret\n")
    async with asked_with(key) as board:

        def seen(box: BoxState) -> None:
            if box.engine.phase is Phase.STARTING and box.engine.start_id:
                key.unlink(missing_ok=True)

        board.listen(seen)
        cause = await failed(board)
    assert cause.id == "engine.key_file"
    assert cause.title == f"The engine's key cannot be read: {key}: No such file or directory"
    assert cause.remedy.startswith(f"ls -l {key} ")


async def test_a_key_that_no_header_can_carry_fails_the_start(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_bytes(b"\xef\xbb\xbfsecret\n")
    async with asked_with(key) as board:
        cause = await failed(board)
    assert "byte order mark" in cause.title
    assert "secret" not in cause.title + cause.remedy + cause.evidence
