"""Carries the decisions of admission.py out on the event loop: a place in line that is left exactly once.

Touches the loop's clock and timer only. Single-threaded: call it from the loop that made it.

Rules:
- Deciding and recording happen in one synchronous call; there is no await between them.
- `Place.leave()` is synchronous and idempotent; the ticket is handed to the next in line inside it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import assert_never

from gateway.admission import Admission
from gateway.admission_types import (
    AdmissionView,
    Arrive,
    Close,
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


@dataclass(slots=True)
class Place:
    """One request's place: waiting, then holding a ticket, then gone.

    `answer` resolves to Granted or Rejected. `on_end(reason)` is called when the stream must end now; the
    owner then ends it and leaves. `queued` is what was said at arrival, None when a ticket was free.
    """

    id: TicketId
    seat: str
    answer: asyncio.Future[Granted | Rejected]
    on_end: Callable[[Reason], None]
    _limiter: Limiter
    queued: Queued | None = None
    granted_at_s: float | None = None
    left: bool = False

    def leave(self) -> None:
        """Give the place or the ticket back. Safe to call at any time and any number of times."""
        if not self.left:
            self.left = True
            self._limiter._leave(self)

    async def wait(self, timeout_s: float | None) -> Granted | Rejected | None:
        """The answer, or None after `timeout_s`. Cancelling it keeps the place: leave() gives it up."""
        if not self.answer.done():
            await asyncio.wait((self.answer,), timeout=timeout_s)
        return self.answer.result() if self.answer.done() else None

    def position(self) -> tuple[int, int]:
        """(place in line, depth of the line) now; (0, depth) when it does not wait."""
        return self._limiter.position(self.id)


@dataclass(slots=True)
class Limiter:
    """The shell around one `Admission`."""

    policy: Admission
    loop: asyncio.AbstractEventLoop
    _places: dict[TicketId, Place] = field(default_factory=dict)
    _timer: asyncio.TimerHandle | None = None
    _last_id: int = 0

    @contextmanager
    def enter(
        self,
        seat: str,
        seat_max_streams: int | None,
        body_bytes: int,
        on_end: Callable[[Reason], None],
        helper: bool = False,
        over_budget: bool = False,
    ) -> Iterator[Place]:
        """Join the line; the place is left when the block ends, however it ends."""
        self._last_id += 1
        id = TicketId(self._last_id)
        place = Place(id, seat, self.loop.create_future(), on_end, self)
        self._places[id] = place
        try:
            self._handle(Arrive(id, seat, seat_max_streams, body_bytes, helper, over_budget))
            yield place
        finally:
            place.leave()

    def set_limits(self, limits: Limits) -> None:
        """Apply new limits at once."""
        if limits != self.policy.limits:
            self._handle(Reload(limits))

    def close(self, reason: Reason, retry_after_s: int) -> None:
        """Answer every waiter now and refuse arrivals with `reason` until open()."""
        self._handle(Close(reason, retry_after_s))

    def open(self) -> None:
        """Admit again."""
        if self.policy.closed is not None:
            self._handle(Open())

    def hold(self, held: bool) -> None:
        """Hand out no ticket from now on, or hand them out again."""
        if held is not self.policy.held:
            self._handle(Hold(held))

    def seats_gone(self, seats: frozenset[str]) -> None:
        """Drop what waits of these seats, end what runs after the grace."""
        self._handle(SeatsGone(seats))

    def seats_back(self, seats: frozenset[str]) -> None:
        """These seats are good again."""
        self._handle(SeatsBack(seats))

    def seat_limit(self, seat: str, max_streams: int | None) -> None:
        """A seat's own bound changed."""
        self._handle(SeatLimit(seat, max_streams))

    def view(self) -> AdmissionView:
        """A snapshot for page and metrics."""
        return self.policy.view()

    def position(self, id: TicketId) -> tuple[int, int]:
        """(place in line, depth) of a request."""
        order = self.policy.order()
        return (order.index(id) + 1 if id in order else 0), len(order)

    @property
    def running(self) -> int:
        """Tickets out now."""
        return len(self.policy.view().running)

    def _leave(self, place: Place) -> None:
        self._places.pop(place.id, None)
        if not place.answer.done():
            place.answer.cancel()
        self._handle(Leave(place.id))

    def _handle(self, event: Event) -> None:
        decision = self.policy.handle(event, self.loop.time())
        self._set_timer(decision.wake_at_s)
        for effect in decision.effects:
            place = self._places.get(effect.id)
            if place is None:
                continue
            match effect:
                case Granted():
                    place.granted_at_s = self.loop.time()
                    self._answer(place, effect)
                case Rejected():
                    self._answer(place, effect)
                case Queued():
                    place.queued = effect
                case Ended(reason=reason):
                    place.on_end(reason)
                case _:
                    assert_never(effect)

    @staticmethod
    def _answer(place: Place, answer: Granted | Rejected) -> None:
        if not place.answer.done():
            place.answer.set_result(answer)

    def _set_timer(self, wake_at_s: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if wake_at_s is not None:
            self._timer = self.loop.call_at(wake_at_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._handle(Tick())
