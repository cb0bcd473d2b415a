"""Decides who streams, who waits and who is refused. Pure.

Events in, effects out: `Admission.handle(event, now_s)` returns the effects of one event and the time at
which the policy wants to be woken (`wake_at_s`). `limiter.py` carries the effects out.

Rules, in the order in which they are applied; the code carries the same numbers.
 1. A ticket is the right to one stream. Never more than `streams` tickets are out.
 2. A seat never holds more than its own `max_streams`, whoever waits.
 3. Between seats: fewest tickets held first, then the seat served longest ago, then arrival. So a seat that
    holds two gets a third only while no seat with fewer waits, and gives it up to nobody once it has it.
 4. Inside a seat: arrival. Before 3 and 4: turns before helpers (runs.py), until a helper has waited
    HELPER_PATIENCE_S; from then on it counts as a turn. Among turns, and among helpers: seats within their
    budget before requests of those above it, until such a one has waited BUDGET_PATIENCE_S. No bound of 6 is
    any lower for them.
 5. Work-conserving: a ticket is handed over in the same call that frees it; none idles while a waiter
    may run under rule 2, unless admission is closed or held.
 6. Refused at arrival: engine or gateway not serving; a bound of the queue hit; a predicted wait
    beyond the deadline. Nobody is refused while a ticket is free for them. The last quarter of the queue
    is for seats with nothing waiting, so that a few busy seats cannot shut a newcomer out.
 7. Nobody waits beyond `queue_deadline_s` without an answer.
 8. A stream ends at `max_stream_s`, and `seat_grace_s` after its seat was taken away.
 9. Closing (engine lost, drain) answers every waiter at once; running streams are not touched.
10. Held, no ticket is handed over and no wait can be predicted: only the bounds of the queue and the deadline
    refuse, and say that the box is paused. Closed and held are two things: opening does not end a hold.

Times are seconds of any one monotonic clock. A clock that steps back only delays what is due.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from math import ceil
from typing import assert_never

from gateway.admission_types import (
    RETRY_MAX_S,
    RETRY_MIN_S,
    AdmissionView,
    Arrive,
    Close,
    Decision,
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

HOLD_PRIOR_S = 10.5
"""Assumed mean time a ticket is held before any was measured. Source: facts/admission-and-bench.md
section 2, a turn of the study's profile."""
QUEUE_KEPT_SHARE = 4
"""One place of so many in the queue is kept for seats that have nothing waiting yet."""
HELPER_PATIENCE_S = 30.0
"""Nobody waits for a title, but the agent that asked for it would think itself forgotten."""
BUDGET_PATIENCE_S = 60.0
"""A soft budget puts nobody behind others for longer than this, than a third of the deadline, or than the deadline
leaves beside the predicted wait."""
HOLD_WEIGHT = 0.1
"""Weight of the newest reply in the running mean of hold times."""


@dataclass(slots=True)
class _Waiting:
    id: TicketId
    seat: str
    body_bytes: int
    arrived_s: float
    position: int
    turn_from_s: float
    equal_from_s: float


@dataclass(slots=True)
class _Running:
    id: TicketId
    seat: str
    since_s: float
    end_at_s: float | None
    gone_at_s: float | None = None
    told: bool = False


@dataclass(slots=True)
class Admission:
    """The state of the policy. One `handle` call at a time; all state changes happen inside it."""

    limits: Limits
    closed: Close | None = None
    held: bool = False
    _waiting: dict[TicketId, _Waiting] = field(default_factory=dict)
    _running: dict[TicketId, _Running] = field(default_factory=dict)
    _seat_max: dict[str, int | None] = field(default_factory=dict)
    _served: dict[str, int] = field(default_factory=dict)
    _served_count: int = 0
    _mean_hold_s: float = HOLD_PRIOR_S
    _holds: int = 0
    _now_s: float = 0.0

    def handle(self, event: Event, now_s: float) -> Decision:
        """Apply one event. The effects are in the order in which they must be carried out."""
        self._now_s = now_s
        effects: list[Effect] = []
        match event:
            case Arrive():
                self._arrive(event, now_s, effects)
            case Leave(id):
                self._leave(id, now_s)
            case Tick():
                pass
            case Reload(limits):
                self._reload(limits)
            case SeatsGone(seats):
                self._seats_gone(seats, now_s, effects)
            case SeatsBack(seats):
                for running in self._of_seats(seats):
                    running.gone_at_s = None
            case SeatLimit(seat, max_streams):
                self._seat_max[seat] = max_streams
            case Close(reason, retry_after_s):
                self.closed = event
                effects.extend(self._reject_all(reason, retry_after_s))
            case Open():
                self.closed = None
            case Hold(held):
                self.held = held
            case _:
                assert_never(event)
        self._expire(now_s, effects)
        self._assign(now_s, effects)
        self._forget_idle_seats()
        return Decision(tuple(effects), self._wake_at_s())

    # What others may ask; none of these changes anything.

    def order(self) -> list[TicketId]:
        """Waiting ids in the order in which tickets would be handed over if they came free one by one
        and nobody else arrived or left. Seats at their own bound come last."""
        lines = self._lines()
        held, served, count = self._held(), dict(self._served), self._served_count
        order: list[TicketId] = []
        while lines:
            best = self._best(lines, held, served)
            lines[best.seat].popleft()
            if not lines[best.seat]:
                del lines[best.seat]
            count += 1
            held[best.seat] += 1
            served[best.seat] = count
            order.append(best.id)
        return order

    def position(self, id: TicketId) -> int:
        """Place in line, 1 = next; 0 when `id` does not wait."""
        return self.order().index(id) + 1 if id in self._waiting else 0

    def predicted_waits(self, now_s: float) -> dict[TicketId, float]:
        """Seconds until each waiting request is predicted to run, in the order of service.

        Tickets come back at `streams / hold` per second; of a seat with a bound of its own, at `bound / hold`.
        """
        hold_s = self._hold_s(now_s)
        ahead: Counter[str] = Counter()
        waits: dict[TicketId, float] = {}
        for position, id in enumerate(self.order(), start=1):
            seat = self._waiting[id].seat
            ahead[seat] += 1
            own = self._seat_max.get(seat)
            waits[id] = max(position / max(1, self.limits.streams), ahead[seat] / own if own else 0.0) * hold_s
        return waits

    def _hold_s(self, now_s: float) -> float:
        """How long a ticket is held: the running mean; a stream that has run longer counts with its age."""
        holds = [max(self._mean_hold_s, now_s - running.since_s) for running in self._running.values()]
        return sum(holds) / len(holds) if holds else self._mean_hold_s

    def view(self) -> AdmissionView:
        """A snapshot for the page and the metrics."""
        running = tuple((r.id, r.seat, r.since_s) for r in self._running.values())
        waiting = tuple((i, self._waiting[i].seat, self._waiting[i].arrived_s) for i in self.order())
        return AdmissionView(
            limits=self.limits,
            closed=self.closed.reason if self.closed else None,
            running=running,
            waiting=waiting,
            waiting_bytes=self._waiting_bytes(),
            mean_hold_s=self._mean_hold_s,
            measured_holds=self._holds,
            held=self.held,
        )

    # Arrival (rule 6)

    def _arrive(self, event: Arrive, now_s: float, effects: list[Effect]) -> None:
        if event.id in self._waiting or event.id in self._running:
            raise ValueError(f"ticket id {event.id} is in use")
        self._seat_max[event.seat] = event.seat_max_streams
        self._assign(now_s, effects)  # a raised bound first serves who waits already
        if self.closed is not None:
            effects.append(self._rejected(event.id, self.closed.reason, self.closed.retry_after_s, 0))
            return
        turn_from_s = now_s + (HELPER_PATIENCE_S if event.helper else 0.0)
        waiting = _Waiting(event.id, event.seat, event.body_bytes, now_s, 0, turn_from_s, now_s)
        self._waiting[event.id] = waiting
        if self._may_run_now(event.seat):
            return
        waiting.position = self.position(event.id)
        wait_s = self.predicted_waits(now_s)[event.id]
        reason = self._bound_hit(waiting, wait_s)
        if reason is not None:
            del self._waiting[event.id]
            retry_after_s = self._retry_after(wait_s, event.id)
            effects.append(self._rejected(event.id, reason, retry_after_s, waiting.position))
            return
        if event.over_budget:  # 4; and only now, so that it is refused for no bound that it meets within its budget
            waiting.equal_from_s += self._budget_patience_s(wait_s)
            waiting.position = self.position(event.id)
            wait_s = self.predicted_waits(now_s)[event.id]
        effects.append(Queued(event.id, waiting.position, len(self._waiting), None if self.held else wait_s))

    def _budget_patience_s(self, wait_s: float) -> float:
        """Never so long that a wait predicted within the budget would then end at the deadline."""
        deadline_s = self.limits.queue_deadline_s
        room_s = deadline_s if self.held else deadline_s - wait_s
        return min(BUDGET_PATIENCE_S, deadline_s / 3, room_s)

    def _may_run_now(self, seat: str) -> bool:
        """True when a ticket is free for a request of `seat`; by rule 5 nobody else may have it."""
        free = len(self._running) < self.limits.streams and not self.held
        return free and self._below_own_max(seat, self._held())

    def _bound_hit(self, waiting: _Waiting, wait_s: float) -> Reason | None:
        reason = self._full(waiting)
        if self.held:  # 10
            return Reason.PAUSED if reason is not None else None
        return Reason.PREDICTED_WAIT if reason is None and wait_s > self.limits.queue_deadline_s else reason

    def _full(self, waiting: _Waiting) -> Reason | None:
        limits = self.limits
        of_seat = sum(w.seat == waiting.seat for w in self._waiting.values())
        kept_free = limits.queue_max // QUEUE_KEPT_SHARE if of_seat > 1 else 0
        if len(self._waiting) > limits.queue_max - kept_free:
            return Reason.QUEUE_FULL
        if of_seat > limits.queue_per_seat:
            return Reason.SEAT_QUEUE_FULL
        if limits.queue_bytes and self._waiting_bytes() > limits.queue_bytes:
            return Reason.QUEUE_BYTES
        return None

    # Departure

    def _leave(self, id: TicketId, now_s: float) -> None:
        self._waiting.pop(id, None)
        running = self._running.pop(id, None)
        if running is not None:
            held_s = max(0.0, now_s - running.since_s)
            weight = max(HOLD_WEIGHT, 1.0 / (self._holds + 1))  # the first measured one replaces the prior
            self._mean_hold_s += weight * (held_s - self._mean_hold_s)
            self._holds += 1

    def _seats_gone(self, seats: frozenset[str], now_s: float, effects: list[Effect]) -> None:
        gone = [w for w in self._waiting.values() if w.seat in seats]
        effects.extend(self._drop(waiting, Reason.SEAT_GONE, 0) for waiting in gone)
        for running in self._of_seats(seats):
            if running.gone_at_s is None:
                running.gone_at_s = now_s + self.limits.seat_grace_s

    def _reject_all(self, reason: Reason, retry_after_s: int) -> list[Effect]:
        order = self.order()
        self._waiting.clear()
        return [Rejected(id, reason, retry_after_s, position, len(order)) for position, id in enumerate(order, start=1)]

    def _reload(self, limits: Limits) -> None:
        self.limits = limits
        for running in self._running.values():
            running.end_at_s = running.since_s + limits.max_stream_s if limits.max_stream_s else None

    # Time (rules 7 and 8)

    def _expire(self, now_s: float, effects: list[Effect]) -> None:
        for waiting in [w for w in self._waiting.values() if now_s >= self._deadline(w)]:
            wait_s = len(self._waiting) * self._hold_s(now_s) / max(1, self.limits.streams)
            reason = Reason.PAUSED if self.held else Reason.DEADLINE
            effects.append(self._drop(waiting, reason, self._retry_after(wait_s, waiting.id)))
        for running in self._running.values():
            if running.told:
                continue
            if running.gone_at_s is not None and now_s >= running.gone_at_s:
                running.told = True
                effects.append(Ended(running.id, Reason.SEAT_GONE))
            elif running.end_at_s is not None and now_s >= running.end_at_s:
                running.told = True
                effects.append(Ended(running.id, Reason.MAX_STREAM))

    def _wake_at_s(self) -> float | None:
        due = [self._deadline(w) for w in self._waiting.values()]
        for running in self._running.values():
            if not running.told:
                due += [at for at in (running.end_at_s, running.gone_at_s) if at is not None]
        return min(due, default=None)

    def _deadline(self, waiting: _Waiting) -> float:
        return waiting.arrived_s + self.limits.queue_deadline_s

    # Assignment (rules 1 to 5)

    def _assign(self, now_s: float, effects: list[Effect]) -> None:
        while self.closed is None and not self.held and len(self._running) < self.limits.streams:
            lines, held = self._lines(), self._held()
            best = self._best(lines, held, self._served) if lines else None
            if best is None or not self._below_own_max(best.seat, held):
                return
            del self._waiting[best.id]
            end_at_s = now_s + self.limits.max_stream_s if self.limits.max_stream_s else None
            self._running[best.id] = _Running(best.id, best.seat, now_s, end_at_s)
            self._served_count += 1
            self._served[best.seat] = self._served_count
            effects.append(Granted(best.id, best.position))

    def _lines(self) -> dict[str, deque[_Waiting]]:
        """The waiting requests of each seat, turns first, in order of arrival (4)."""
        lines: dict[str, deque[_Waiting]] = {}
        for waiting in sorted(self._waiting.values(), key=self._behind):  # stable
            lines.setdefault(waiting.seat, deque()).append(waiting)
        return lines

    def _behind(self, waiting: _Waiting) -> tuple[bool, bool]:
        """Whether it stands behind every turn, and behind all of its kind that are within their budget."""
        return self._now_s < waiting.turn_from_s, self._now_s < waiting.equal_from_s

    def _best(self, lines: dict[str, deque[_Waiting]], held: Counter[str], served: dict[str, int]) -> _Waiting:
        def rank(w: _Waiting) -> tuple[bool, tuple[bool, bool], int, int, float, int]:
            at_own_max = not self._below_own_max(w.seat, held)  # 2
            return at_own_max, self._behind(w), held[w.seat], served.get(w.seat, 0), w.arrived_s, w.id  # 4, 3

        return min((line[0] for line in lines.values()), key=rank)

    def _below_own_max(self, seat: str, held: Counter[str]) -> bool:
        own = self._seat_max.get(seat)
        return own is None or held[seat] < own

    # Small helpers

    def _held(self) -> Counter[str]:
        return Counter(r.seat for r in self._running.values())

    def _of_seats(self, seats: frozenset[str]) -> list[_Running]:
        return [r for r in self._running.values() if r.seat in seats]

    def _waiting_bytes(self) -> int:
        return sum(w.body_bytes for w in self._waiting.values())

    def _forget_idle_seats(self) -> None:
        """A seat with nothing here needs no record of its bound; who was served last is kept for 64 seats."""
        here = {w.seat for w in self._waiting.values()} | {r.seat for r in self._running.values()}
        self._seat_max = {seat: own for seat, own in self._seat_max.items() if seat in here}
        while len(self._served) > max(64, len(here)):
            idle = [seat for seat in self._served if seat not in here]
            del self._served[min(idle, key=lambda seat: self._served[seat])]

    def _drop(self, waiting: _Waiting, reason: Reason, retry_after_s: int) -> Rejected:
        position = self.position(waiting.id)
        del self._waiting[waiting.id]
        return self._rejected(waiting.id, reason, retry_after_s, position)

    def _rejected(self, id: TicketId, reason: Reason, retry_after_s: int, position: int) -> Rejected:
        return Rejected(id, reason, retry_after_s, position, len(self._waiting))

    def _retry_after(self, wait_s: float, id: TicketId) -> int:
        """Predicted wait in whole seconds, spread over five by the id so that refused clients do not all
        come back at once, within 10 to 59. Held, as late as may be (10)."""
        if self.held:
            return RETRY_MAX_S - id % 5
        return min(RETRY_MAX_S, max(RETRY_MIN_S, ceil(wait_s) + id % 5))
