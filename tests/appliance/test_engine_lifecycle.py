"""The engine's state machine: every pair once by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.engine.lifecycle import (
    BACKOFF_MAX_S,
    LEFT,
    RESTART_ASKED,
    STABLE_HUNG_S,
    STOP_ASKED,
    TABLE,
    _ignored,
    backoff_s,
    handle,
)
from appliance.engine.lifecycle_events import (
    Effect,
    Event,
    Exited,
    HealthLost,
    HealthOk,
    HostKvUnproven,
    Kill,
    MemoryHeld,
    Prepare,
    Prepared,
    PrepareFailed,
    PrepareStarted,
    Progress,
    Publish,
    Refused,
    RestartAsked,
    Served,
    SetTimer,
    Spawn,
    Spawned,
    StartAsked,
    StartFailed,
    StartTimeout,
    StopAsked,
    StopDone,
    TimerDue,
    WarmUp,
    WarmUpDone,
    WarmUpFailed,
)
from appliance.engine.lifecycle_state import State
from appliance.engine.vllm import nodes
from gateway.state import Cause, EngineAbilities, Phase

A = Cause(id="engine.a", title="A.", remedy="a")
B = Cause(id="engine.b", title="B.", remedy="b")
FINAL = Cause(id="engine.final", title="F.", remedy="f", retry=False)
SHOWN = EngineAbilities(dialects=("/v1/chat/completions",), counters={"/v1/chat/completions": "/tokenize"}, images=True)
DONE = WarmUpDone(("m",), 8192, 50.0, SHOWN)
UP: tuple[Event, ...] = (StartAsked(), Prepared(), Spawned(7, "s1"), HealthOk(), DONE)


def play(*events: Event, state: State | None = None, now_s: float = 0.0) -> tuple[State, tuple[Effect, ...]]:
    """The state after `events`, and the effects of the last one."""
    state = state or State()
    effects: tuple[Effect, ...] = ()
    for event in events:
        state, effects = handle(state, event, now_s)
    return state, effects


AT: dict[Phase, State] = {
    Phase.OFF: State(),
    Phase.REFUSED: play(StartAsked(), Refused((A,)))[0],
    Phase.PREPARING: play(*UP[:1])[0],
    Phase.STARTING: play(*UP[:3])[0],
    Phase.WARMING: play(*UP[:4])[0],
    Phase.READY: play(*UP)[0],
    Phase.STOPPING: play(*UP, StopAsked())[0],
    Phase.BACKOFF: play(*UP, Exited(A))[0],
    Phase.NEEDS_REBOOT: play(StartAsked(), MemoryHeld(A))[0],
    Phase.FAILED: handle(replace(play(*UP)[0], cause_id=A.id, same_cause=2), Exited(A), 0.0)[0],
}
P, ST, W, R = Phase.PREPARING, Phase.STARTING, Phase.WARMING, Phase.READY
STOP, BACK = Phase.STOPPING, Phase.BACKOFF
OFF, REF, FAIL, BOOT = Phase.OFF, Phase.REFUSED, Phase.FAILED, Phase.NEEDS_REBOOT

# event -> {phase: (next phase, effects without Publish)}; a phase that is not named ignores the event.
EXPECTED: dict[Event, dict[Phase, tuple[Phase, tuple[type, ...]]]] = {
    StartAsked(): {**dict.fromkeys((OFF, REF, BACK, FAIL, BOOT), (P, (Prepare,))), STOP: (STOP, ())},
    RestartAsked(): {
        **dict.fromkeys((OFF, REF, BACK, FAIL, BOOT), (P, (Prepare,))),
        **dict.fromkeys((P, ST, W, R), (STOP, (Kill,))),
        STOP: (STOP, ()),
    },
    StopAsked(): {
        **dict.fromkeys((REF, BACK, FAIL, BOOT), (OFF, ())),
        **dict.fromkeys((P, ST, W, R), (STOP, (Kill,))),
        STOP: (STOP, ()),
    },
    Refused((A, B)): dict.fromkeys((OFF, P, REF), (REF, ())),
    PrepareStarted(): {P: (P, ())},
    Prepared(): {P: (ST, (Spawn,))},
    MemoryHeld(A): {P: (BOOT, ())},
    PrepareFailed(A): {P: (BACK, (SetTimer,))},
    Progress("loading", 0.5): {P: (P, ()), ST: (ST, ()), W: (W, ())},
    TimerDue(): {BACK: (P, (Prepare,))},
    Spawned(9, "s2"): {ST: (ST, ()), STOP: (STOP, (Kill,))},
    HealthOk(): {ST: (W, (WarmUp,))},
    DONE: {W: (R, ())},
    Served(): {R: (R, ())},
    WarmUpFailed(A): {W: (STOP, (Kill,))},
    HostKvUnproven(A): {W: (STOP, (Kill,))},
    HealthLost(A): {R: (STOP, (Kill,))},
    StartFailed(A): {ST: (STOP, (Kill,))},
    StartTimeout(60): dict.fromkeys((ST, W), (STOP, (Kill,))),
    Exited(A): {**dict.fromkeys((ST, W, R), (BACK, (SetTimer,))), STOP: (OFF, ())},
    StopDone(): {},  # the STOPPING of AT has an engine alive; see the test of a cancelled preparation
}


def test_every_event_is_expected_and_in_the_table() -> None:
    assert {type(event) for event in EXPECTED} == set(get_args(Event)) == set(TABLE)
    assert all(set(row) == set(Phase) for row in TABLE.values())
    assert {phase: state.phase for phase, state in AT.items()} == {phase: phase for phase in Phase}


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("event", EXPECTED, ids=lambda event: type(event).__name__)
def test_every_pair(event: Event, phase: Phase) -> None:
    before = AT[phase]
    after, effects = handle(before, event, 100.0)
    expected = EXPECTED[event].get(phase)
    if expected is None:
        assert (after, effects) == (before, ())
        if not (phase is STOP and isinstance(event, StopDone)):
            assert TABLE[type(event)][phase] is _ignored
        return
    assert after.phase is expected[0]
    assert tuple(type(effect) for effect in effects if effect != Publish()) == expected[1]
    assert (Publish() in effects) != isinstance(event, Served), "nobody is shown who was served"
    assert (after.since_s == 100.0) == (after.phase is not before.phase or isinstance(event, Refused))


def test_a_start_goes_through_all_phases_and_shows_what_was_measured() -> None:
    state, _ = play(*UP, now_s=5.0)
    assert (state.phase, state.pid, state.start_id, state.ready_at_s) == (R, 7, "s1", 5.0)
    assert (state.models, state.context_tokens, state.warm_tok_per_s) == (("m",), 8192, 50.0)
    assert state.abilities == SHOWN


def test_what_an_engine_showed_is_forgotten_with_its_run() -> None:
    assert [phase for phase, state in AT.items() if state.abilities != EngineAbilities()] == [Phase.READY]
    again, _ = play(TimerDue(), Prepared(), Spawned(8, "s2"), HealthOk(), state=AT[Phase.BACKOFF], now_s=99.0)
    assert (again.phase, again.abilities) == (Phase.WARMING, EngineAbilities())


def test_health_before_the_spawn_is_somebody_elses() -> None:
    assert play(StartAsked(), Prepared(), HealthOk())[0].phase is ST


def test_an_external_engine_has_no_pid() -> None:
    assert play(StartAsked(), Prepared(), Spawned(None, "s"), HealthOk())[0].phase is W


def test_events_of_a_former_start_are_ignored() -> None:
    for event in (HealthOk("s0"), StartTimeout(60, "s0")):
        assert handle(AT[ST], event, 0.0) == (AT[ST], ())
    assert handle(AT[R], HealthLost(A, "s0"), 0.0) == (AT[R], ())
    assert handle(AT[R], HealthLost(A, "s1"), 0.0)[0].phase is STOP


def crash_again(state: State, cause: Cause, now_s: float) -> State:
    if state.phase is BACK:
        state, _ = handle(state, TimerDue(), state.retry_at_s or 0.0)
    return play(*UP[1:4], Exited(cause), state=state, now_s=now_s)[0]


def test_the_same_cause_three_times_is_failed_and_kept() -> None:
    state = play(StartAsked())[0]
    phases = []
    for _ in range(3):
        state = crash_again(state, A, 10.0)
        phases.append(state.phase)
    assert phases == [BACK, BACK, FAIL]
    assert state.cause == A
    assert handle(state, TimerDue(), 1e9) == (state, ())


def test_another_boxs_end_is_never_this_ones_failure() -> None:
    state = play(StartAsked())[0]
    for _ in range(5):
        state = crash_again(state, Cause(id=LEFT, title="t", remedy="r"), 10.0)
        assert state.phase is BACK
    assert nodes.left_alone(nodes.Nodes(), "how").id == LEFT


@pytest.mark.parametrize("up", [UP[:3], UP[:4], UP])
def test_a_cause_that_the_next_start_would_meet_again_is_failed_at_once(up: tuple[Event, ...]) -> None:
    state, effects = play(*up, Exited(FINAL))
    assert (state.phase, state.cause, effects) == (FAIL, FINAL, (Publish(),))
    assert play(RestartAsked(), state=state)[1] == (Prepare(), Publish())


def test_a_killed_engine_is_failed_at_once_when_the_cause_says_so() -> None:
    assert play(*UP[:4], WarmUpFailed(FINAL), Exited(A))[0].phase is FAIL


def test_a_preparation_that_would_fail_again_is_failed_at_once() -> None:
    assert play(StartAsked(), PrepareFailed(FINAL))[0].phase is FAIL


def test_of_an_engine_that_died_the_exit_knows_the_cause() -> None:
    state, effects = play(*UP, HealthLost(A, ended=True))
    assert (state.phase, state.cause, effects[0]) == (STOP, A, Kill(A))
    assert play(Exited(B), state=state)[0].cause == B
    assert play(StopAsked(), Exited(B), state=state)[0].phase is OFF
    assert play(RestartAsked(), Exited(B), state=state)[0].phase is P


def test_memory_that_is_not_given_back_starts_nothing_until_somebody_asks() -> None:
    state = AT[BOOT]
    for event in (TimerDue(), Prepared(), Exited(B), StopDone()):
        assert handle(state, event, 1e9) == (state, ())
    assert play(RestartAsked(), state=state)[0].phase is P


def test_changing_causes_back_off_up_to_a_minute_and_never_fail() -> None:
    state = play(StartAsked())[0]
    waits = []
    for turn in range(9):
        state = crash_again(state, (A, B)[turn % 2], 1000.0)
        waits.append((state.retry_at_s or 0.0) - 1000.0)
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert state.restarts == 8


def test_the_timer_is_not_believed_when_it_is_early() -> None:
    state, effects = play(*UP, Exited(A), now_s=10.0)
    assert effects == (SetTimer(11.0), Publish())
    assert handle(state, TimerDue(), 10.5) == (state, (SetTimer(11.0),))
    assert handle(state, TimerDue(), 11.0)[0].phase is P


@pytest.mark.parametrize(("ready_s", "crashes"), [(299.0, 3), (300.0, 1)])
@pytest.mark.parametrize("end", [(Exited(B),), (HealthLost(B), Exited(A))])
def test_a_long_ready_run_clears_the_counts(ready_s: float, crashes: int, end: tuple[Event, ...]) -> None:
    state = crash_again(crash_again(play(StartAsked())[0], A, 0.0), A, 0.0)
    ready = play(TimerDue(), *UP[1:], Served(), state=state, now_s=100.0)[0]
    after = play(*end, state=ready, now_s=100.0 + ready_s)[0]
    assert (after.phase, after.crashes, after.cause) == (BACK, crashes, B)
    assert after.retry_at_s == 100.0 + ready_s + backoff_s(crashes)


@pytest.mark.parametrize("between_s", [360.0, 86_400.0])
@pytest.mark.parametrize("end", [(Exited(A),), (HealthLost(A, ended=True), Exited(A))])
def test_an_engine_that_each_first_request_ends_is_failed_however_seldom_somebody_asks(
    between_s: float, end: tuple[Event, ...]
) -> None:
    state, now_s, phases = play(StartAsked())[0], 0.0, []
    for _ in range(3):
        again = (TimerDue(),) if state.phase is BACK else ()
        ready = play(*again, *UP[1:], state=state, now_s=now_s + 60.0)[0]
        assert ready.phase is R
        now_s += between_s
        state = play(*end, state=ready, now_s=now_s)[0]
        phases.append(state.phase)
    assert phases == [BACK, BACK, FAIL]


def test_one_that_served_somebody_each_time_is_started_for_ever() -> None:
    state, now_s = play(StartAsked())[0], 0.0
    for _ in range(9):
        again = (TimerDue(),) if state.phase is BACK else ()
        ready = play(*again, *UP[1:], Served("s1"), state=state, now_s=now_s + 60.0)[0]
        now_s += 400.0
        state = play(Exited(A), state=ready, now_s=now_s)[0]
        assert (state.phase, state.crashes) == (BACK, 1)


def test_what_a_former_start_served_says_nothing_of_this_one() -> None:
    assert not handle(AT[R], Served("s0"), 0.0)[0].served
    ended = play(Served("s1"), Exited(A), state=AT[R])[0]
    again = play(TimerDue(), Prepared(), Spawned(8, "s2"), HealthOk(), DONE, state=ended, now_s=9.0)[0]
    assert (again.phase, again.start_id, again.served) == (R, "s2", False)


def test_a_part_of_another_box_is_to_answer_nobody_and_counts_by_its_time_alone() -> None:
    part = play(*UP[:4], WarmUpDone((), 8192, None))[0]
    counted = replace(part, cause_id=A.id, same_cause=2, crashes=2)
    assert play(Exited(A), state=counted, now_s=299.0)[0].phase is FAIL
    assert play(Exited(A), state=counted, now_s=300.0)[0].crashes == 1


@pytest.mark.parametrize(("ready_s", "phase"), [(STABLE_HUNG_S - 1, FAIL), (STABLE_HUNG_S, BACK)])
def test_an_engine_that_hangs_again_and_again_is_given_up_however_long_that_takes_to_see(
    ready_s: float, phase: Phase
) -> None:
    hung, state, now_s = A.model_copy(update={"id": "engine.hung"}), play(StartAsked())[0], 0.0
    for _ in range(3):
        now_s = max(now_s, state.retry_at_s or 0.0)
        state = play(*((TimerDue(),) if state.phase is BACK else ()), *UP[1:], Served(), state=state, now_s=now_s)[0]
        now_s += ready_s
        state = play(HealthLost(hung), Exited(B), state=state, now_s=now_s)[0]
    assert state.phase is phase


@pytest.mark.parametrize(
    ("up", "kill", "id_"),
    [
        (UP[:3], StartTimeout(60), "engine.never_ready"),
        (UP[:4], StartTimeout(60), "engine.never_ready"),
        (UP[:3], StartFailed(B), "engine.b"),
        (UP[:4], WarmUpFailed(B), "engine.b"),
        (UP, HealthLost(B), "engine.b"),
    ],
)
def test_a_killed_engine_keeps_the_cause_of_the_kill(up: tuple[Event, ...], kill: Event, id_: str) -> None:
    state, effects = play(*up, kill)
    assert state.phase is STOP
    assert isinstance(effects[0], Kill)
    assert state.cause == effects[0].cause
    state, effects = play(Exited(A), state=state)
    assert state.phase is BACK
    assert state.cause is not None
    assert (state.cause.id, state.cause_id, state.crashes) == (id_, id_, 1)


def test_the_limit_is_named_when_it_is_told() -> None:
    state = play(*UP[:3], StartTimeout(90))[0]
    assert state.cause is not None
    assert "within 90 s" in state.cause.title


def test_a_stop_is_no_crash() -> None:
    state, effects = play(*UP, StopAsked())
    assert effects == (Kill(STOP_ASKED), Publish())
    state, _ = play(StopDone(), Exited(A), StopDone(), state=state)
    assert (state.phase, state.cause, state.crashes, state.pid) == (OFF, None, 0, None)


def test_a_stop_of_a_dying_engine_leaves_it_off() -> None:
    assert play(*UP, HealthLost(A), StopAsked(), Exited(A))[0].phase is OFF


def test_the_last_wish_counts() -> None:
    for wishes, phase in (
        ((RestartAsked(), StopAsked()), OFF),
        ((StopAsked(), StartAsked()), P),
        ((StopAsked(), RestartAsked()), P),
        ((RestartAsked(), StopAsked(), StartAsked()), P),
    ):
        assert play(*UP, *wishes, Exited(A))[0].phase is phase


def test_a_cancelled_preparation_ends_with_stop_done() -> None:
    state, effects = play(StartAsked(), StopAsked())
    assert effects[0] == Kill(STOP_ASKED)
    assert play(Prepared(), Exited(A), state=state)[0] == state
    assert play(StopDone(), state=state)[0].phase is OFF
    state, effects = play(StartAsked(), RestartAsked())
    assert effects[0] == Kill(RESTART_ASKED)
    assert play(StopDone(), state=state)[1] == (Prepare(), Publish())


def test_a_kill_that_came_before_the_process_is_repeated() -> None:
    for wish, cause in ((StopAsked(), STOP_ASKED), (RestartAsked(), RESTART_ASKED)):
        state, effects = play(StartAsked(), Prepared(), wish, Spawned(8, "s2"))
        assert effects == (Kill(cause), Publish())
        assert state.pid == 8


@pytest.mark.parametrize("phase", Phase)
def test_a_restart_from_anywhere_starts_with_clean_counts(phase: Phase) -> None:
    used = replace(AT[phase], crashes=5, cause_id="engine.a", same_cause=2)
    state, _ = play(RestartAsked(), Exited(A), StopDone(), state=used)
    assert (state.phase, state.crashes, state.same_cause, state.cause) == (P, 0, 0, None)


def test_a_refusal_keeps_all_causes_until_the_next_start() -> None:
    state = AT[REF]
    assert (state.cause, state.causes) == (A, (A,))
    assert play(StartAsked(), state=state)[0].causes == ()
    assert play(StartAsked(), Refused(()))[0].cause is None


def test_the_same_progress_is_published_once() -> None:
    state, effects = play(Progress("x", 0.1), state=AT[ST])
    assert effects == (Publish(),)
    assert play(Progress("x", 0.1), state=state) == (state, ())


@given(st.integers(1, 10_000))
def test_backoff_is_bounded_and_grows(crashes: int) -> None:
    assert 1.0 <= backoff_s(crashes) <= backoff_s(crashes + 1) <= BACKOFF_MAX_S
