"""Which bound of the queue keeps a request out: rule 6 of admission.py. Pure."""

from __future__ import annotations

from math import ceil

from gateway.admission_books import Books, Waiting
from gateway.admission_lane import is_cold
from gateway.admission_types import RETRY_MAX_S, RETRY_MIN_S, Limits, Reason, TicketId

QUEUE_KEPT_SHARE = 4
"""One place of so many in the queue is kept for seats that have nothing waiting yet: a few busy seats cannot shut a
newcomer out."""
BUDGET_PATIENCE_S = 60.0
"""A soft budget puts nobody behind others for longer than this, than a third of the deadline, or than the deadline
leaves beside the predicted wait."""


def bound_hit(books: Books, limits: Limits, waiting: Waiting) -> Reason | None:
    """The bound that the line is above with `waiting`, which is in it; None = it may stay."""
    of_seat = [other for other in books.waiting.values() if other.seat == waiting.seat]
    kept_free = limits.queue_max // QUEUE_KEPT_SHARE if len(of_seat) > 1 else 0
    if len(books.waiting) > limits.queue_max - kept_free:
        return Reason.QUEUE_FULL
    if len(of_seat) > limits.queue_per_seat:
        return Reason.SEAT_QUEUE_FULL
    if limits.queue_bytes and books.waiting_bytes() > limits.queue_bytes:
        return Reason.QUEUE_BYTES
    cold = sum(_takes_a_cold_place(other, limits) for other in of_seat)
    if limits.queue_cold_per_seat and cold > limits.queue_cold_per_seat and _takes_a_cold_place(waiting, limits):
        return Reason.SEAT_COLD_QUEUE_FULL
    return None


def _takes_a_cold_place(waiting: Waiting, limits: Limits) -> bool:
    """Helpers never do: an agent does not send them one by one."""
    return is_cold(waiting.cost, limits) and waiting.turn_from_s <= waiting.arrived_s


def budget_patience_s(limits: Limits, wait_s: float | None) -> float:
    """How long who is over a budget stands behind others; `wait_s`: predicted without that, None = not to be known."""
    deadline_s = limits.queue_deadline_s
    return min(BUDGET_PATIENCE_S, deadline_s / 3, deadline_s if wait_s is None else deadline_s - wait_s)


def retry_after_s(wait_s: float, id: TicketId) -> int:
    """Predicted wait in whole seconds, spread over five by the id so that refused clients do not all come back at once,
    within 10 to 59."""
    return min(RETRY_MAX_S, max(RETRY_MIN_S, ceil(wait_s) + id % 5))
