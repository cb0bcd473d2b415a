"""The engine's state machine: anything in any order."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from appliance.engine.lifecycle import BACKOFF_MAX_S, handle
from appliance.engine.lifecycle_events import (
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
from appliance.engine.lifecycle_state import After, State
from gateway.state import Cause
from tests.appliance.test_engine_lifecycle import BACK, BOOT, FAIL, FINAL, ST, STOP, UP, A, B, R, W

CAUSES = st.sampled_from([A, B, FINAL])
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
    st.builds(HealthLost, CAUSES, IDS, ended=st.booleans()),
    st.builds(StartFailed, CAUSES, IDS),
    st.builds(MemoryHeld, CAUSES),
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
        self.failed |= self.state.phase in (FAIL, BOOT)

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
        assert state.phase not in (FAIL, BACK, BOOT) or state.cause is not None
        assert state.phase is not BACK or state.host_kv_off is not None or state.cause is None or state.cause.retry
        assert state.phase is not STOP or state.after not in (After.CRASH, After.DIED) or state.cause is not None
        assert state.same_cause <= 3
        assert not state.host_kv or state.phase in (ST, W, R, STOP)


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
