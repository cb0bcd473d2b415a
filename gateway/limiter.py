"""Carries the decisions of admission.py out on the event loop: a place in line that is left exactly once.

Touches the loop's clock and timer only. Single-threaded: call it from the loop that made it.

Rules:
- Deciding and recording happen in one synchronous call; there is no await between them.
- `Place.leave()` is synchronous and idempotent; the ticket is handed to the next in line inside it.
- What those in line ask of the engine is asked anew before a ticket comes back and after one was handed over: the cache
  has changed then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import assert_never

from gateway.admission import Admission
from gateway.admission_types import (
    AdmissionView,
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
    Sent,
    Tick,
    TicketId,
    Wait,
)


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for. `price()`: what its prompt asks of the engine as the cache is now. `on_grant(id)`: it has its
    ticket. `on_end(reason)`: its stream must end now; the owner then ends it and leaves. For the others see
    admission_types.Arrive."""

    seat: str
    seat_max_streams: int | None
    body_bytes: int
    on_end: Callable[[Reason], None]
    helper: bool = False
    over_budget: bool = False
    run_started_s: float | None = None
    streamed: bool = True
    price: Callable[[], Cost] = Cost
    on_grant: Callable[[TicketId], None] = lambda _: None


@dataclass(slots=True)
class Place:
    """One request's place: waiting, then holding a ticket, then gone.

    `answer` resolves to Granted or Rejected. `queued` is what was said at arrival, None when a ticket was free.
    """

    id: TicketId
    request: Request
    answer: asyncio.Future[Granted | Rejected]
    _limiter: Limiter
    queued: Queued | None = None
    granted_at_s: float | None = None
    left: bool = False

    @property
    def seat(self) -> str:
        """Whose it is."""
        return self.request.seat

    def first_token(self) -> None:
        """The engine has read the prompt."""
        if not self.left:
            self._limiter._handle(FirstToken(self.id))

    def why(self) -> Wait | None:
        """Why it waits; None when it does not."""
        return None if self.answer.done() else self._limiter.waits().get(self.id)

    def leave(self, tokens: float = 0.0) -> None:
        """Give the place or the ticket back, after so many tokens of output. Safe to call at any time and any number of
        times."""
        if not self.left:
            self.left = True
            self._limiter._leave(self, tokens)

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
    """The shell around one `Admission`. `sent`: output tokens of each ticket; asked for lazily."""

    policy: Admission
    loop: asyncio.AbstractEventLoop
    sent: Mapping[TicketId, Sent] = field(default_factory=dict)
    _places: dict[TicketId, Place] = field(default_factory=dict)
    _timer: asyncio.TimerHandle | None = None
    _wake_at_s: float | None = None
    _last_id: int = 0

    @contextmanager
    def enter(self, request: Request) -> Iterator[Place]:
        """Join the line; the place is left when the block ends, however it ends."""
        self._last_id += 1
        id = TicketId(self._last_id)
        place = Place(id, request, self.loop.create_future(), self)
        self._places[id] = place
        try:
            self._handle(
                Arrive(
                    id,
                    request.seat,
                    request.seat_max_streams,
                    request.body_bytes,
                    request.helper,
                    request.over_budget,
                    request.price(),
                    request.run_started_s,
                    request.streamed,
                )
            )
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

    def waits(self) -> Mapping[TicketId, Wait]:
        """Why each of those in line waits."""
        return self.policy.standing(self.loop.time()).waits()

    def reprice(self) -> None:
        """The cache has changed: what those in line ask of the engine is asked anew."""
        costs = {id: place.request.price() for id, place in self._places.items() if not place.answer.done()}
        if costs:
            self._handle(Costs(costs))

    @property
    def running(self) -> int:
        """Tickets out now."""
        return self.policy.running

    def _leave(self, place: Place, tokens: float) -> None:
        self._places.pop(place.id, None)
        if not place.answer.done():
            place.answer.cancel()
        elif place.granted_at_s is not None:
            self.reprice()
        self._handle(Leave(place.id, tokens))

    def _handle(self, event: Event) -> None:
        decision = self.policy.handle(event, self.loop.time(), self.sent)
        self._set_timer(decision.wake_at_s)
        granted = [self._carry_out(effect) for effect in decision.effects]
        if any(granted):
            self.reprice()

    def _carry_out(self, effect: Effect) -> bool:
        """True when a ticket was handed over."""
        place = self._places.get(effect.id)
        if place is None:
            return False
        match effect:
            case Granted():
                place.granted_at_s = self.loop.time()
                place.request.on_grant(place.id)
                self._answer(place, effect)
                return True
            case Rejected():
                self._answer(place, effect)
            case Queued():
                place.queued = effect
            case Ended(reason=reason):
                place.request.on_end(reason)
            case _:
                assert_never(effect)
        return False

    @staticmethod
    def _answer(place: Place, answer: Granted | Rejected) -> None:
        if not place.answer.done():
            place.answer.set_result(answer)

    def _set_timer(self, wake_at_s: float | None) -> None:
        if wake_at_s == self._wake_at_s:  # most events change nothing about it
            return
        self._wake_at_s = wake_at_s
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_at(wake_at_s, self._tick) if wake_at_s is not None else None

    def _tick(self) -> None:
        self._timer = self._wake_at_s = None
        self._handle(Tick())
