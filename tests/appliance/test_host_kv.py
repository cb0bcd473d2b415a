"""The KV tier in host RAM: its settings, its bytes against plan and box, and why it is off, kept over restarts."""

from __future__ import annotations

import asyncio
import contextlib
import io
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from appliance.board import Board
from appliance.engine import host_kv, host_kv_kept
from appliance.engine.adapter import HostTier
from appliance.engine.command import CommandEngine
from appliance.engine.examined import Examined
from appliance.engine.failures import from_log
from appliance.engine.settings import CommandSettings
from appliance.engine.supervisor import EngineSupervisor
from appliance.units import GIB
from gateway import logs
from gateway.state import BoxState, Cause, EngineState, Phase, Severity

ROOT = Path(__file__).parents[2]
TIER = HostTier(64 * GIB, 64 * GIB, ("--kv-offloading-size", "64"), "mark")
WHY = Cause(id="engine.host_kv", title="it did not come back", remedy="look")


def command(*argv: str, **more: Any) -> CommandSettings:
    return CommandSettings(kind="command", command=argv, **more)


def tier_of(tmp_path: Path, **more: Any) -> HostTier | None:
    return CommandEngine(command("vllm", "{port}", **more), state_dir=tmp_path).host_tier


# Settings


def test_without_the_setting_there_is_no_tier(tmp_path: Path) -> None:
    assert tier_of(tmp_path) is None
    assert tier_of(tmp_path, host_kv_gib=0.0, host_kv_args=()) is None


def test_the_size_is_filled_into_vllms_option(tmp_path: Path) -> None:
    tier = tier_of(tmp_path, host_kv_gib=64.0)
    assert tier is not None
    assert (tier.bytes, tier.args) == (64 * GIB, ("--kv-offloading-size", "64"))


def test_vllm_may_pin_twice_as_much_unless_it_is_told_to_pin_the_size_itself(tmp_path: Path) -> None:
    exact = {"VLLM_USE_SIMPLE_KV_OFFLOAD": "1"}
    tiers = (tier_of(tmp_path, host_kv_gib=20.0), tier_of(tmp_path, host_kv_gib=20.0, env=exact))
    other = tier_of(tmp_path, host_kv_gib=20.0, host_kv_args=("--hicache-size", "{host_kv_gib}"))
    assert [tier.most_bytes // GIB for tier in (*tiers, other) if tier is not None] == [40, 20, 20]


def test_another_engine_is_told_in_its_own_words(tmp_path: Path) -> None:
    words = ("--tier", '{"gib": {host_kv_gib}, "dir": "{state_dir}"}')
    tier = tier_of(tmp_path, host_kv_gib=1.5, host_kv_args=words)
    assert tier is not None
    assert tier.args == ("--tier", f'{{"gib": 1.5, "dir": "{tmp_path}"}}')


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"host_kv_gib": -1.0}, "host_kv_gib"),
        ({"host_kv_gib": 1.0, "host_kv_args": ()}, "host_kv_args is empty"),
        ({"host_kv_args": ("{host_kv_bytes}",)}, "host_kv_args: unknown placeholder {host_kv_bytes}; there are {host_"),
        ({"host_kv_args": ("{port}",)}, "host_kv_args: unknown placeholder {port}"),
        ({"host_kv_args": ("--kv={host_kv_gib",)}, "host_kv_args: braces do not match in '--kv={host_kv_gib'"),
        ({"host_kv_args": ("--kv", "host_kv_gib}")}, "host_kv_args: braces do not match in 'host_kv_gib}'"),
        ({"host_kv_args": ("}{",)}, "host_kv_args: braces do not match"),
        ({"env": {"SIZE": "{host_kv_gib}"}}, "belongs in host_kv_args"),
    ],
)
def test_a_bad_setting_is_named(more: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        command("vllm", "{port}", **more)


@pytest.mark.parametrize("change", [{"host_kv_gib": 32.0}, {"env": {"A": "b"}}, {"host_kv_args": ("--x",)}])
def test_what_may_change_whether_it_works_changes_the_mark(tmp_path: Path, change: dict[str, Any]) -> None:
    one, other = tier_of(tmp_path, host_kv_gib=64.0), tier_of(tmp_path, **{"host_kv_gib": 64.0, **change})
    same = tier_of(tmp_path, host_kv_gib=64.0, grace_s=3.0)
    assert one is not None
    assert other is not None
    assert one == same
    assert one.mark != other.mark


# Bytes


@pytest.mark.parametrize(
    ("asked_gib", "planned_gib", "severity"),
    [
        (64, 64, None),
        (64, 32, Severity.FAIL),
        (64, 0, Severity.FAIL),
        (32, 64, None),
        (0, 64, Severity.INFO),
        (0, 0, None),
    ],
)
def test_the_plan_counts_what_the_engine_is_told(asked_gib: int, planned_gib: int, severity: Severity | None) -> None:
    tier = replace(TIER, bytes=asked_gib * GIB) if asked_gib else None
    found = host_kv.fits_plan(tier, planned_gib * GIB)
    assert (found.severity if found else None) == severity
    if found:
        assert (found.id, f"host_kv_gib = {planned_gib}" in found.remedy) == ("plan.host_kv", True)


def test_a_plan_in_whole_bytes_and_a_setting_in_gib_agree() -> None:
    assert host_kv.fits_plan(replace(TIER, bytes=int(42.3 * GIB)), 45_419_279_155) is None


@pytest.mark.parametrize(
    ("available_gib", "severity"), [(None, None), (63, Severity.FAIL), (64, Severity.WARN), (84, None)]
)
def test_without_a_plan_it_must_fit_into_free_memory(available_gib: int | None, severity: Severity | None) -> None:
    found = host_kv.fits_memory(TIER, None if available_gib is None else available_gib * GIB)
    assert (found.severity if found else None) == severity
    if found:
        assert found.id == "mem.host_kv"


def test_a_tier_that_may_be_pinned_at_twice_its_size_needs_the_memory_for_that() -> None:
    rounds = replace(TIER, bytes=64 * GIB, most_bytes=128 * GIB)
    assert host_kv.fits_memory(replace(rounds, most_bytes=rounds.bytes), 84 * GIB) is None
    found = host_kv.fits_memory(rounds, 84 * GIB)
    assert found is not None
    assert found.severity is Severity.WARN
    assert "128.0 GiB if the engine pins powers of two" in found.required


@given(st.integers(1, 4096), st.integers(1, 4096), st.booleans())
def test_the_size_that_the_remedy_names_fits(asked_gib: int, available_gib: int, rounds: bool) -> None:
    def tier(gib: int) -> HostTier:
        return replace(TIER, bytes=gib * GIB, most_bytes=gib * GIB * (2 if rounds else 1))

    found = host_kv.fits_memory(tier(asked_gib), available_gib * GIB)
    if found is not None:
        most = int(found.remedy.split(" to ")[1].split(" ")[0])
        assert most < asked_gib
        assert ("VLLM_USE_SIMPLE_KV_OFFLOAD" in found.remedy) == rounds
        assert most == 0 or host_kv.fits_memory(tier(most), available_gib * GIB) is None


# Why it is off


def test_the_finding_says_why_and_what_to_type() -> None:
    found = host_kv.off_finding(TIER, WHY)
    assert (found.id, found.severity, found.observed) == ("engine.host_kv", Severity.WARN, "it did not come back")
    assert found.title == "The KV tier of 64.0 GiB in host RAM is off"
    assert found.remedy == "look; then: moe-appliance restart   or, to do without: [engine] host_kv_gib = 0"


@pytest.mark.parametrize(
    "line",
    [
        "Exception: CPU Offloading is currently only supported on CUDA-alike and XPU GPUs",
        "vllm: error: unrecognized arguments: --kv-offloading-size 64",
    ],
)
def test_an_engine_that_knows_no_tier_is_understood_by_its_log(line: str) -> None:
    cause = from_log([line])
    assert cause is not None
    assert host_kv.blamed(cause) == cause


def test_the_reason_is_kept_for_this_configuration_alone(tmp_path: Path) -> None:
    assert host_kv_kept.load(tmp_path, TIER) is None
    host_kv_kept.save(tmp_path, TIER, WHY)
    assert host_kv_kept.load(tmp_path, TIER) == WHY
    assert host_kv_kept.load(tmp_path, replace(TIER, mark="other")) is None
    assert host_kv_kept.load(tmp_path, None) is None
    host_kv_kept.save(tmp_path, TIER, None)
    host_kv_kept.save(tmp_path, TIER, None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"mark": "mark"}', '{"mark": "mark", "off": 3}', "\xff"])
def test_a_broken_file_is_as_good_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / host_kv_kept.NAME).write_text(text, encoding="latin-1")
    assert host_kv_kept.load(tmp_path, TIER) is None


# The supervisor


@contextlib.asynccontextmanager
async def supervised(tmp_path: Path, **knobs: object) -> AsyncIterator[tuple[EngineSupervisor, Board]]:
    """A supervisor that runs the fake engine as a process, with a tier of one GiB."""
    base = {"time_scale": 0.001, "context_tokens": 32_768, "reset_path": True}
    told = [f"--set={name}={_json(value)}" for name, value in {**base, **knobs}.items()]
    settings = CommandSettings(
        kind="command",
        command=(sys.executable, "-m", "tests.fake_engine", "--port", "{port}", "--key-file", "{key_file}", *told),
        env={"PYTHONPATH": str(ROOT)},
        host_kv_gib=1.0,
        grace_s=1.0,
    )
    board = Board(BoxState())
    supervisor = EngineSupervisor(
        adapter=CommandEngine(settings, state_dir=tmp_path),
        board=board,
        state_dir=tmp_path,
        runtime_dir=tmp_path,
        examine=lambda: Examined(()),
        log=logs.configure("daemon", io.StringIO()),
    )
    running = asyncio.create_task(supervisor.run())
    try:
        yield supervisor, board
        async with asyncio.timeout(10):
            await supervisor.stop()
    finally:
        running.cancel()
        await asyncio.wait((running,))


def _json(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def has_tier(engine: EngineState) -> bool:
    """Whether the process was started with one."""
    return b"--kv-offloading-size" in Path(f"/proc/{engine.pid}/cmdline").read_bytes()


async def ready(board: Board, after: str = "") -> EngineState:
    """The engine once it is READY with another start than `after`."""
    async with asyncio.timeout(30):
        while (box := board.state).engine.phase is not Phase.READY or box.engine.start_id == after:
            await board.newer_than(box.revision, 5)
    return box.engine


@pytest.mark.anyio
async def test_a_tier_that_was_proven_is_on_and_nothing_is_found(tmp_path: Path) -> None:
    async with supervised(tmp_path) as (_, board):
        engine = await ready(board)
        assert (engine.host_kv.on, engine.host_kv.bytes, engine.host_kv.off) == (True, GIB, None)
        assert board.state.findings == ()
        assert EngineState.model_validate_json(engine.model_dump_json()).host_kv == engine.host_kv


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("knobs", "says"),
    [
        ({"host_fault": "miss"}, "only 0 of a prompt's"),
        ({"host_fault": "text"}, "answered otherwise"),
        ({"host_fault": "crash"}, "connection to the engine broke"),
        ({"host_fault": "load"}, "cannot keep KV cache in host RAM"),
        ({"reset_path": False}, "no way to drop"),
    ],
)
async def test_a_tier_that_was_not_proven_is_off_in_the_next_start_with_the_reason(
    tmp_path: Path, knobs: dict[str, object], says: str
) -> None:
    async with supervised(tmp_path, **knobs) as (_, board):
        engine = await ready(board)
        assert engine.host_kv.off is not None
        assert (engine.host_kv.on, engine.host_kv.bytes) == (False, GIB)
        (found,) = board.state.findings
        assert (found.id, found.severity) == ("engine.host_kv", Severity.WARN)
        assert found.observed == engine.host_kv.off.title
        assert says in found.observed or "the engine ended with it" in found.observed
        assert not has_tier(engine)


@pytest.mark.anyio
async def test_the_next_daemon_does_without_it_and_a_restart_tries_it_again(tmp_path: Path) -> None:
    async with supervised(tmp_path, reset_path=False) as (_, board):
        assert (await ready(board)).host_kv.off is not None
    # when another daemon starts with the same configuration
    async with supervised(tmp_path, reset_path=False) as (supervisor, board):
        first = await ready(board)
        assert board.state.engine.restarts == 0
        assert [found.id for found in board.state.findings] == ["engine.host_kv"]
        # then only a restart tries it again
        supervisor.restart()
        tried = await in_warm_up(board)
        assert has_tier(tried)
        assert tried.host_kv.off is None
        assert (await ready(board, first.start_id)).host_kv.off is not None


async def in_warm_up(board: Board) -> EngineState:
    async with asyncio.timeout(30):
        while (box := board.state).engine.phase is not Phase.WARMING:
            await board.newer_than(box.revision, 5)
    return box.engine


def test_an_engine_that_ended_with_the_tier_is_told_of_the_words_that_it_got() -> None:
    told = host_kv.blamed(Cause(id="engine.exit", title="It ended.", remedy="look"))
    assert (told.id, told.title) == ("engine.host_kv", "the engine ended with it: It ended.")
    assert told.remedy == 'look; with kind = "command" see that host_kv_args are what your engine wants'
    assert host_kv.blamed(WHY) is WHY
