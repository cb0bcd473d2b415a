"""What happened: each event once, kinds from the list, refusals counted and not told one by one."""

from __future__ import annotations

import ast
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.events import EVENT_KINDS, KEPT, REFUSALS_EVERY_S, TEXT_MAX, Events, Refusals
from gateway.state import Event, Severity

ROOT = Path(__file__).parents[2]


def event(id: str, at_s: float = 1.0) -> Event:
    return Event(id=id, at_s=at_s, kind="engine.phase", severity=Severity.INFO, text="ready")


def test_an_event_is_kept_and_told_once() -> None:
    told: list[Event] = []
    events = Events(told.append, now=lambda: 5.0)
    made = events.note("operator.mode", Severity.INFO, "paused", "ana")
    assert (made.at_s, made.who) == (5.0, "ana")
    assert events.recent() == (made,)
    assert told == [made]


def test_a_kind_that_is_not_on_the_list_is_a_programming_error() -> None:
    with pytest.raises(KeyError):
        Events().note("operator.whim", Severity.INFO, "x")


def test_a_long_text_is_cut() -> None:
    assert len(Events().note("files.seats", Severity.WARN, "x" * 9999).text) == TEXT_MAX


def test_the_daemons_events_are_taken_once_however_often_they_come() -> None:
    told: list[Event] = []
    events = Events(told.append, now=lambda: 2.5)
    events.merge([event("one", 1.0), event("two", 3.0)])
    own = events.note("operator.mode", Severity.INFO, "paused")
    events.merge([event("one", 1.0), event("two", 3.0), event("three", 2.0)])
    assert [kept.id for kept in events.recent()] == ["one", "three", own.id, "two"], "by time"
    assert [kept.id for kept in events.recent(1)] == ["two"]
    assert events.recent(0) == ()
    assert [kept.id for kept in told] == ["one", "two", own.id, "three"]


def test_memory_is_bounded_and_what_fell_out_does_not_come_back() -> None:
    events = Events()
    hundred = [event(f"d{n}") for n in range(100)]
    events.merge(hundred)
    for _ in range(KEPT):
        events.note("files.seats", Severity.INFO, "x")
    events.merge(hundred)
    assert len(events.recent()) == KEPT
    assert all(kept.kind == "files.seats" for kept in events.recent())
    for _ in range(10 * KEPT):
        events.note("files.seats", Severity.INFO, "x")
    assert len(events._known) <= 4 * KEPT


@given(st.lists(st.tuples(st.sampled_from(["queue_full", "paused"]), st.floats(0, 400)), max_size=60))
def test_refusals_are_all_told_at_most_once_a_minute_for_each_reason(refused: list[tuple[str, float]]) -> None:
    clock = [0.0]
    events = Events(now=lambda: clock[0])
    refusals = Refusals(events)
    for reason, at_s in sorted(refused, key=lambda pair: pair[1]):
        while clock[0] + 1.0 <= at_s:
            clock[0] += 1.0
            refusals.tell(clock[0])
        refusals.count(reason, at_s)
    clock[0] += REFUSALS_EVERY_S + 1
    refusals.tell(clock[0], all_of_them=True)
    for reason in ("queue_full", "paused"):
        told = [kept for kept in events.recent() if kept.text.endswith(reason.replace("_", " "))]
        assert sum(int(kept.text.split()[0]) for kept in told) == sum(found == reason for found, _ in refused)
        gaps = [later.at_s - kept.at_s for kept, later in pairwise(told)]
        assert all(gap >= REFUSALS_EVERY_S - 1 for gap in gaps)


def test_every_kind_that_is_made_is_on_the_list_and_every_kind_on_the_list_is_made() -> None:
    made, said = set(), set[str]()
    for folder in ("gateway", "appliance"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                match node:
                    case ast.Call(
                        func=ast.Attribute(attr="note") | ast.Name(id="Told"), args=[ast.Constant(value=str(kind)), *_]
                    ):
                        made.add(kind)
                    case ast.Constant(value=str(text)) if path.name != "events.py":
                        said.add(text)
    assert "requests.refused" in made
    assert made <= set(EVENT_KINDS) <= said | {"requests.refused"}
