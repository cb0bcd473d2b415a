"""How admission stands at one moment: who is where in line, for how long still, and why. Pure; changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from gateway import forecast
from gateway.admission_books import Books, Running, Waiting
from gateway.admission_lane import ColdLane, is_cold, next_cold
from gateway.admission_order import line, may_run, over_share
from gateway.admission_types import AdmissionView, Close, Cost, Lane, Limits, TicketId, Wait


@dataclass(frozen=True)
class Standing:
    """A look at the policy's state at `now_s`, good until the next event. `free`: tickets that may be handed out;
    `paced`: the last of them is withheld (rule 3 of admission.py). `mean_hold_s`: how long a ticket is held, over
    `holds` of them."""

    limits: Limits
    books: Books
    cold_lane: ColdLane
    closed: Close | None
    held: bool
    free: int
    paced: bool
    mean_hold_s: float
    holds: int
    now_s: float

    @cached_property
    def line(self) -> list[Waiting]:
        """Those who wait, in the order of service."""
        return line(self.books, self.limits, self.now_s)

    def position(self, id: TicketId) -> int:
        """Place in line, 1 = next; 0 when `id` does not wait."""
        return next((place for place, waiting in enumerate(self.line, start=1) if waiting.id == id), 0)

    def ticket_waits(self) -> dict[TicketId, float]:
        """Seconds until a ticket comes for each, whether it is withheld then or not."""
        return self._ticket_waits(self.free)

    def predicted_waits(self) -> dict[TicketId, float]:
        """Seconds until each is predicted to run, in the order of service."""
        tickets = self._ticket_waits(0 if self.paced else self.free)
        return forecast.with_lane(self.line, tickets, self._state(), self.limits, self.hold_s())

    def waits(self) -> dict[TicketId, Wait]:
        """Why each of them waits, in the order of service."""
        state, held = self._state(), self.books.held()
        return {
            waiting.id: forecast.why(
                waiting,
                state,
                cold=is_cold(waiting.cost, self.limits),
                seat_busy=not self.books.below_own_max(waiting.seat, held),
            )
            for waiting in self.line
        }

    def view(self) -> AdmissionView:
        """A snapshot for the page and the metrics."""
        books = self.books
        costs = {waiting.id: waiting.cost for waiting in books.waiting.values()}
        return AdmissionView(
            limits=self.limits,
            closed=self.closed.reason if self.closed else None,
            running=tuple((running.id, running.seat, running.since_s) for running in books.running.values()),
            waiting=tuple((waiting.id, waiting.seat, waiting.arrived_s) for waiting in self.line),
            waiting_bytes=books.waiting_bytes(),
            mean_hold_s=self.mean_hold_s,
            measured_holds=self.holds,
            held=self.held,
            lane=self.lane(),
            costs=costs | {running.id: running.cost for running in books.running.values()},
            over_share=over_share(books, self.limits, self.now_s),
        )

    def lane(self) -> Lane:
        """The cold lane."""
        coming = next_cold(may_run(self.books, self.limits, self.now_s), self.limits)
        return self.cold_lane.view(self.books, coming, self.limits, free=self.free > 0, now_s=self.now_s)

    def hold_s(self) -> float:
        """How long a ticket is held: the running mean; a stream that has run longer counts with its age."""
        holds = self._holds_s()
        return sum(holds) / len(holds) if holds else self.mean_hold_s

    def _holds_s(self) -> list[float]:
        return [max(self.mean_hold_s, self.now_s - running.since_s) for running in self.books.running.values()]

    def _ticket_waits(self, free: int) -> dict[TicketId, float]:
        books, streams = self.books, self.limits.streams
        return forecast.ticket_waits(self.line, books.seat_max, books.held(), streams, free, self.hold_s())

    def _state(self) -> forecast.State:
        lane = self.lane()
        about: Running | Waiting | None = None
        if lane.reading is not None:
            about = self.books.running[lane.reading]
        elif lane.next is not None:
            about = self.books.waiting[lane.next]
        holds_s = self._holds_s()
        return forecast.State(
            held=self.held,
            free=self.free > 0,
            paced=self.paced,
            lane=lane,
            seat=about.seat if about else "",
            cost=about.cost if about else Cost(),
            next_free_s=forecast.first_s(holds_s),
            drain_s=forecast.last_s(holds_s),
        )
