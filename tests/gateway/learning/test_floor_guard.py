"""gateway.learning.floor_guard: one change a window, only where it helps, and no flapping."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gateway.learning.floor_guard import PATIENCE_MAX, CapChange, FloorGuard, Terms, Why
from gateway.learning.paces import Pace

TERMS = Terms("one", 40.0, 4, 300.0)
LOOK_S = 10.0


def pace(tok_per_s: float | None, replies: int = 20) -> Pace:
    return Pace(tok_per_s, replies)


def changes(
    guard: FloorGuard, of_cap: Callable[[int], float | None], until_s: float, since_s: float = 0.0, terms: Terms = TERMS
) -> Iterator[tuple[float, CapChange]]:
    """What happens when the pace is what `of_cap` says of each cap."""
    now_s = since_s
    while now_s < until_s:
        change = guard.handle(now_s, pace(of_cap(guard.cap)), terms)
        if change is not None:
            yield now_s, change
        now_s += LOOK_S


def slower_by_streams(cap: int) -> float:
    return {4: 36.0, 3: 46.0, 2: 60.0, 1: 90.0}[cap]


def throttled(cap: int) -> float:
    return 25.0


def test_a_steady_pace_at_the_floor_changes_nothing() -> None:
    guard = FloorGuard(TERMS)
    assert list(changes(guard, lambda cap: 40.0, 86_400)) == []
    assert guard.findings() == ()


def test_five_minutes_under_the_floor_lower_the_cap_by_one_and_a_gain_keeps_it() -> None:
    guard = FloorGuard(TERMS)
    [(at_s, change)] = changes(guard, slower_by_streams, 12 * 3600)
    assert (at_s, change.before, change.cap, change.why) == (300.0, 4, 3, Why.SLOW)
    assert change.text == (
        "Streams ran at 36.0 tok/s for 5 min, under the floor of 40: 3 streams may run at once from now on."
    )
    assert guard.findings() == ()


def test_under_the_floor_for_less_than_five_minutes_is_nothing() -> None:
    guard = FloorGuard(TERMS)
    for now_s in range(0, 3600, 10):
        assert guard.handle(now_s, pace(45.0 if now_s % 300 == 290 else 30.0), TERMS) is None


def test_a_lowering_that_does_not_help_is_put_back_and_becomes_a_finding() -> None:
    guard = FloorGuard(TERMS)
    [first, second] = changes(guard, throttled, 700)
    assert (first[0], first[1].cap) == (300.0, 3)
    assert (second[0], second[1].cap, second[1].why) == (600.0, 4, Why.NO_HELP)
    assert second[1].text.startswith("Fewer streams did not make them faster (25.0 tok/s with 4 at once, 25.0 with 3)")
    [finding] = guard.findings()
    assert finding.id == "engine.pace"
    assert "nvidia-smi -q -d PERFORMANCE" in finding.remedy
    assert "moe-appliance preflight" in finding.remedy


def test_what_did_not_help_is_tried_more_and_more_rarely() -> None:
    guard = FloorGuard(TERMS)
    lowered = [at_s for at_s, change in changes(guard, throttled, 7 * 86_400) if change.why is Why.SLOW]
    waits = [later - earlier for earlier, later in pairwise(lowered)]
    assert waits[:4] == [300 + windows * 300 + LOOK_S for windows in (2, 4, 8, 16)]
    assert max(waits) <= (PATIENCE_MAX + 1) * 300 + LOOK_S
    assert len(lowered) < 40


def test_a_cap_of_one_is_a_finding_at_once() -> None:
    guard = FloorGuard(replace(TERMS, streams=1))
    terms = replace(TERMS, streams=1)
    assert list(changes(guard, throttled, 310, terms=terms)) == []
    [finding] = guard.findings()
    assert "one stream at a time" in finding.observed
    assert guard.cap == 1


def test_the_finding_ends_when_the_floor_is_held_for_a_window() -> None:
    guard = FloorGuard(TERMS)
    list(changes(guard, throttled, 700))
    list(changes(guard, lambda cap: 50.0, 980, since_s=700))
    assert guard.findings()
    list(changes(guard, lambda cap: 50.0, 1020, since_s=980))
    assert guard.findings() == ()


def test_it_is_raised_when_the_engine_is_fast_again_and_not_before() -> None:
    guard = FloorGuard(TERMS)
    list(changes(guard, slower_by_streams, 3600))
    assert guard.cap == 3
    [(at_s, change)] = changes(guard, lambda cap: {3: 60.0, 4: 50.0}[cap], 7200, since_s=3600)
    assert (at_s, change.cap, change.why) == (4200.0, 4, Why.FASTER)


def test_a_box_that_went_quiet_after_a_lowering_is_raised_again() -> None:
    guard = FloorGuard(TERMS)
    list(changes(guard, lambda cap: {4: 36.0, 3: 127.0}[cap], 620))
    assert guard.cap == 3
    [(_, change)] = changes(guard, lambda cap: 60.0, 2000, since_s=620)
    assert change.why is Why.FASTER


def test_a_raise_that_must_be_lowered_again_waits_twice_as_long() -> None:
    guard = FloorGuard(TERMS)
    found = list(changes(guard, lambda cap: {4: 38.0, 3: 61.0}[cap], 86_400))
    raised = [at_s for at_s, change in found if change.why is Why.FASTER]
    waits = [later - earlier for earlier, later in pairwise(raised)]
    assert waits == sorted(waits)
    assert len(raised) <= 8


def test_idle_time_and_few_replies_are_no_evidence() -> None:
    guard = FloorGuard(TERMS)
    for now_s in range(0, 7200, 10):
        assert guard.handle(now_s, pace(None, 0) if now_s % 20 else pace(20.0, 4), TERMS) is None
    guard = FloorGuard(TERMS)
    list(changes(guard, throttled, 310))
    assert guard.cap == 3
    assert list(changes(guard, lambda cap: None, 4000, since_s=310)) == [], "nothing to judge it by"
    [(at_s, change)] = changes(guard, throttled, 4100, since_s=4000)
    assert (at_s, change.why) == (4000.0, Why.NO_HELP)


def test_a_window_of_0_turns_it_off_and_the_cap_is_the_validated_one() -> None:
    guard, off = FloorGuard(TERMS), replace(TERMS, window_s=0.0)
    list(changes(guard, throttled, 310))
    change = guard.handle(320.0, pace(25.0), off)
    assert change is not None
    assert (change.cap, change.why, guard.cap) == (4, Why.ANEW, 4)
    assert list(changes(guard, throttled, 86_400, since_s=320, terms=off)) == []
    no_floor = replace(TERMS, floor_tok_per_s=0.0)
    assert list(changes(FloorGuard(no_floor), throttled, 3600, terms=no_floor)) == []


def test_another_start_of_the_engine_begins_anew() -> None:
    guard = FloorGuard(TERMS)
    list(changes(guard, throttled, 700))
    other = replace(TERMS, start_id="two", streams=2)
    assert guard.handle(700.0, pace(25.0), other) is None
    assert (guard.cap, guard.findings()) == (2, ())
    [(at_s, change)] = changes(guard, throttled, 1020, since_s=710, terms=other)
    assert (at_s, change.cap) == (1010.0, 1)


LOOKS = st.lists(st.tuples(st.sampled_from([5.0, 60.0, 150.0, 400.0]), st.none() | st.floats(1, 200)), max_size=200)


@given(LOOKS, st.integers(1, 6))
def test_whatever_the_pace_the_cap_is_in_bounds_and_changes_once_a_window(
    looks: list[tuple[float, float | None]], streams: int
) -> None:
    terms = replace(TERMS, streams=streams)
    guard, now_s, changed = FloorGuard(terms), 0.0, []
    for step_s, tok_per_s in looks:
        now_s += step_s
        before = guard.cap
        change = guard.handle(now_s, pace(tok_per_s), terms)
        assert 1 <= guard.cap <= streams
        assert (guard.cap != before) == (change is not None)
        if change is not None:
            assert abs(change.cap - change.before) == 1
            changed.append(now_s)
    assert all(later - earlier >= 300 for earlier, later in pairwise(changed))


@given(st.lists(st.floats(40, 200), max_size=100))
def test_a_pace_above_the_floor_never_changes_anything(paces: list[float]) -> None:
    guard = FloorGuard(TERMS)
    assert all(guard.handle(at * 100.0, pace(own), TERMS) is None for at, own in enumerate(paces))


def test_a_time_under_the_floor_does_not_go_on_over_a_pause() -> None:
    guard = FloorGuard(TERMS)
    for now_s in range(0, 280, 10):
        assert guard.handle(now_s, pace(30.0), TERMS) is None
    assert guard.handle(280.0, pace(30.0, replies=4), TERMS) is None, "too few answers to say anything"
    for now_s in range(290, 590, 10):
        assert guard.handle(now_s, pace(30.0), TERMS) is None
    change = guard.handle(590.0, pace(30.0), TERMS)
    assert change is not None
    assert change.why is Why.SLOW
