"""The engine's state machine: every pair once by hand, then anything in any order."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from appliance.engine.lifecycle import (
    BACKOFF_MAX_S,
    RESTART_ASKED,
    STOP_ASKED,
    TABLE,
    After,
    State,
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
    Prepare,
    Prepared,
    PrepareFailed,
    PrepareStarted,
    Progress,
    Publish,
    Refused,
    RestartAsked,
    SetTimer,
    Spawn,
    Spawned,
    StartAsked,
    StartTimeout,
    StopAsked,
    StopDone,
    TimerDue,
    WarmUp,
    WarmUpDone,
    WarmUpFailed,
)
from gateway.state import Cause, EngineAbilities, Phase

A = Cause(id="engine.a", title="A.", remedy="a")
B = Cause(id="engine.b", title="B.", remedy="b")
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
    Phase.FAILED: handle(replace(play(*UP)[0], cause_id=A.id, same_cause=2), Exited(A), 0.0)[0],
}
P, ST, W, R = Phase.PREPARING, Phase.STARTING, Phase.WARMING, Phase.READY
STOP, BACK = Phase.STOPPING, Phase.BACKOFF
OFF, REF, FAIL = Phase.OFF, Phase.REFUSED, Phase.FAILED

# event -> {phase: (next phase, effects without Publish)}; a phase that is not named ignores the event.
EXPECTED: dict[Event, dict[Phase, tuple[Phase, tuple[type, ...]]]] = {
    StartAsked(): {**dict.fromkeys((OFF, REF, BACK, FAIL), (P, (Prepare,))), STOP: (STOP, ())},
    RestartAsked(): {
        **dict.fromkeys((OFF, REF, BACK, FAIL), (P, (Prepare,))),
        **dict.fromkeys((P, ST, W, R), (STOP, (Kill,))),
        STOP: (STOP, ()),
    },
    StopAsked(): {
        **dict.fromkeys((REF, BACK, FAIL), (OFF, ())),
        **dict.fromkeys((P, ST, W, R), (STOP, (Kill,))),
        STOP: (STOP, ()),
    },
    Refused((A, B)): dict.fromkeys((OFF, P, REF), (REF, ())),
    PrepareStarted(): {P: (P, ())},
    Prepared(): {P: (ST, (Spawn,))},
    PrepareFailed(A): {P: (BACK, (SetTimer,))},
    Progress("loading", 0.5): {P: (P, ()), ST: (ST, ()), W: (W, ())},
    TimerDue(): {BACK: (P, (Prepare,))},
    Spawned(9, "s2"): {ST: (ST, ()), STOP: (STOP, (Kill,))},
    HealthOk(): {ST: (W, (WarmUp,))},
    DONE: {W: (R, ())},
    WarmUpFailed(A): {W: (STOP, (Kill,))},
    HostKvUnproven(A): {W: (STOP, (Kill,))},
    HealthLost(A): {R: (STOP, (Kill,))},
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
    assert Publish() in effects
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
    ready = play(TimerDue(), *UP[1:], state=state, now_s=100.0)[0]
    after = play(*end, state=ready, now_s=100.0 + ready_s)[0]
    assert (after.phase, after.crashes, after.cause) == (BACK, crashes, B)
    assert after.retry_at_s == 100.0 + ready_s + backoff_s(crashes)


@pytest.mark.parametrize(
    ("up", "kill", "id_"),
    [
        (UP[:3], StartTimeout(60), "engine.never_ready"),
        (UP[:4], StartTimeout(60), "engine.never_ready"),
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


CAUSES = st.sampled_from([A, B])
IDS = st.sampled_from(["", "s1", "s2", "s3"])
EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.sampled_from([StartAsked(), RestartAsked(), StopAsked(), PrepareStarted(), Prepared(), StopDone(), TimerDue()]),
    st.builds(Refused, st.tuples(CAUSES)),
    st.builds(PrepareFailed, CAUSES),
    st.builds(Progress, st.just("x"), st.none() | st.floats(0, 1)),
    st.builds(Spawned, st.none() | st.integers(2, 99), st.sampled_from(["s1", "s2", "s3"]), st.booleans()),
    st.builds(HealthOk, IDS),
    st.builds(WarmUpDone, st.just(("m",)), st.none(), st.none(), IDS),
    st.builds(WarmUpFailed, CAUSES, IDS),
    st.builds(HostKvUnproven, CAUSES, IDS),
    st.builds(HealthLost, CAUSES, IDS),
    st.builds(StartTimeout, st.just(9.0), IDS),
    st.builds(Exited, CAUSES),
)


class AnyOrder(RuleBasedStateMachine):
    """Events in any order, sensible or not. What is watched are the effects alone."""

    def __init__(self) -> None:
        super().__init__()
        self.state = State()
        self.now_s = 0.0
        self.alive = False
        self.healthy = False
        self.warm = False
        self.failed = False

    @initialize(up=st.integers(0, len(UP)))
    def start(self, up: int) -> None:
        for event in UP[:up]:
            self.happen(event)

    @rule(event=EVENTS, later_s=st.sampled_from([0.0, 0.5, 1.0, 61.0, 301.0]))
    def anything(self, event: Event, later_s: float) -> None:
        self.now_s += later_s
        self.happen(event)

    @rule(cause=CAUSES)
    def come_up_and_crash(self, cause: Cause) -> None:
        self.now_s += BACKOFF_MAX_S
        for event in (TimerDue(), Prepared(), Spawned(5, "s1"), HealthOk(), Exited(cause)):
            self.happen(event)

    def happen(self, event: Event) -> None:
        if isinstance(event, Exited):
            self.alive = False
        if isinstance(event, StartAsked | RestartAsked):
            self.failed = False
        self.healthy |= isinstance(event, HealthOk)
        self.warm |= isinstance(event, WarmUpDone) and self.healthy
        before = self.state
        self.state, effects = handle(before, event, self.now_s)
        assert len([e for e in effects if isinstance(e, Spawn | Prepare | Kill | WarmUp)]) <= 1
        assert self.state == before or Publish() in effects, "a change that nobody is told"
        for effect in effects:
            match effect:
                case Spawn(host_kv=host_kv):
                    assert host_kv == (before.host_kv_off is None)
                    assert not self.alive, "two Spawns without an Exited between"
                    assert not self.failed, "a Spawn after FAILED without being asked"
                    self.alive, self.healthy, self.warm = True, False, False
                case SetTimer(at_s):
                    assert 0 < at_s - self.now_s <= BACKOFF_MAX_S
                    assert at_s == self.state.retry_at_s
        self.failed |= self.state.phase is FAIL

    @invariant()
    def ready_was_healthy_and_warm(self) -> None:
        if self.state.phase is R:
            assert self.healthy
            assert self.warm

    @invariant()
    def the_state_fits_its_phase(self) -> None:
        state = self.state
        assert state.alive == self.alive
        assert state.alive or state.phase not in (ST, W, R)
        assert not state.alive or state.phase in (ST, W, R, STOP)
        assert (state.retry_at_s is not None) == (state.phase is BACK)
        assert (state.ready_at_s is not None) == (state.phase is R)
        assert state.phase not in (FAIL, BACK) or state.cause is not None
        assert state.after is not After.CRASH or state.phase is not STOP or state.cause is not None
        assert state.same_cause <= 3
        assert not state.host_kv or state.phase in (ST, W, R, STOP)


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
