"""The supervisor with the box's facts made up: what the checks find keeps the engine from starting."""

from __future__ import annotations

import asyncio
import dataclasses
import io
from pathlib import Path

import pytest

from appliance.board import Board
from appliance.box.facts import Facts
from appliance.engine.embedded import EmbeddedEngine
from appliance.engine.settings import EmbeddedSettings
from appliance.engine.supervisor import EngineSupervisor
from gateway import logs
from gateway.state import BoxState, Phase

GOOD = Facts(
    machine="x86_64",
    cpu_flags=frozenset({"avx2", "fma", "f16c", "bmi2"}),
    cores=2,
    mem_available_bytes=16 << 30,
    disk_free_bytes=16 << 30,
    python=(3, 11, 7),
    euid=1000,
    listen_host="127.0.0.1",
    libs={"libgomp.so.1": True, "libstdc++.so.6": True},
    modules={"xllamacpp": True, "gguf": True},
)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("facts", "finding", "remedy"),
    [
        ({"cpu_flags": frozenset({"sse4_2"})}, "cpu.avx2", "another machine"),
        ({"libs": {"libgomp.so.1": False, "libstdc++.so.6": True}}, "lib.gomp", "apt-get install"),
        ({"libs": {"libgomp.so.1": True, "libstdc++.so.6": False}}, "lib.stdcxx", "apt-get install"),
        ({"modules": {"xllamacpp": False}}, "engine.package", "pip install"),
        ({"mem_available_bytes": 200 << 20}, "mem.free", "memory"),
        ({"disk_free_bytes": 10 << 20}, "disk.free", "free"),
    ],
)
async def test_a_failed_check_refuses_the_engine_and_names_the_remedy(
    tmp_path: Path, facts: dict[str, object], finding: str, remedy: str
) -> None:
    board = Board(BoxState())
    seen = dataclasses.replace(GOOD, **facts)  # type: ignore[arg-type]
    supervisor = EngineSupervisor(
        adapter=EmbeddedEngine(EmbeddedSettings(), state_dir=tmp_path),
        board=board,
        state_dir=tmp_path,
        runtime_dir=tmp_path,
        facts=lambda: seen,
        box_findings=lambda facts: (),
        log=logs.configure("daemon", io.StringIO()),
    )
    running = asyncio.create_task(supervisor.run())
    try:
        async with asyncio.timeout(10):
            while (box := board.state).engine.phase is not Phase.REFUSED:
                await board.newer_than(box.revision, 5)
        assert box.engine.cause is not None
        assert box.engine.cause.id == finding
        assert remedy in box.engine.cause.remedy
        assert [found.id for found in box.findings] == [finding]
        async with asyncio.timeout(5):
            await supervisor.stop()
    finally:
        running.cancel()
        await asyncio.wait((running,))
