"""Tries to break the admission policy: a Hypothesis state machine of everything that may happen to it.

The witness keeps its own books from effects alone. Of the policy only what it promises is looked at: `order()`,
`view()` and why each waits; and, once, until when one over its budget stands behind others, which depends on a
forecast. Times are sums of binary fractions, so most are exact.
"""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from typing import TypeAlias

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

from gateway.admission import HELPER_PATIENCE_S, Admission
from gateway.admission_bounds import BUDGET_PATIENCE_S
from gateway.admission_types import (
    Arrive,
    Close,
    Cost,
    Costs,
    Effect,
    Ended,
    Event,
    FirstToken,
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
    WaitKind,
)
from tests.gateway.admission_arrivals import ARRIVALS, COLD, COSTS, LEADS, LIMITS, SEATS, TWO_COSTS
from tests.gateway.admission_known import UNSURE, Known, untested
from tests.gateway.admission_refusals import is_full, refused
from tests.gateway.admission_witness import Witness

HEALTH = list(HealthCheck)
STEPS_WANTED = 10_000
TICKS_A_SECOND = 4
Arrival: TypeAlias = tuple[str, Cost, float, str, bool]
counts = Counter[str]()


class AdmissionMachine(RuleBasedStateMachine):
    @initialize(limits=LIMITS)
    def start(self, limits: Limits) -> None:
        self.witness = Witness(limits, 1000.0, counts)
        self.policy = Admission(limits)
        self.gone: dict[str, float] = {}
        self.graces_end_s: list[float] = []
        self.wake_at_s: float | None = None
        self.closed_for: Known | None = None
        self.kinds: set[WaitKind] = set()
        self.count = 0

    # What may happen

    @rule(arrivals=st.lists(ARRIVALS, min_size=1, max_size=6), gap_s=st.sampled_from([0.0, 1 / 128, 1.0]))
    def crowd(self, arrivals: list[Arrival], gap_s: float) -> None:
        """Several at once: what makes a line."""
        for seat, cost, run_s, kind, _ in arrivals:
            self.arrive(seat, self.witness.own_max.get(seat), 1, cost, run_s, kind)
            self.time_passes(gap_s)

    @rule(arrival=ARRIVALS, own_max=st.sampled_from([None, None, 1, 2]), body_bytes=st.integers(0, 60))
    def arrives(self, arrival: Arrival, own_max: int | None, body_bytes: int) -> None:
        seat, cost, run_s, kind, unstreamed = arrival
        self.arrive(seat, own_max, body_bytes, cost, run_s, kind, streamed=not unstreamed)

    def arrive(
        self,
        seat: str,
        own_max: int | None,
        body_bytes: int,
        cost: Cost,
        run_s: float,
        kind: str,
        streamed: bool = True,
    ) -> None:
        self.count += 1
        id, now_s, helper, over = TicketId(self.count), self.witness.now_s, kind in "hb", kind in "ob"
        known = Known(id, seat, body_bytes, now_s, helper, over, now_s, cost, now_s + run_s, streamed)
        known.over_until_s += BUDGET_PATIENCE_S if over else 0.0
        self.witness.own_max[seat] = own_max
        told = self.send(Arrive(id, seat, own_max, body_bytes, helper, over, cost, known.run_s, streamed), known)
        if id not in self.witness.waiting:
            return
        assert self.witness.open
        assert any(isinstance(effect, Queued) and effect.id == id for effect in told), "waits and was not told"
        assert not is_full(self.witness, known), "a bound of the queue"

    @precondition(lambda self: self.witness.waiting)
    @rule(seconds=st.sampled_from([HELPER_PATIENCE_S, BUDGET_PATIENCE_S, 149.0, 155.0]), arrivals=st.lists(ARRIVALS))
    def a_crowd_that_waits(self, seconds: float, arrivals: list[Arrival]) -> None:
        self.time_passes(seconds)
        self.crowd(arrivals[:3], 0.0)

    @precondition(lambda self: self.witness.running)
    @rule(data=st.data(), more=st.integers(0, 2), tokens=st.sampled_from([0.0, 300.0, 300.0, 30_000.0]))
    def finish(self, data: st.DataObject, more: int, tokens: float) -> None:
        for _ in range(min(1 + more, len(self.witness.running))):
            self.send(Leave(data.draw(st.sampled_from(sorted(self.witness.running))), tokens))

    @rule(seconds=st.sampled_from([3.0, 7.0]), turns_warm=st.booleans(), drained=st.booleans())
    def candidates_come_and_go(self, seconds: float, turns_warm: bool, drained: bool) -> None:
        for seat in ("ana", "ben", "ben"):
            self.arrive(seat, None, 1, COLD, -5.0, "t")
        self.time_passes(seconds)
        if self.closed_for is not None:
            id = self.closed_for.id
            self.send(Costs({id: Cost()}) if turns_warm else Leave(id))
        self.arrive("cleo", None, 1, COLD, 0.0, "t")
        self.time_passes(seconds)
        for id in list(self.witness.running) if drained else []:
            self.send(Leave(id, 300.0))

    @precondition(lambda self: self.witness.waiting)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.send(Leave(data.draw(st.sampled_from(sorted(self.witness.waiting)))))

    @rule()
    def unknown_ids(self) -> None:
        unknown = TicketId(self.count + 1000)
        for event in (Leave(unknown, 5.0), FirstToken(unknown), Costs({unknown: Cost()})):
            self.send(event)

    @precondition(lambda self: self.witness.running)
    @rule(leads_s=st.lists(LEADS, min_size=1, max_size=8), wait_s=st.sampled_from([0, 2]), next_one=ARRIVALS)
    def first_tokens(self, leads_s: list[float | None], wait_s: float, next_one: Arrival) -> None:
        self.time_passes(wait_s)
        for known, lead_s in zip(list(self.witness.running.values()), leads_s, strict=False):
            known.lead_s = lead_s
            if known.streamed:
                self.send(FirstToken(known.id))
        self.crowd([next_one], 0.0)

    @precondition(lambda self: self.witness.running)
    @rule(lead_s=st.sampled_from([-1.0, 12.125, 20.0, 60.0]), costs=TWO_COSTS, arrival=ARRIVALS)
    def prompts_come_while_all_write(self, lead_s: float, costs: tuple[Cost, Cost], arrival: Arrival) -> None:
        for known in list(self.witness.running.values()):
            known.lead_s = lead_s
            if known.streamed:
                self.send(FirstToken(known.id))
        self.arrive(arrival[0], None, 1, costs[0], 0.0, arrival[3], streamed=not arrival[4])
        self.arrive("cleo", None, 1, costs[1], 0.0, "t")
        self.time_passes(0.5 if lead_s > 0 else 21.0)

    @precondition(lambda self: self.witness.waiting)
    @rule(data=st.data(), cost=COSTS, every=st.booleans())
    def reprice(self, data: st.DataObject, cost: Cost, every: bool) -> None:
        ids = set(self.witness.waiting)
        self.send(Costs(dict.fromkeys(ids if every else data.draw(st.sets(st.sampled_from(sorted(ids)))), cost)))

    @rule(seconds=st.sampled_from([1 / 1024, 0.5, 3.0, 11.0, 29.0, 200.0]))
    def time_passes(self, seconds: float) -> None:
        """The shell ticks when the policy asks for it; nothing is due in between."""
        until_s, ticks, known = self.witness.now_s + seconds, 0, self.count + len(self.witness.running)
        while self.wake_at_s is not None and self.wake_at_s <= until_s:
            before_s = self.wake_at_s
            self.nothing_is_due_before(before_s)
            self.wait_until(max(self.witness.now_s, before_s))
            self.send(Tick())
            ticks += 1
            assert self.wake_at_s is None or self.wake_at_s > before_s, "a tick that is due must be used up"
        self.nothing_is_due_before(until_s)
        self.wait_until(until_s)
        assert ticks <= TICKS_A_SECOND * seconds + 8 * known, "a storm of ticks"

    def wait_until(self, at_s: float) -> None:
        self.witness.time_passes(at_s - self.witness.now_s, self.closed_for)

    def nothing_is_due_before(self, at_s: float) -> None:
        witness, watched = self.witness, self.closed_for is not None or WaitKind.PACE in self.kinds
        unknown = any(known.first_s is not None and known.lead_s is None for known in witness.running.values())
        if self.count % 3 or not witness.waiting or WaitKind.PACE in self.kinds or (watched and unknown):
            return
        middle_s = (witness.now_s + at_s) / 2
        if middle_s < at_s:
            late = deepcopy(self.policy).handle(Tick(), middle_s, witness.sent_by_all(middle_s))
            assert not late.effects, f"due at {middle_s}, or before"

    @rule(limits=LIMITS)
    def reload(self, limits: Limits) -> None:
        self.send(Reload(limits))

    @rule(streams=st.sampled_from([1, 2, 4, 8]))
    def the_cap_changes(self, streams: int) -> None:
        limits = self.witness.limits
        self.send(Reload(Limits(**{name: getattr(limits, name) for name in Limits.__slots__} | {"streams": streams})))

    @rule(seat=SEATS)
    def seat_gone(self, seat: str) -> None:
        self.gone.setdefault(seat, self.witness.now_s)
        self.graces_end_s.append(self.witness.now_s + self.witness.limits.seat_grace_s)
        self.send(SeatsGone(frozenset({seat})))
        assert not any(known.seat == seat for known in self.witness.waiting.values())

    @rule(seat=SEATS)
    def seat_back(self, seat: str) -> None:
        self.gone.pop(seat, None)
        self.send(SeatsBack(frozenset({seat})))

    @rule(seat=SEATS, own_max=st.sampled_from([None, 1, 3]))
    def seat_limit(self, seat: str, own_max: int | None) -> None:
        if any(known.seat == seat for known in [*self.witness.waiting.values(), *self.witness.running.values()]):
            self.send(SeatLimit(seat, own_max))

    @rule(reason=st.sampled_from([Reason.ENGINE_LOST, Reason.DRAINING]), seats=st.lists(SEATS, max_size=2))
    def close_and_open(self, reason: Reason, seats: list[str]) -> None:
        self.send(Close(reason))
        assert not self.witness.waiting, "closing answers every waiter"
        for seat in seats:
            self.arrive(seat, None, 1, Cost(), 0.0, "t")
        assert not self.witness.waiting, "closed, and yet somebody waits"
        self.send(Open())

    @precondition(lambda self: self.witness.held or self.count % 4 == 0)
    @rule()
    def hold_or_not(self) -> None:
        """Seldom: a held line moves as little as a closed one."""
        before, held = set(self.witness.waiting), not self.witness.held
        counts["unheld"] += bool(before) and not held
        self.send(Hold(held))
        assert not held or set(self.witness.waiting) == before, "a hold sends nobody away"

    # What is seen of it

    def send(self, event: Event, arriving: Known | None = None) -> tuple[Effect, ...]:
        counts["steps"] += 1
        self.witness.happens(event)
        if arriving is not None:
            self.witness.reasons()  # it may bring a higher bound of its seat, which first serves who waits already
            self.witness.arrives(arriving)
        decision = self.policy.handle(event, self.witness.now_s, self.witness.sent_by_all())
        self.wake_at_s = decision.wake_at_s
        for effect in decision.effects:
            match effect:
                case Granted(id):
                    self.granted(id, arriving)
                case Rejected():
                    refused(self.witness, effect, event)
                case Queued(id, position, depth, wait_s):
                    assert id in self.witness.waiting
                    assert (wait_s is None) is self.witness.held, "a wait is predicted only while the line moves"
                    assert wait_s is None or wait_s >= 0
                    assert 1 <= position <= depth <= self.witness.limits.queue_max
                    known = self.witness.waiting[id]
                    known.over_until_s = self.policy._books.waiting[id].equal_from_s
                    most_s = min(BUDGET_PATIENCE_S, self.witness.limits.queue_deadline_s / 3) if known.over else 0
                    assert 0 <= known.over_until_s - known.arrived_s <= most_s + UNSURE
                case Ended(id, reason):
                    self.witness.running[id].ended.append(reason)
                    assert len(self.witness.running[id].ended) == 1, "told once"
        if event == Close(Reason.ENGINE_LOST):
            self.witness.forgets_the_lane()
        if decision.wake_at_s == self.witness.now_s:  # behind a cold prompt somebody may be next, on new costs
            counts["anew"] += 1
            assert any(isinstance(effect, Granted) for effect in decision.effects), "asked for a call and gave nothing"
            return decision.effects + self.send(Tick())
        self.nobody_waits_without_a_reason()
        return decision.effects

    def granted(self, id: TicketId, arriving: Known | None) -> None:
        witness, known = self.witness, self.witness.waiting[id]
        objection = witness.objection(known)
        if objection is not None and arriving is not None and known is not arriving:
            objection = witness.objection(known, without=arriving)
        assert objection is None, objection
        assert not (witness.is_cold(known) and witness.reading()), "the cold lane holds two"
        helper, over = witness.stands_behind(known)
        counts["helpers"] += known.helper and not helper
        counts["over"] += known.over and not over
        paced = witness.free == 1 and bool(witness.sent_by_all())
        counts["fourth on pace"] += paced and not witness.is_cold(known)
        counts["ungated"] += not witness.limits.queue_max
        long = witness.limits.queue_max > 0 and known.cost.uncached_tokens > witness.limits.cold_tokens
        counts["short"] += long and not witness.is_cold(known)
        counts["assumed"] += any(witness.is_read(other) and other.first_s is None for other in witness.running.values())
        witness.runs(known)

    def nobody_waits_without_a_reason(self) -> None:
        """After every single event: a free ticket is withheld for one of three reasons, and it is said which."""
        witness = self.witness
        rivals = witness.rivals()
        assert witness.running or not rivals or witness.free <= 0, "an idle box, and somebody waits"
        kinds = witness.reasons()
        lane = self.policy.standing(witness.now_s).lane()
        if kinds is None:
            counts["unsure"] += 1
            self.closed_for = witness.waiting[lane.next] if lane.closed and lane.next is not None else None
            return
        self.it_is_woken_when_it_must_be(lane.closed or WaitKind.PACE in kinds.values())
        told = {id: wait.kind for id, wait in self.policy.standing(witness.now_s).waits().items()}
        assert told == kinds, "why they wait"
        self.kinds = set(kinds.values())
        counts.update(kind.value for kind in self.kinds)
        closed = [witness.waiting[id] for id in kinds if lane.closed and id == lane.next]
        self.closed_for = closed[0] if closed else None
        assert lane.closed == witness.gate(witness.candidate(witness.order(rivals) or []))
        if witness.free <= 0 or not rivals:
            return
        self.count_what_keeps_the_candidate(witness.candidate(witness.order(rivals) or []))
        if lane.closed:
            assert witness.now_s < witness.goes_at_s(closed[0]), "the gate stays closed too long"
            assert not witness.all_can_wait(closed[0]), "all replies are far enough ahead, and yet it waits"
        elif WaitKind.PACE in self.kinds:
            warm = next(known for known in witness.order(rivals) or [] if not witness.is_cold(known))
            assert witness.free == 1
            assert witness.limits.queue_max
            assert witness.falls_behind(warm) is not False, "nobody falls behind, and yet it waits"

    def count_what_keeps_the_candidate(self, candidate: Known | None) -> None:
        witness = self.witness
        if candidate is None or not witness.running:
            return
        late_s = witness.late_s(candidate) or 0.0
        all_write = all(known.first_s is not None or not known.streamed for known in witness.running.values())
        if self.closed_for is not None:
            counts["withheld for a lead"] += all_write and late_s > 0
            counts["withheld while read"] += not all_write and late_s < 0
        elif all_write and late_s < 0:
            counts["read despite lead"] += witness.reading() is not None
            counts["spaced despite lead"] += witness.now_s < witness.spaced_until_s
            counts["behind despite lead"] += not witness.is_equal(candidate) and witness.lane_is_free()

    def it_is_woken_when_it_must_be(self, watched: bool) -> None:
        """Every quarter of a second while a ticket waits for the paces, else for nothing that the rules do not name."""
        witness, at_s = self.witness, self.wake_at_s
        if watched:
            assert at_s is not None
            assert at_s <= witness.now_s + 0.25, "the paces are not looked at"
            counts["looked again"] += at_s == witness.now_s + 0.25
            return
        due = [*witness.due_s(), *self.graces_end_s]
        assert at_s is None or any(abs(at_s - due_s) < UNSURE for due_s in due), f"woken at {at_s} for nothing"

    @invariant()
    def the_books_agree(self) -> None:
        if not hasattr(self, "policy"):
            return
        view, witness = self.policy.view(), self.witness
        assert {id for id, _, _ in view.running} == set(witness.running), "a ticket was lost or doubled"
        assert [id for id, _, _ in view.waiting] == self.policy.order()
        assert sorted(self.policy.order()) == sorted(witness.waiting)
        assert view.held is witness.held, "closing, opening and new limits end no hold"
        assert view.waiting_bytes == sum(known.body_bytes for known in witness.waiting.values())
        forecasts = self.policy.standing(witness.now_s).predicted_waits()
        assert all(wait_s >= 0 for wait_s in forecasts.values())

    @invariant()
    def nobody_waits_past_the_deadline(self) -> None:
        if not hasattr(self, "policy"):
            return
        for known in self.witness.waiting.values():
            late_s = self.witness.now_s - known.arrived_s - self.witness.limits.queue_deadline_s
            assert late_s < 0 or (self.wake_at_s is not None and self.wake_at_s <= self.witness.now_s)

    @invariant()
    def long_streams_and_gone_seats_are_told(self) -> None:
        if not hasattr(self, "policy"):
            return
        limits = self.witness.limits
        for known in self.witness.running.values():
            assert known.granted_s is not None
            gone_s = self.gone.get(known.seat)
            late = limits.max_stream_s and self.witness.now_s > known.granted_s + limits.max_stream_s
            gone = gone_s is not None and known.granted_s < gone_s and self.witness.now_s > gone_s + 10.0
            assert known.ended or not (late or gone)


def test_no_order_of_events_breaks_the_policy() -> None:
    examples = settings(max_examples=400, stateful_step_count=50, deadline=None, suppress_health_check=HEALTH)
    for _ in range(4):  # chance leaves a rule out in one round of ten
        run_state_machine_as_test(AdmissionMachine, settings=examples)
        if not untested(counts):
            break
    assert not untested(counts), counts
    assert counts["steps"] >= STEPS_WANTED, counts
    assert counts["unsure"] < counts["steps"] / 100, counts
