"""Which changes of the box become events, and which are told too often to be."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.board import Board
from appliance.gatewayproc import HUNG, REPLACED
from appliance.happenings import KEPT, REPEAT_S, Happenings, happened
from gateway.events import EVENT_KINDS
from gateway.state import (
    BoxState,
    Cause,
    EngineProfile,
    EngineState,
    Event,
    Finding,
    GatewayState,
    Phase,
    Severity,
)


def finding(id: str, severity: Severity = Severity.WARN, observed: str = "seen") -> Finding:
    return Finding(id=id, severity=severity, title=f"title of {id}", observed=observed, required="r", remedy="m")


def engine(
    phase: Phase, title: str = "", *, streams: int = 4, name: str = "demo", load_s: float | None = None
) -> EngineState:
    profile = EngineProfile(name=name, floor_tok_per_s=40.0, cold_tokens=1, streams=streams)
    cause = Cause(id="c", title=title, remedy="r") if title else None
    return EngineState(phase=phase, profile=profile, cause=cause, load_s=load_s)


def texts(*states: BoxState) -> list[str]:
    """What is told of the way through some states."""
    return [told.text for before, after in itertools.pairwise(states) for told in happened(before, after)]


def kinds(*states: BoxState) -> list[tuple[str, Severity]]:
    return [
        (told.kind, told.severity) for before, after in itertools.pairwise(states) for told in happened(before, after)
    ]


def engines(*states: EngineState) -> list[BoxState]:
    return [BoxState(engine=state) for state in states]


def test_an_engine_that_comes_up_is_one_event_with_the_time_that_it_took() -> None:
    way = engines(*(engine(phase) for phase in (Phase.PREPARING, Phase.STARTING, Phase.WARMING)))
    assert texts(*way) == []
    assert texts(way[-1], BoxState(engine=engine(Phase.READY, load_s=251.4))) == [
        "the engine is ready, 251 s after its start"
    ]


@pytest.mark.parametrize(
    ("phase", "kind", "severity", "says"),
    [
        (Phase.BACKOFF, "engine.ended", Severity.WARN, "the engine ended and is started again: out of memory"),
        (Phase.FAILED, "engine.ended", Severity.FAIL, "the engine failed too often and stays off: out of memory"),
        (Phase.REFUSED, "engine.phase", Severity.FAIL, "the engine is not started: out of memory"),
    ],
)
def test_an_engine_that_does_not_serve_is_told_with_its_cause(
    phase: Phase, kind: str, severity: Severity, says: str
) -> None:
    states = engines(engine(Phase.READY), engine(phase, "out of memory."))
    assert kinds(*states) == [(kind, severity)]
    assert texts(*states) == [says]


def test_a_stop_that_was_asked_for_is_told_and_one_for_a_cause_waits_for_its_end() -> None:
    assert texts(*engines(engine(Phase.READY), engine(Phase.STOPPING))) == [
        "the engine is being stopped, as it was asked to"
    ]
    assert texts(*engines(engine(Phase.READY), engine(Phase.STOPPING, "it hangs"))) == []


def test_another_cap_is_told_but_not_the_first_one_that_is_known() -> None:
    assert texts(*engines(engine(Phase.READY, streams=4), engine(Phase.READY, streams=2))) == [
        "the streams that may run at once went from 4 to 2"
    ]
    assert texts(BoxState(), BoxState(engine=engine(Phase.PREPARING, streams=2))) == []


def test_a_gateway_that_ended_hung_or_was_replaced_is_told_apart() -> None:
    runs = BoxState(gateway=GatewayState(pid=1, version="1"))
    ended = BoxState(gateway=GatewayState(restarts=1, last_exit="signal 9"))
    hung = BoxState(gateway=GatewayState(restarts=1, last_exit=HUNG))
    replaced = BoxState(gateway=GatewayState(last_exit=REPLACED))
    new = BoxState(gateway=GatewayState(pid=2, version="2", last_exit=REPLACED))
    assert kinds(runs, ended) == [("gateway.ended", Severity.WARN)]
    assert kinds(runs, hung) == [("gateway.hung", Severity.WARN)]
    assert texts(runs, replaced, new) == ["a gateway of version 2 took over"]
    crashed = BoxState(gateway=GatewayState(restarts=1, last_exit="signal 9"))
    again = BoxState(gateway=GatewayState(pid=3, version="2", restarts=1, last_exit="signal 9"))
    assert kinds(new, crashed, again) == [("gateway.ended", Severity.WARN)]


def test_findings_that_come_and_go_are_told_and_notes_are_not() -> None:
    none, some = BoxState(), BoxState(findings=(finding("a"), finding("b", Severity.INFO)))
    assert texts(none, some) == ["title of a: seen"]
    assert texts(some, BoxState(findings=(finding("a", observed="seen again"),))) == []
    assert texts(some, none) == ["no longer: title of a"]
    worse = BoxState(findings=(finding("a", Severity.FAIL),))
    assert kinds(some, worse) == [("box.finding", Severity.FAIL), ("box.finding", Severity.INFO)]


def test_the_end_of_the_box_is_told_once() -> None:
    assert texts(BoxState(), BoxState(stopping=True), BoxState(stopping=True)) == ["the box is being stopped"]


def test_what_strangers_wrote_has_no_control_letters() -> None:
    states = engines(engine(Phase.READY), engine(Phase.BACKOFF, "\x1b[2J\ngone"))
    assert texts(*states) == ["the engine ended and is started again: \\x1b[2J\\ngone"]


def box_of(clock: list[float]) -> tuple[Board, Happenings]:
    happenings = Happenings(now=lambda: clock[0])
    return Board(happenings.began(BoxState(version="1.2")), happenings.add), happenings


def pass_through(board: Board, states: Sequence[EngineState]) -> list[str]:
    before = {event.id for event in board.state.events}
    for state in states:
        board.update(engine=state)
    return [event.text for event in board.state.events if event.id not in before]


def test_an_engine_that_is_refused_at_every_look_says_so_once_an_hour() -> None:
    clock = [1000.0]
    board, _ = box_of(clock)
    look = [engine(Phase.PREPARING), engine(Phase.REFUSED, "no card")]
    assert pass_through(board, look * 3) == ["the engine is not started: no card"]
    assert pass_through(board, [engine(Phase.PREPARING), engine(Phase.REFUSED, "another")]) != []
    clock[0] += REPEAT_S + 1
    assert pass_through(board, look) == ["the engine is not started: no card"]


def test_an_engine_that_was_ready_in_between_says_the_same_again() -> None:
    board, _ = box_of([1000.0])
    lost = [engine(Phase.READY), engine(Phase.BACKOFF, "gone")]
    assert len(pass_through(board, lost * 2)) == 4


def test_the_first_event_is_the_start_and_each_comes_in_the_revision_of_its_change() -> None:
    board, _ = box_of([1000.0])
    assert [event.text for event in board.state.events] == ["moe-appliance 1.2 was started"]
    revision = board.state.revision
    board.update(engine=engine(Phase.READY))
    assert board.state.revision == revision + 1
    assert board.state.events[-1].text == "the engine is ready"
    assert board.state.events[-1].at_s == 1000.0


@given(st.lists(st.sampled_from(list(Phase)), max_size=300))
def test_ids_are_unique_kinds_are_known_and_the_ring_keeps_the_latest(phases: list[Phase]) -> None:
    clock = [0.0]
    happenings = Happenings(now=lambda: clock[0])
    box, seen = happenings.began(BoxState()), list[Event]()
    for phase in phases:
        clock[0] += REPEAT_S
        box = happenings.add(box, box.model_copy(update={"engine": engine(phase, "x")}))
        seen += [event for event in box.events if event not in seen]
    assert len({event.id for event in seen}) == len(seen)
    assert {event.kind for event in seen} <= set(EVENT_KINDS)
    assert len(box.events) <= KEPT
    assert list(box.events) == sorted(box.events, key=lambda event: event.at_s)


def test_another_daemon_of_the_same_boot_has_other_ids() -> None:
    assert not {e.id for e in Happenings().began(BoxState()).events} & {
        e.id for e in Happenings().began(BoxState()).events
    }
