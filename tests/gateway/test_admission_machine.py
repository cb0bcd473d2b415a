"""Tries to break the admission policy: a Hypothesis state machine of arrivals, departures, time and reloads.

The test keeps its own books from effects alone and never looks into the policy, except for `order()`, which is
part of what it promises. Times are sums of binary fractions: they are exact.
"""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from gateway.admission import BUDGET_PATIENCE_S, HELPER_PATIENCE_S, Admission
from gateway.admission_types import (
    Arrive,
    Close,
    Effect,
    Ended,
    Event,
    Granted,
    Hold,
    Leave,
    Limits,
    Open,
    Queued,
    Reason,
    Rejected,
    Reload,
    SeatLimit,
    SeatsBack,
    SeatsGone,
    Tick,
    TicketId,
)

STEPS_WANTED = 10_000
SEATS = st.sampled_from(["ana", "ben", "cleo", "dan"])
LIMITS = st.builds(
    Limits,
    streams=st.integers(1, 6),
    queue_max=st.sampled_from([0, 3, 12, 40, 40]),
    queue_per_seat=st.sampled_from([1, 4, 10]),
    queue_bytes=st.sampled_from([0, 50, 400]),
    queue_deadline_s=st.sampled_from([5.0, 30.0, 180.0, 180.0]),
    max_stream_s=st.sampled_from([0.0, 20.0, 1800.0]),
    seat_grace_s=st.sampled_from([0.0, 10.0]),
)
steps = Counter[str]()


@dataclass
class Known:
    """What the test knows of one request, from effects alone."""

    seat: str
    own_max: int | None
    body_bytes: int
    arrived_s: float
    number: int
    helper: bool = False
    over: bool = False
    over_until_s: float = 0.0
    granted_s: float | None = None
    ended: list[Reason] = field(default_factory=list)


class AdmissionMachine(RuleBasedStateMachine):
    @initialize(limits=LIMITS)
    def start(self, limits: Limits) -> None:
        self.now_s = 1000.0
        self.limits = limits
        self.policy = Admission(limits)
        self.open = True
        self.held = False
        self.waiting: dict[TicketId, Known] = {}
        self.running: dict[TicketId, Known] = {}
        self.own_max: dict[str, int | None] = {}
        self.gone: dict[str, float] = {}
        self.wake_at_s: float | None = None
        self.count = 0
        self.behind_a_raised_bound: Known | None = None
        """It raises its seat's bound by arriving: first that serves who waits already."""
        self.served_count = 0
        self.served_at: dict[str, int] = {}

    # What may happen

    @rule(
        arrivals=st.lists(st.tuples(SEATS, st.booleans(), st.booleans()), min_size=1, max_size=6),
        gap_s=st.sampled_from([0.0, 1 / 128]),
    )
    def crowd(self, arrivals: list[tuple[str, bool, bool]], gap_s: float) -> None:
        """Several at once: what makes a line."""
        for seat, helper, over in arrivals:
            self.arrive(seat, self.own_max.get(seat), 1, helper, over)
            self.now_s += gap_s

    @rule(
        seat=SEATS,
        own_max=st.sampled_from([None, None, 1, 2]),
        body_bytes=st.integers(0, 60),
        helper=st.booleans(),
        over=st.booleans(),
    )
    def arrives(self, seat: str, own_max: int | None, body_bytes: int, helper: bool, over: bool) -> None:
        self.arrive(seat, own_max, body_bytes, helper, over)

    def arrive(self, seat: str, own_max: int | None, body_bytes: int, helper: bool = False, over: bool = False) -> None:
        self.count += 1
        id = TicketId(self.count)
        before = self.own_max.get(seat)
        raised = before is not None and (own_max is None or own_max > before)
        self.own_max[seat] = own_max
        self.waiting[id] = Known(seat, own_max, body_bytes, self.now_s, self.count, helper, over)
        self.behind_a_raised_bound = self.waiting[id] if raised else None
        within = deepcopy(self.policy).handle(Arrive(id, seat, own_max, body_bytes, helper), self.now_s)
        wait_s = next((e.wait_s for e in within.effects if isinstance(e, Queued) and e.id == id), None)
        room_s = self.limits.queue_deadline_s - (wait_s or 0.0)
        patience_s = min(BUDGET_PATIENCE_S, self.limits.queue_deadline_s / 3, room_s)
        self.waiting[id].over_until_s = self.now_s + patience_s
        told = self.send(Arrive(id, seat, own_max, body_bytes, helper, over))
        refused = [effect for effect in told if isinstance(effect, Rejected)]
        assert refused == [effect for effect in within.effects if isinstance(effect, Rejected)], "refused for a budget"
        self.behind_a_raised_bound = None
        if id in self.waiting:
            assert self.open
            assert any(isinstance(effect, Queued) and effect.id == id for effect in told), "waits and was not told"
            of_seat = sum(known.seat == seat for known in self.waiting.values())
            kept = self.limits.queue_max // 4 if of_seat > 1 else 0
            assert len(self.waiting) <= self.limits.queue_max - kept, "queue bound"
            assert of_seat <= self.limits.queue_per_seat, "seat's queue bound"

    @rule(
        arrivals=st.lists(st.tuples(SEATS, st.booleans(), st.booleans()), min_size=3, max_size=8),
        patience_s=st.sampled_from([HELPER_PATIENCE_S, BUDGET_PATIENCE_S]),
        data=st.data(),
    )
    def a_crowd_that_waits_as_long_as_it_must(
        self, arrivals: list[tuple[str, bool, bool]], patience_s: float, data: st.DataObject
    ) -> None:
        self.crowd(arrivals, 0.0)
        self.time_passes(patience_s)
        self.crowd([("ana", False, False)], 0.0)
        if self.running:
            self.finish(data, 1)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), more=st.integers(0, 2))
    def finish(self, data: st.DataObject, more: int) -> None:
        for _ in range(min(1 + more, len(self.running))):
            id = data.draw(st.sampled_from(sorted(self.running)))
            del self.running[id]
            self.send(Leave(id))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(self.waiting)))
        del self.waiting[id]
        self.send(Leave(id))

    @rule()
    def leave_twice(self) -> None:
        self.send(Leave(TicketId(self.count + 1000)))

    @rule(seconds=st.sampled_from([1 / 1024, 0.5, 3.0, 11.0, 29.0, 31.0, 200.0]))
    def time_passes(self, seconds: float) -> None:
        """The shell ticks when the policy asked for it, so no wake-up is jumped over."""
        until_s = self.now_s + seconds
        while self.wake_at_s is not None and self.wake_at_s <= until_s:
            assert self.wake_at_s > self.now_s or self.wake_at_s == self.now_s
            self.now_s = max(self.now_s, self.wake_at_s)
            before = self.wake_at_s
            self.send(Tick())
            assert self.wake_at_s is None or self.wake_at_s > before, "a tick that is due must be used up"
        self.now_s = until_s

    @rule(limits=LIMITS)
    def reload(self, limits: Limits) -> None:
        self.limits = limits
        self.send(Reload(limits))

    @rule(seat=SEATS)
    def seat_gone(self, seat: str) -> None:
        self.gone.setdefault(seat, self.now_s)
        self.send(SeatsGone(frozenset({seat})))
        assert not any(known.seat == seat for known in self.waiting.values())

    @rule(seat=SEATS)
    def seat_back(self, seat: str) -> None:
        self.gone.pop(seat, None)
        self.send(SeatsBack(frozenset({seat})))

    @rule(seat=SEATS, own_max=st.sampled_from([None, 1, 3]))
    def seat_limit(self, seat: str, own_max: int | None) -> None:
        if any(known.seat == seat for known in [*self.waiting.values(), *self.running.values()]):
            self.own_max[seat] = own_max
            self.send(SeatLimit(seat, own_max))

    @rule(reason=st.sampled_from([Reason.ENGINE_LOST, Reason.DRAINING]), seats=st.lists(SEATS, max_size=2))
    def close_and_open(self, reason: Reason, seats: list[str]) -> None:
        self.open = False
        self.send(Close(reason))
        assert not self.waiting, "closing answers every waiter"
        for seat in seats:
            self.arrive(seat, None, 1)
        assert not self.waiting, "closed, and yet somebody waits"
        self.open = True
        self.send(Open())

    @rule(really=st.sampled_from([False, False, False, True]))
    def hold(self, really: bool) -> None:
        """Seldom: a held line moves as little as a closed one."""
        if not really:
            return
        before = set(self.waiting)
        self.held = True
        self.send(Hold(True))
        assert set(self.waiting) == before, "a hold sends nobody away"

    @precondition(lambda self: self.held)
    @rule()
    def unhold(self) -> None:
        self.held = False
        steps["unheld"] += bool(self.waiting)
        self.send(Hold(False))

    # The books

    def send(self, event: Event) -> tuple[Effect, ...]:
        steps["steps"] += 1
        decision = self.policy.handle(event, self.now_s)
        self.wake_at_s = decision.wake_at_s
        for effect in decision.effects:
            match effect:
                case Granted(id):
                    self.granted(id)
                case Rejected():
                    self.rejected(effect, event)
                case Queued(id, position, depth, wait_s):
                    assert id in self.waiting
                    assert (wait_s is None) is self.held, "a wait is predicted only while the line moves"
                    assert 1 <= position <= depth <= self.limits.queue_max
                case Ended(id, reason):
                    known = self.running[id]
                    known.ended.append(reason)
                    assert len(known.ended) == 1, "told once"
        self.nobody_who_may_run_waits()
        return decision.effects

    def granted(self, id: TicketId) -> None:
        known = self.waiting.pop(id)
        held = Counter(other.seat for other in self.running.values())
        assert self.open
        assert not self.held, "a ticket while they are held"
        assert len(self.running) < self.limits.streams, "cap"
        own = self.own_max[known.seat]
        assert own is None or held[known.seat] < own, "the seat's own bound"
        assert self.now_s - known.arrived_s < self.limits.queue_deadline_s, "past the deadline"
        rivals = [
            other
            for other in self.waiting.values()
            if self.may_run(other, held) and other is not self.behind_a_raised_bound
        ]
        rank = self.rank(known)
        assert all(self.rank(other) >= rank for other in rivals), "a helper or a budget in front of who comes first"
        steps["helpers"] += rank[0] and bool(rivals)
        steps["patient"] += known.helper and not rank[0] and bool(rivals)
        steps["over"] += rank[1] and bool(rivals)
        steps["forgiven"] += known.over and not rank[1] and any(not other.over for other in rivals)
        rivals = [other for other in rivals if self.rank(other) == rank]
        assert all(held[other.seat] >= held[known.seat] for other in rivals), "fewest tickets first"
        equal = [other for other in rivals if held[other.seat] == held[known.seat]]
        latest = self.served_at.get(known.seat, 0)
        assert all(self.served_at.get(other.seat, 0) >= latest for other in equal), "the seat served longest ago"
        self.served_count += 1
        self.served_at[known.seat] = self.served_count
        same_seat = [other for other in rivals if other.seat == known.seat]
        assert all(other.number > known.number for other in same_seat), "arrival order inside a seat"
        known.granted_s = self.now_s
        self.running[id] = known

    def rejected(self, effect: Rejected, event: Event) -> None:
        known = self.waiting.pop(effect.id)
        assert effect.retry_after_s == 0 or 10 <= effect.retry_after_s <= 59
        match effect.reason:
            case Reason.PAUSED if not isinstance(event, Arrive):
                assert self.held
                assert self.now_s - known.arrived_s >= self.limits.queue_deadline_s
            case Reason.PAUSED:
                steps["paused"] += 1
                assert self.held
                assert event.id == effect.id or self.now_s - known.arrived_s >= self.limits.queue_deadline_s
                assert event.id != effect.id or self.full_with(known), "held, only a bound refuses"
            case Reason.DEADLINE:
                assert not self.held
                assert self.now_s - known.arrived_s >= self.limits.queue_deadline_s
            case Reason.SEAT_GONE:
                assert isinstance(event, SeatsGone)
                assert effect.retry_after_s == 0
            case Reason.ENGINE_LOST | Reason.DRAINING:
                assert not self.open
            case _:
                assert not self.held, "no predicted wait and no bound by another name"
                assert isinstance(event, Arrive)
                assert event.id == effect.id, "bounds refuse arrivals, never who waits already"
                held = Counter(other.seat for other in self.running.values())
                free = len(self.running) < self.limits.streams
                assert not (free and self.may_run(known, held)), "refused beside a free ticket"

    def full_with(self, known: Known) -> bool:
        """Whether a bound of the queue keeps it out; those in line are all others."""
        of_seat = 1 + sum(other.seat == known.seat for other in self.waiting.values())
        kept = self.limits.queue_max // 4 if of_seat > 1 else 0
        many_bytes = known.body_bytes + sum(other.body_bytes for other in self.waiting.values())
        return (
            1 + len(self.waiting) > self.limits.queue_max - kept
            or of_seat > self.limits.queue_per_seat
            or 0 < self.limits.queue_bytes < many_bytes
        )

    def rank(self, known: Known) -> tuple[bool, bool]:
        """Whether it stands behind every turn, and behind those of its kind that are within their budget."""
        helper = known.helper and self.now_s - known.arrived_s < HELPER_PATIENCE_S
        return helper, known.over and self.now_s < known.over_until_s

    def may_run(self, known: Known, held: Counter[str]) -> bool:
        own = self.own_max[known.seat]
        return own is None or held[known.seat] < own

    def nobody_who_may_run_waits(self) -> None:
        """Work-conserving, after every single event."""
        if not self.open or self.held or len(self.running) >= self.limits.streams:
            return
        held = Counter(known.seat for known in self.running.values())
        assert not [id for id, known in self.waiting.items() if self.may_run(known, held)]

    @invariant()
    def the_books_agree(self) -> None:
        if not hasattr(self, "policy"):
            return
        view = self.policy.view()
        assert {id for id, _, _ in view.running} == set(self.running), "a ticket was lost or doubled"
        assert [id for id, _, _ in view.waiting] == self.policy.order()
        assert sorted(self.policy.order()) == sorted(self.waiting)
        assert view.held is self.held, "closing, opening and new limits end no hold"
        assert view.waiting_bytes == sum(known.body_bytes for known in self.waiting.values())

    @invariant()
    def nobody_waits_past_the_deadline(self) -> None:
        for known in getattr(self, "waiting", {}).values():
            late_s = self.now_s - known.arrived_s - self.limits.queue_deadline_s
            assert late_s < 0 or (self.wake_at_s is not None and self.wake_at_s <= self.now_s)

    @invariant()
    def long_streams_and_gone_seats_are_told(self) -> None:
        for known in getattr(self, "running", {}).values():
            assert known.granted_s is not None
            if self.limits.max_stream_s and self.now_s > known.granted_s + self.limits.max_stream_s:
                assert known.ended or (self.wake_at_s is not None and self.wake_at_s <= self.now_s)


def test_no_order_of_events_breaks_the_policy() -> None:
    run_state_machine_as_test(
        AdmissionMachine,
        settings=settings(
            max_examples=250, stateful_step_count=80, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
    assert steps["steps"] >= STEPS_WANTED, steps
    assert min(steps[rule] for rule in ("helpers", "patient", "over", "forgiven")) > 0, f"not put to the test: {steps}"
    assert min(steps["unheld"], steps["paused"]) > 0, f"the rule of holding was put to the test: {steps}"
