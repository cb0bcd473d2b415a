"""Whose time is up, and when admission must be woken next: rules 7 and 8 of admission.py. Pure."""

from __future__ import annotations

from gateway.admission_books import Books, Waiting
from gateway.admission_lane import ColdLane
from gateway.admission_order import starved_at_s
from gateway.admission_types import Ended, Limits, Reason

LOOK_AGAIN_S = 0.25
"""How often the paces of running replies are looked at while a ticket waits for them."""


def past_deadline(books: Books, limits: Limits, now_s: float) -> list[Waiting]:
    """Those who have waited for as long as anybody may.  (7)"""
    return [waiting for waiting in books.waiting.values() if now_s >= _deadline_s(waiting, limits)]


def ended(books: Books, now_s: float) -> list[Ended]:
    """The streams whose time is up; each is told once.  (8)"""
    effects = []
    for running in books.running.values():
        if running.told:
            continue
        if running.gone_at_s is not None and now_s >= running.gone_at_s:
            running.told = True
            effects.append(Ended(running.id, Reason.SEAT_GONE))
        elif running.end_at_s is not None and now_s >= running.end_at_s:
            running.told = True
            effects.append(Ended(running.id, Reason.MAX_STREAM))
    return effects


def next_s(books: Books, limits: Limits, lane: ColdLane | None, now_s: float, *, watched: bool) -> float | None:
    """When something is due next without any event; None = nothing is. `lane`: None while no ticket may be handed out.
    `watched`: one waits for the paces of running replies."""
    due = [_deadline_s(waiting, limits) for waiting in books.waiting.values()]
    for running in books.running.values():
        if not running.told:
            due += [at_s for at_s in (running.end_at_s, running.gone_at_s) if at_s is not None]
    if books.waiting and lane is not None:
        due += _withheld_until_s(books, limits, lane, now_s)
        due += [now_s + LOOK_AGAIN_S] if watched else []
    return min(due, default=None)


def _withheld_until_s(books: Books, limits: Limits, lane: ColdLane, now_s: float) -> list[float]:
    """When a ticket that is withheld may go, other than by an event."""
    due = [lane.spacing_until_s]
    for waiting in books.waiting.values():
        go_at_s = lane.go_at_s(waiting, limits)
        due += [waiting.turn_from_s, waiting.equal_from_s] if go_at_s is None else [go_at_s]
        due.append(starved_at_s(books, limits, waiting.seat))
    due += [running.assumed_read_s for running in books.running.values() if running.read_s is None]
    return [at_s for at_s in due if at_s > now_s]


def _deadline_s(waiting: Waiting, limits: Limits) -> float:
    return waiting.arrived_s + limits.queue_deadline_s
