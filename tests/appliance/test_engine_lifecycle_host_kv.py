"""The engine's state machine and the KV tier in host RAM: what was not proven is left out of the next starts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from appliance.engine.lifecycle import handle
from appliance.engine.lifecycle_events import (
    Effect,
    Event,
    Exited,
    HealthOk,
    HostKvUnproven,
    Kill,
    Prepare,
    Prepared,
    Publish,
    RestartAsked,
    Spawn,
    Spawned,
    StartAsked,
    StopAsked,
    TimerDue,
    WarmUpDone,
)
from appliance.engine.lifecycle_state import State
from gateway.state import Cause, Phase

A = Cause(id="engine.a", title="A.", remedy="a")
UNPROVEN = Cause(id="engine.host_kv", title="it did not come back", remedy="look")
UP: tuple[Event, ...] = (StartAsked(), Prepared(), Spawned(7, "s1", True), HealthOk())


def play(*events: Event, state: State | None = None) -> tuple[State, tuple[Effect, ...]]:
    state = state or State()
    effects: tuple[Effect, ...] = ()
    for event in events:
        state, effects = handle(state, event, 0.0)
    return state, effects


def spawn_of(state: State) -> Spawn:
    """The spawn of the next start."""
    _, effects = play(Prepared(), state=state)
    (spawn,) = (effect for effect in effects if isinstance(effect, Spawn))
    return spawn


def test_a_start_has_the_tier_until_something_speaks_against_it() -> None:
    assert spawn_of(play(StartAsked())[0]) == Spawn(host_kv=True)
    ready, _ = play(*UP, WarmUpDone(("m",), 8192, 50.0))
    assert (ready.phase, ready.host_kv, ready.host_kv_off) == (Phase.READY, True, None)


def test_an_engine_whose_tier_is_not_proven_is_started_again_without_it_at_once_and_not_as_a_crash() -> None:
    state, effects = play(*UP, HostKvUnproven(UNPROVEN, "s1"))
    assert (state.phase, effects) == (Phase.STOPPING, (Kill(UNPROVEN), Publish()))
    state, effects = play(Exited(A), state=state)
    assert effects == (Prepare(), Publish())
    assert (state.phase, state.crashes, state.restarts, state.host_kv) == (Phase.PREPARING, 0, 0, False)
    assert spawn_of(state) == Spawn(host_kv=False)
    ready, _ = play(Prepared(), Spawned(8, "s2"), HealthOk(), WarmUpDone(("m",), 8192, 50.0), state=state)
    assert (ready.phase, ready.host_kv, ready.host_kv_off) == (Phase.READY, False, UNPROVEN)


def test_who_stops_the_engine_meanwhile_has_it_stopped() -> None:
    state, _ = play(*UP, HostKvUnproven(UNPROVEN), StopAsked(), Exited(A))
    assert (state.phase, state.host_kv_off) == (Phase.OFF, UNPROVEN)
    assert spawn_of(play(StartAsked(), state=state)[0]) == Spawn(host_kv=False)


@pytest.mark.parametrize("where", [(), (WarmUpDone(("m",), 8192, 50.0),), (StopAsked(),), (Exited(A),)])
def test_only_a_restart_that_somebody_asks_for_tries_the_tier_again(where: tuple[Event, ...]) -> None:
    off = replace(play(*UP)[0], host_kv=False, host_kv_off=UNPROVEN)
    state, _ = play(*where, RestartAsked(), Exited(A), state=off)
    assert (state.phase, state.host_kv_off) == (Phase.PREPARING, None)


def crashed(up: int, cause: Cause, state: State | None = None) -> State:
    """After a run that came `up` events far and ended."""
    if state is None:
        return play(*UP[:up], Exited(cause))[0]
    due = handle(state, TimerDue(), state.retry_at_s or 0.0)[0]
    return play(*UP[1:up], Exited(cause), state=due)[0]


def test_an_engine_that_ends_at_its_warm_up_loses_the_tier_and_is_started_again() -> None:
    state = crashed(4, A)
    assert (state.phase, state.crashes) == (Phase.BACKOFF, 1)
    assert state.host_kv_off is not None
    assert (state.host_kv_off.id, state.host_kv_off.title) == ("engine.host_kv", "the engine ended with it: A.")


def test_an_engine_that_says_that_it_cannot_have_the_tier_loses_it() -> None:
    assert crashed(3, UNPROVEN).host_kv_off == UNPROVEN


def test_the_tier_is_given_up_before_the_engine_is() -> None:
    state = crashed(3, A)
    state = crashed(3, A, state)
    assert (state.phase, state.host_kv_off) == (Phase.BACKOFF, None)
    state = crashed(3, A, state)
    assert state.phase is Phase.BACKOFF
    assert state.host_kv_off is not None
    without: list[Phase] = []
    for _ in range(3):
        state = handle(state, TimerDue(), state.retry_at_s or 0.0)[0]
        state = play(Prepared(), Spawned(9, "s3"), Exited(A), state=state)[0]
        without.append(state.phase)
    assert without == [Phase.BACKOFF, Phase.BACKOFF, Phase.FAILED]


def test_an_engine_without_a_tier_loses_none() -> None:
    state, _ = play(StartAsked(), Prepared(), Spawned(7, "s1"), HealthOk(), Exited(A))
    assert state.host_kv_off is None
