"""Decides who streams, who waits and who is refused. Pure.

Events in, effects out: `Admission.handle(event, now_s, sent)` returns the effects of one event and the time at which
the policy wants to be woken (`wake_at_s`). `limiter.py` carries the effects out. `sent` says how many tokens each
running reply has; it may be lazy.

The scarce thing is decode time: while the engine reads a cold prompt, nothing else moves. A ticket is the right to one
stream; F is the predicted time of reading what is not cached of a prompt; a prompt is cold when that is more than
`cold_tokens` and F at least `short_s`.
Rules, in the order in which they are applied; the code carries the same numbers.
 1. Order. Requests whose seat holds as many tickets as it may are passed over. Of the others come first
    a. seats within their share of the engine before seats over it (shares.py); one over it that has got nothing for
       5/6 of the deadline counts as within it, and as waiting since it first asked, also across refusals, so that it
       is the next and never starves;
    b. turns before helpers (runs.py), until a helper has waited HELPER_PATIENCE_S;
    c. seats within their budget before seats over it, for a while (admission_bounds.py);
    d. requests of seats within their share that have waited `aged_s`, the oldest first;
    e. the seat that holds the fewest tickets;
    f. the run that began first: one whose prompt is cached is finished before a new one is read;
    g. arrival.
 2. Quiet reading (admission_lane.py). One cold prompt is read at a time. The next one is the first cold request in the
    order, and stays the next once its clock runs. It may go when `spacing` x F of the last one have passed since then.
    a. Nothing runs: it goes now, unless a warm request may run instead and either the spacing has not passed or the
       cold one stands behind turns or budgets (1b, 1c).
    b. Its clock starts when it could first have gone: spacing passed, a ticket free, no cold prompt being read. From
       then on the gate is closed: nobody is admitted, so that running replies can end or get ahead. Who stands behind
       turns or budgets closes no gate.
    c. It goes as soon as all running replies write and none would fall behind its pace by its F.
    d. After `quiet_s` it goes anyway. The gate is open again while it is read.
 3. The last ticket is given to a warm request only if no running reply falls behind its pace by it: the most that one
    is behind its line, and F, and what the engine still has to read, and MARGIN_S, are together at most 0. While it
    must wait nobody overtakes it; after `last_wait_s` it goes anyway.
 4. Otherwise a ticket never idles while somebody may run: it is handed over in the call that frees it. But behind a
    cold prompt the cache is another one: who comes next is decided by a call at the same time, on new costs.
 5. Never more than `streams` tickets are out; none while admission is closed or held.
 6. Refused at arrival, if it cannot run at once: engine or gateway not serving; a bound of the queue, a second cold
    request of its seat beside one that waits (admission_bounds.py); a wait for tickets alone that is predicted beyond
    the deadline. Where nobody may wait (`queue_max` 0), 2 and 3 withhold nothing.
 7. Nobody waits beyond `queue_deadline_s` without an answer (admission_due.py).
 8. A stream ends at `max_stream_s`, and `seat_grace_s` after its seat was taken away (admission_due.py).
 9. Closing (engine lost, drain) answers every waiter at once; running streams are not touched.
10. Held, no wait can be predicted: only the bounds of the queue and the deadline refuse, and say that the box is
    paused. Closed and held are two things: opening does not end a hold.

Times are seconds of any one monotonic clock. A clock that steps back only delays what is due.
Source: facts/admission-search.md section 2, policy Q; short_s, 2c, MARGIN_S and a spacing of 8 are from the simulation
(docs/measurements.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from types import MappingProxyType
from typing import assert_never

from gateway.admission_books import Books, Waiting
from gateway.admission_bounds import bound_hit, budget_patience_s, retry_after_s
from gateway.admission_due import ended, next_s, past_deadline
from gateway.admission_lane import ColdLane, is_cold, next_cold
from gateway.admission_order import may_run
from gateway.admission_types import (
    RETRY_MAX_S,
    AdmissionView,
    Arrive,
    Close,
    Cost,
    Costs,
    Decision,
    Effect,
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
    Sent,
    Tick,
    TicketId,
)
from gateway.shares import PROMPT_WEIGHT
from gateway.standing import Standing

HOLD_PRIOR_S = 10.5
"""Assumed mean time a ticket is held before any was measured. Source: facts/admission-and-bench.md section 2, a turn
of the study's profile."""
HELPER_PATIENCE_S = 30.0
"""Nobody waits for a title, but the agent that asked for it would think itself forgotten."""
HOLD_WEIGHT = 0.1
"""Weight of the newest reply in the running mean of hold times."""
LAST_WAIT_SHARE = 1 / 2
"""Of the deadline: the last ticket is not withheld from anybody for longer than that."""
MARGIN_S = 0.25
"""What is left of every reply's lead at least. Source: the simulation, see docs/measurements.md."""
_NOTHING: Mapping[TicketId, Sent] = MappingProxyType({})


@dataclass(slots=True)
class Admission:
    """The state of the policy. One `handle` call at a time; all state changes happen inside it."""

    limits: Limits
    closed: Close | None = None
    held: bool = False
    _books: Books = field(default_factory=Books)
    _lane: ColdLane = field(default_factory=ColdLane)
    _paced: bool = False
    _watched: bool = False
    _anew: bool = False
    _mean_hold_s: float = HOLD_PRIOR_S
    _holds: int = 0
    _now_s: float = 0.0

    def handle(self, event: Event, now_s: float, sent: Mapping[TicketId, Sent] = _NOTHING) -> Decision:
        """Apply one event. The effects are in the order in which they must be carried out."""
        self._now_s, self._anew = now_s, False
        effects: list[Effect] = []
        match event:
            case Arrive():
                self._arrive(event, now_s, sent, effects)
            case Leave(id, tokens):
                self._leave(id, tokens, now_s)
            case FirstToken(id):
                self._first_token(id, now_s)
            case Costs(costs):
                self._reprice(costs, now_s)
            case Tick():
                pass
            case _:
                self._told(event, now_s, effects)
        self._expire(now_s, effects)
        self._assign(now_s, sent, effects)
        self._books.forget_idle_seats(now_s)
        return Decision(tuple(effects), self._wake_at_s(now_s))

    def _told(
        self,
        event: Reload | SeatsGone | SeatsBack | SeatLimit | Close | Open | Hold,
        now_s: float,
        effects: list[Effect],
    ) -> None:
        """What the operator or the engine changed."""
        match event:
            case Reload(limits):
                self._reload(limits)
            case SeatsGone(seats):
                self._seats_gone(seats, now_s, effects)
            case SeatsBack(seats):
                for running in self._books.of_seats(seats):
                    running.gone_at_s = None
            case SeatLimit(seat, max_streams):
                self._books.seat_max[seat] = max_streams
            case Close(reason, retry_after_s):
                self.closed = event
                effects.extend(self._reject_all(reason, retry_after_s))
            case Open():
                self.closed = None
            case Hold(held):
                self.held = held
            case _:
                assert_never(event)

    # Who gets the next ticket (rules 1 to 5)

    def _assign(self, now_s: float, sent: Mapping[TicketId, Sent], effects: list[Effect]) -> None:
        self._paced = self._watched = False
        while self._books.waiting and self._free() > 0 and not self._anew:
            best = self._next(now_s, sent)
            if best is None:
                return
            self._grant(best, now_s)
            effects.append(Granted(best.id, best.position))
            self._anew = is_cold(best.cost, self.limits)  # the cache is another one then, and so are others' costs

    def _next(self, now_s: float, sent: Mapping[TicketId, Sent]) -> Waiting | None:
        """The request that gets the free ticket now; None = nobody does yet."""
        order = may_run(self._books, self.limits, now_s)  # 1
        warm = next((waiting for waiting in order if not is_cold(waiting.cost, self.limits)), None)
        cold = next_cold(order, self.limits)
        may_close = cold is not None and cold.is_equal(now_s) and self._lane.is_free(self._books, now_s)
        if cold is not None and not self._books.running and (warm is None or may_close):
            return cold  # 2a
        if cold is not None and may_close:
            self._lane.start_clock(cold, now_s)  # 2b
            go_at_s = self._lane.go_at_s(cold, self.limits)
            if go_at_s is not None and now_s >= go_at_s:  # 2d
                return cold
            self._watched = not self._all_can_wait(cold, now_s, sent)  # 2c
            return None if self._watched else cold
        if warm is not None and self._free() == 1 and self._must_wait(warm, now_s, sent):  # 3
            self._paced = self._watched = True
            return None
        return warm  # 4

    def _all_can_wait(self, cold: Waiting, now_s: float, sent: Mapping[TicketId, Sent]) -> bool:
        """Whether all running replies write, so far ahead that reading `cold` costs none its pace.  (2c)"""
        all_write = all(reply.read_s is not None or not reply.streamed for reply in self._books.running.values())
        return all_write and self._late_s(cold, now_s, sent) <= 0

    def _must_wait(self, warm: Waiting, now_s: float, sent: Mapping[TicketId, Sent]) -> bool:
        """Whether a running reply would fall behind, if `warm` were read now.  (3)"""
        last_wait_s = min(self.limits.last_wait_s, LAST_WAIT_SHARE * self.limits.queue_deadline_s)
        if now_s >= warm.arrived_s + last_wait_s or not self.limits.gated:
            return False
        return self._late_s(warm, now_s, sent) > 0

    def _late_s(self, waiting: Waiting, now_s: float, sent: Mapping[TicketId, Sent]) -> float:
        """How far behind its pace some running reply would come by reading `waiting` now; -inf = there is none."""
        behind_s = self._books.most_behind_s(sent, self.limits.floor_tok_per_s, now_s)
        if behind_s is None:
            return -inf
        return behind_s + waiting.cost.prefill_s + self._books.unread_s(now_s) + MARGIN_S

    def _grant(self, waiting: Waiting, now_s: float) -> None:
        cold = is_cold(waiting.cost, self.limits)
        self._books.run(waiting, self.limits, now_s, cold=cold)
        self._books.shares.add(waiting.seat, PROMPT_WEIGHT * waiting.cost.uncached_tokens, now_s)
        if cold:
            self._lane.granted(waiting, self.limits, now_s)

    def _free(self) -> int:
        """Tickets that may be handed out.  (5)"""
        return 0 if self.closed is not None or self.held else self.limits.streams - len(self._books.running)

    # What others may ask; none of these changes anything

    def standing(self, now_s: float) -> Standing:
        """How everything stands at `now_s`."""
        return Standing(
            self.limits,
            self._books,
            self._lane,
            self.closed,
            self.held,
            self._free(),
            self._paced,
            self._mean_hold_s,
            self._holds,
            now_s,
        )

    @property
    def running(self) -> int:
        """Tickets out now."""
        return len(self._books.running)

    def order(self) -> list[TicketId]:
        """Waiting ids in the order of service, as of the last event; see admission_order.line."""
        return [waiting.id for waiting in self.standing(self._now_s).line]

    def view(self) -> AdmissionView:
        """A snapshot, as of the last event."""
        return self.standing(self._now_s).view()

    # Arrival (rule 6)

    def _arrive(self, event: Arrive, now_s: float, sent: Mapping[TicketId, Sent], effects: list[Effect]) -> None:
        books = self._books
        if event.id in books.waiting or event.id in books.running:
            raise ValueError(f"ticket id {event.id} is in use")
        books.seat_max[event.seat] = event.seat_max_streams
        if books.waiting:  # a raised bound first serves who waits already
            self._expire(now_s, effects)
            self._assign(now_s, sent, effects)
        if self.closed is not None:
            effects.append(self._rejected(event.id, self.closed.reason, self.closed.retry_after_s, 0))
            return
        waiting = Waiting(
            event.id,
            event.seat,
            event.body_bytes,
            now_s,
            now_s if event.run_started_s is None else event.run_started_s,
            event.cost,
            event.streamed,
            turn_from_s=now_s + (HELPER_PATIENCE_S if event.helper else 0.0),
            equal_from_s=now_s + (budget_patience_s(self.limits, None) if event.over_budget else 0.0),
        )
        books.wait(waiting, now_s)
        self._assign(now_s, sent, effects)
        if event.id not in books.waiting:
            return
        waiting.equal_from_s = now_s  # it is refused for no bound that it meets within its budget
        standing = self.standing(now_s)
        waiting.position = standing.position(event.id)
        wait_s = standing.ticket_waits()[event.id]
        reason = self._refused_for(waiting, wait_s)
        if reason is not None:
            if reason is Reason.SEAT_COLD_QUEUE_FULL:
                wait_s = standing.predicted_waits()[event.id]
            self._remove(waiting, now_s)
            effects.append(self._rejected(event.id, reason, self._retry_after(wait_s, event.id), waiting.position))
            return
        if event.over_budget:  # 1c
            waiting.equal_from_s += budget_patience_s(self.limits, None if self.held else wait_s)
            standing = self.standing(now_s)
            waiting.position = standing.position(event.id)
        predicted_s = None if self.held else standing.predicted_waits()[event.id]
        effects.append(Queued(event.id, waiting.position, len(books.waiting), predicted_s))

    def _refused_for(self, waiting: Waiting, wait_s: float) -> Reason | None:
        reason = bound_hit(self._books, self.limits, waiting)
        if self.held:  # 10
            return Reason.PAUSED if reason is not None else None
        return Reason.PREDICTED_WAIT if reason is None and wait_s > self.limits.queue_deadline_s else reason

    # Departure

    def _reprice(self, costs: Mapping[TicketId, Cost], now_s: float) -> None:
        for id in costs.keys() & self._books.waiting.keys():
            waiting = self._books.waiting[id]
            waiting.cost = costs[id]
            if not is_cold(waiting.cost, self.limits):
                self._lane.left(waiting, now_s)

    def _first_token(self, id: TicketId, now_s: float) -> None:
        running = self._books.running.get(id)
        if running is not None and running.read_s is None:
            running.read_s = now_s

    def _leave(self, id: TicketId, tokens: float, now_s: float) -> None:
        waiting = self._books.waiting.get(id)
        if waiting is not None:
            self._remove(waiting, now_s)
        running = self._books.running.pop(id, None)
        if running is not None:
            self._lane.cut(running, self.limits, now_s)
            held_s = max(0.0, now_s - running.since_s)
            weight = max(HOLD_WEIGHT, 1.0 / (self._holds + 1))  # the first measured one replaces the prior
            self._mean_hold_s += weight * (held_s - self._mean_hold_s)
            self._holds += 1
            self._books.shares.add(running.seat, tokens, now_s)

    def _seats_gone(self, seats: frozenset[str], now_s: float, effects: list[Effect]) -> None:
        gone = [waiting for waiting in self._books.waiting.values() if waiting.seat in seats]
        effects.extend(self._drop(waiting, Reason.SEAT_GONE, 0) for waiting in gone)
        for running in self._books.of_seats(seats):
            if running.gone_at_s is None:
                running.gone_at_s = now_s + self.limits.seat_grace_s

    def _reject_all(self, reason: Reason, retry_after_s: int) -> list[Effect]:
        order = self.order()
        self._books.waiting.clear()
        if reason is Reason.ENGINE_LOST:
            self._lane = ColdLane()
        return [Rejected(id, reason, retry_after_s, position, len(order)) for position, id in enumerate(order, start=1)]

    def _reload(self, limits: Limits) -> None:
        self.limits = limits
        for running in self._books.running.values():
            running.end_at_s = running.since_s + limits.max_stream_s if limits.max_stream_s else None

    # Time (rules 7 and 8; admission_due.py)

    def _expire(self, now_s: float, effects: list[Effect]) -> None:
        for waiting in past_deadline(self._books, self.limits, now_s):
            wait_s = len(self._books.waiting) * self.standing(now_s).hold_s() / max(1, self.limits.streams)
            reason = Reason.PAUSED if self.held else Reason.DEADLINE
            effects.append(self._drop(waiting, reason, self._retry_after(wait_s, waiting.id)))
        effects.extend(ended(self._books, now_s))

    def _wake_at_s(self, now_s: float) -> float | None:
        lane = self._lane if self._free() > 0 else None
        if self._anew and lane is not None and self._books.waiting:  # 4
            return now_s
        return next_s(self._books, self.limits, lane, now_s, watched=self._watched)

    # Small helpers

    def _drop(self, waiting: Waiting, reason: Reason, retry_after_s: int) -> Rejected:
        position = self.standing(self._now_s).position(waiting.id)
        self._remove(waiting, self._now_s)
        return self._rejected(waiting.id, reason, retry_after_s, position)

    def _remove(self, waiting: Waiting, now_s: float) -> None:
        del self._books.waiting[waiting.id]
        self._lane.left(waiting, now_s)

    def _rejected(self, id: TicketId, reason: Reason, retry_after_s: int, position: int) -> Rejected:
        return Rejected(id, reason, retry_after_s, position, len(self._books.waiting))

    def _retry_after(self, wait_s: float, id: TicketId) -> int:
        """Held, as late as may be (10)."""
        return RETRY_MAX_S - id % 5 if self.held else retry_after_s(wait_s, id)
