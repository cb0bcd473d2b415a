"""Who lets requests in: the process, the operator, the engine, in this order; whatever happens to the others."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.admission_types import Granted, Reason, Rejected
from gateway.core import Core, Engine
from gateway.learning.prompt import CanonicalPrompt
from gateway.limiter import Request
from gateway.overlay import Changed, Mode
from gateway.overlayfile import OverlayFile
from gateway.state import BoxState, EngineState, Event, Phase, Severity
from tests.gateway.test_core import GOOD, KEY, make, ready

DOWN = BoxState(revision=9, engine=EngineState(phase=Phase.BACKOFF))
OFF = Changed(by="root", at_s=1.0)


async def set_mode(core: Core, mode: Mode) -> None:
    await core.set_overlay(lambda now: now.in_mode(mode, "ana", 1.0))


async def switch(core: Core, seat: str, off: Changed | None) -> None:
    await core.set_overlay(lambda now: now.with_seat(seat, off))


def closed(core: Core) -> Reason | None:
    return core.limiter.view().closed


@pytest.mark.anyio
async def test_a_drained_box_stays_closed_through_a_crash_and_a_start_of_the_engine(tmp_path: Path) -> None:
    core = make(tmp_path)
    core.engine_changed(*ready("one", streams=2))
    await set_mode(core, Mode.DRAINED)
    core.engine_suspect(core.engine)  # type: ignore[arg-type]
    core._trust_again()
    assert closed(core) is Reason.MAINTENANCE
    for box, engine in ((DOWN, None), ready("two", streams=2)):
        core.engine_changed(box, engine)
        assert closed(core) is Reason.MAINTENANCE
        problem = core.why_not()
        assert problem is not None
        assert problem.reason is Reason.MAINTENANCE
    await set_mode(core, Mode.SERVING)
    assert (closed(core), core.why_not()) == (None, None)


@pytest.mark.anyio
async def test_a_paused_box_stays_paused_through_a_crash_and_a_start_of_the_engine(tmp_path: Path) -> None:
    core = make(tmp_path)
    core.engine_changed(*ready("one", streams=2))
    await set_mode(core, Mode.PAUSED)
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(core.limiter.enter(Request("ana", None, 1, lambda _: None)))
        core.engine_changed(DOWN, None)
        lost = first.answer.result()
        assert isinstance(lost, Rejected)
        assert lost.reason is Reason.ENGINE_LOST, "its engine is gone; nobody waits for the next one"
        core.engine_changed(*ready("two", streams=2))
        second = stack.enter_context(core.limiter.enter(Request("ana", None, 1, lambda _: None)))
        assert not second.answer.done()
        await set_mode(core, Mode.SERVING)
        assert isinstance(second.answer.result(), Granted)


@pytest.mark.anyio
async def test_from_paused_to_drained_nobody_slips_through(tmp_path: Path) -> None:
    core = make(tmp_path)
    core.engine_changed(*ready("one", streams=2))
    await set_mode(core, Mode.PAUSED)
    with core.limiter.enter(Request("ana", None, 1, lambda _: None)) as place:
        await set_mode(core, Mode.DRAINED)
        refused = place.answer.result()
    assert isinstance(refused, Rejected)
    assert (refused.reason, refused.retry_after_s) == (Reason.MAINTENANCE, 59)


@pytest.mark.anyio
async def test_resuming_without_an_engine_says_so_and_not_maintenance(tmp_path: Path) -> None:
    core = make(tmp_path)
    await set_mode(core, Mode.DRAINED)
    await set_mode(core, Mode.SERVING)
    assert closed(core) is Reason.ENGINE_NOT_READY


@pytest.mark.anyio
async def test_a_process_that_ends_is_opened_by_nobody(tmp_path: Path) -> None:
    core = make(tmp_path)
    core.engine_changed(*ready("one", streams=2))
    await set_mode(core, Mode.DRAINED)
    core.drain()
    await set_mode(core, Mode.SERVING)
    core.engine_changed(*ready("two", streams=2))
    assert closed(core) is Reason.DRAINING


@pytest.mark.anyio
async def test_a_new_gateway_is_paused_before_it_knows_of_an_engine(tmp_path: Path) -> None:
    await set_mode(make(tmp_path), Mode.PAUSED)
    core = make(tmp_path)
    core.engine_changed(*ready("one", streams=2))
    assert core.limiter.view().held
    with core.limiter.enter(Request("ana", None, 1, lambda _: None)) as place:
        assert not place.answer.done()


STEP = st.sampled_from([*Mode, "one", "two", "down", "suspect", "trust"])


@settings(max_examples=60, deadline=None)
@given(st.lists(STEP, max_size=20), st.booleans())
@pytest.mark.anyio
async def test_no_order_of_events_opens_what_should_be_shut(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str], ends: bool
) -> None:
    core = make(tmp_path_factory.mktemp("core"))
    engine: Engine | None = None
    suspect = ""
    mode = Mode.SERVING
    for step in steps:
        match step:
            case "one" | "two":
                box, engine = ready(step, streams=2)
                core.engine_changed(box, engine)
            case "down":
                engine = None
                core.engine_changed(DOWN, None)
            case "suspect" if engine is not None:
                suspect = engine.start_id
                core.engine_suspect(engine)
            case "trust":
                suspect = ""
                core._trust_again()
            case Mode():
                mode = step
                await set_mode(core, mode)
        may = mode is not Mode.DRAINED and engine is not None and engine.start_id != suspect
        assert (closed(core) is None) is may
        assert (closed(core) is Reason.MAINTENANCE) is (mode is Mode.DRAINED)
        assert core.limiter.view().held is (mode is Mode.PAUSED)
    if ends:
        core.drain()
        assert closed(core) is Reason.DRAINING


# Seats that are off


@pytest.mark.anyio
async def test_what_was_kept_of_the_prompts_of_a_seat_goes_when_it_is_switched_off(tmp_path: Path) -> None:
    (tmp_path / "seats.toml").write_text(GOOD)
    core = make(tmp_path)
    prompt = CanonicalPrompt.of({"messages": [{"role": "user", "content": "mine"}]})
    core.care.watch.came("run", "ana", "pi", prompt, 0.0)
    core.prewarm.keep("run", "ana", "/v1/chat/completions", b"{}")
    assert core.care.watch.held_bytes
    assert core.prewarm.heads.held_bytes
    await switch(core, "ana", OFF)
    assert core.care.watch.held_bytes == core.prewarm.heads.held_bytes == 0


@pytest.mark.anyio
async def test_an_edit_of_the_file_does_not_bring_a_seat_back_that_is_off(tmp_path: Path) -> None:
    (tmp_path / "seats.toml").write_text(GOOD)
    core = make(tmp_path)
    core.engine_changed(*ready("one", streams=2))
    with core.limiter.enter(Request("ana", None, 1, lambda _: None)):
        await switch(core, "ana", OFF)
        gone = core.limiter.policy._books.running
        assert all(running.gone_at_s is not None for running in gone.values())
        (tmp_path / "seats.toml").write_text(GOOD + "max_streams = 2\n")
        core.look_at_files(force=True)
        assert all(running.gone_at_s is not None for running in gone.values())
        denied = core.seats.value.authenticate([(b"authorization", f"Bearer {KEY}".encode())], core.now())
        assert "switched off" in str(denied)
        assert "moe-appliance seats on ana" in str(denied)
        await switch(core, "ana", None)
        assert all(running.gone_at_s is None for running in gone.values())


@pytest.mark.anyio
async def test_a_seat_that_is_gone_from_the_file_stays_off_when_it_comes_back(tmp_path: Path) -> None:
    (tmp_path / "seats.toml").write_text(GOOD)
    core = make(tmp_path)
    await switch(core, "ana", OFF)
    for text in ("", GOOD):
        (tmp_path / "seats.toml").write_text(text)
        core.look_at_files(force=True)
    assert not core.seats.value.active(core.now())
    again = make(tmp_path)
    assert not again.seats.value.active(again.now())


@pytest.mark.anyio
async def test_the_daemons_events_and_file_changes_are_told_and_a_start_is_none(tmp_path: Path) -> None:
    core = make(tmp_path)
    assert core.events.recent() == ()
    told = Event(id="d1", at_s=1.0, kind="engine.phase", severity=Severity.INFO, text="the engine is ready")
    core.box_changed(BoxState(revision=1, events=(told,)))
    (tmp_path / "seats.toml").write_text("[seats.ana\n")
    core.look_at_files(force=True)
    assert [event.kind for event in core.events.recent()] == ["engine.phase", "files.seats"]
    assert core.events.recent()[-1].severity is Severity.WARN


@pytest.mark.anyio
async def test_a_sweep_tells_of_refusals_once_their_minute_is_over(tmp_path: Path) -> None:
    core = make(tmp_path)
    for _ in range(3):
        core.refusals.count("maintenance", 100.0)
    core.sweep(159.0)
    assert core.events.recent() == ()
    core.sweep(160.0)
    core.sweep(300.0)
    assert [event.text for event in core.events.recent()] == ["3 requests refused: maintenance"]


@pytest.mark.anyio
async def test_a_slow_disk_is_not_waited_for_on_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    core, where = make(tmp_path), list[int]()
    keep = OverlayFile.keep

    def noted(file: OverlayFile) -> str:
        where.append(threading.get_ident())
        return keep(file)

    monkeypatch.setattr(OverlayFile, "keep", noted)
    await set_mode(core, Mode.PAUSED)
    assert core.mode is Mode.PAUSED
    assert where
    assert threading.get_ident() not in where
