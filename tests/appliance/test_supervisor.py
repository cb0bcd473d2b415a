"""The supervisor with the box's facts made up: what the checks find keeps the engine from starting, and what it
shows at its warm-up is told."""

from __future__ import annotations

import asyncio
import dataclasses
import io
import math
import time
from pathlib import Path

import pytest

from appliance.board import Board
from appliance.box.facts import Facts
from appliance.engine.embedded import EmbeddedEngine
from appliance.engine.examined import Examined, causes_of
from appliance.engine.external import ExternalEngine
from appliance.engine.probe_forms import CHAT, FLAGGED, MESSAGES
from appliance.engine.promise import usual
from appliance.engine.settings import EmbeddedSettings, ExternalSettings
from appliance.engine.supervisor import EngineSupervisor
from appliance.engine.warming import PROBES_END_S, Warming
from gateway import logs
from gateway.state import BoxState, EngineAbilities, EngineState, Finding, Phase, Severity
from tests.fake_engine.knobs import Knobs
from tests.fake_engine.serving import serving

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
    adapter = EmbeddedEngine(EmbeddedSettings(), state_dir=tmp_path)
    supervisor = EngineSupervisor(
        adapter=adapter,
        board=board,
        state_dir=tmp_path,
        runtime_dir=tmp_path,
        examine=lambda: Examined(adapter.findings(seen)),
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


async def in_phase(board: Board, phase: Phase) -> EngineState:
    """The board's engine once it is in `phase`."""
    async with asyncio.timeout(20):
        while (box := board.state).engine.phase is not phase:
            await board.newer_than(box.revision, 5)
    return box.engine


@pytest.mark.anyio
async def test_a_finding_is_logged_once_and_again_when_its_severity_changed(tmp_path: Path) -> None:
    # given a refused engine that is looked at again and again
    lines = io.StringIO()
    weak = EmbeddedEngine(EmbeddedSettings(), state_dir=tmp_path).findings(
        dataclasses.replace(GOOD, mem_available_bytes=200 << 20)
    )
    board = Board(BoxState())
    supervisor = EngineSupervisor(
        adapter=EmbeddedEngine(EmbeddedSettings(), state_dir=tmp_path),
        board=board,
        state_dir=tmp_path,
        runtime_dir=tmp_path,
        examine=lambda: Examined(weak),
        log=logs.configure("daemon", lines),
    )
    # when
    supervisor._log_findings(weak)
    board.update(findings=weak)
    supervisor._log_findings(weak)
    # then
    assert lines.getvalue().count("daemon.finding") == 1
    supervisor._log_findings([weak[0].model_copy(update={"severity": Severity.WARN})])
    assert lines.getvalue().count("daemon.finding") == 2


@pytest.mark.anyio
async def test_what_an_engine_showed_is_on_the_board_while_it_is_ready(tmp_path: Path) -> None:
    board, log = Board(BoxState()), io.StringIO()
    async with serving(Knobs(time_scale=0.01, dialects=(CHAT, MESSAGES))) as engine:
        supervisor = EngineSupervisor(
            adapter=ExternalEngine(ExternalSettings(kind="external", url=engine.url)),
            board=board,
            state_dir=tmp_path,
            runtime_dir=tmp_path,
            examine=lambda: Examined(()),
            log=logs.configure("daemon", log),
        )
        running = asyncio.create_task(supervisor.run())
        try:
            ready = await in_phase(board, Phase.READY)
            assert ready.abilities.dialects == (CHAT, MESSAGES)
            assert ready.abilities.continuation == (CHAT, MESSAGES, FLAGGED)
            assert EngineState.model_validate_json(ready.model_dump_json()).abilities == ready.abilities
            supervisor.restart()
            assert (await in_phase(board, Phase.STOPPING)).abilities == EngineAbilities()
            assert (await in_phase(board, Phase.READY)).abilities == ready.abilities
            async with asyncio.timeout(5):
                await supervisor.stop()
            assert board.state.engine.abilities == EngineAbilities()
        finally:
            running.cancel()
            await asyncio.wait((running,))
    told = [line for line in log.getvalue().splitlines() if '"engine.abilities"' in line]
    assert len(told) == 2


@pytest.mark.parametrize("left_s", [math.inf, 1000.0, 30.0, 1.0])
def test_the_probes_end_before_the_start_limit_would_end_the_engine(left_s: float) -> None:
    adapter = ExternalEngine(ExternalSettings(kind="external", url="http://h"))
    warming = Warming(
        adapter,
        adapter.launch(0, Path("/nowhere")),
        usual("external", adapter.profile, 0.0),
        "1",
        lambda event: None,
        logs.configure("daemon", io.StringIO()),
        host_kv=False,
        host_bytes=lambda: None,
        missing=lambda: None,
        ends_s=time.monotonic() + left_s,
    )
    assert warming.left_s() == pytest.approx(left_s - PROBES_END_S, abs=0.5)


def test_what_clients_are_told_first_is_the_cause_and_not_its_effect() -> None:
    def failed(id_: str, depends_on: str | None = None) -> Finding:
        return Finding(
            id=id_, severity=Severity.FAIL, title="t", observed="o", required="r", remedy="do", depends_on=depends_on
        )

    found = (failed("nvml.load", "dev.nodes"), failed("dev.nodes"), failed("mig.off", "nobody"))
    assert [cause.id for cause in causes_of(found)] == ["dev.nodes", "mig.off", "nvml.load"]
