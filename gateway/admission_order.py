"""In which order requests are served: rule 1 of admission.py. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import heapify, heappop, heapreplace
from typing import TypeAlias

from gateway.admission_books import Books, Waiting
from gateway.admission_types import Limits

STARVED_SHARE = 5 / 6
"""Of the deadline, in which a seat over its share gets nothing at worst; then it is the next."""
AGED_SHARE = 1 / 3
"""Of the deadline, beyond which `aged_s` would mean little."""

Rank: TypeAlias = tuple[bool, bool, bool, bool, float, float, float, int]


def may_run(books: Books, limits: Limits, now_s: float) -> list[Waiting]:
    """Those whose seat may hold another ticket, in the order of service."""
    held = books.held()
    line = [waiting for waiting in books.waiting.values() if books.below_own_max(waiting.seat, held)]
    if len(line) > 1:
        rank = _ranking(books, limits, now_s)
        line.sort(key=lambda waiting: rank(waiting, held))
    return line


def line(books: Books, limits: Limits, now_s: float) -> list[Waiting]:
    """All who wait, in the order in which tickets would be handed over if they came free one by one and nobody else
    arrived or left. Seats at their own bound come last."""
    held, rank = books.held(), _ranking(books, limits, now_s)
    lines: dict[str, list[Waiting]] = {}
    for waiting in sorted(books.waiting.values(), key=lambda waiting: rank(waiting, held), reverse=True):
        lines.setdefault(waiting.seat, []).append(waiting)

    def head(seat: str) -> tuple[bool, Rank, str]:
        return not books.below_own_max(seat, held), rank(lines[seat][-1], held), seat

    heads = [head(seat) for seat in lines]  # a ticket changes the rank of its own seat's requests only
    heapify(heads)
    order: list[Waiting] = []
    while heads:
        seat = heads[0][2]
        order.append(lines[seat].pop())
        held[seat] += 1
        if lines[seat]:
            heapreplace(heads, head(seat))
        else:
            heappop(heads)
    return order


def over_share(books: Books, limits: Limits, now_s: float) -> frozenset[str]:
    """Seats that have had more than their share."""
    return books.shares.over(books.seats(), limits.over_share, now_s)


def starved_at_s(books: Books, limits: Limits, seat: str) -> float:
    """When a seat that waits has asked in vain for so long that its use no longer counts."""
    return books.unserved_s[seat] + STARVED_SHARE * limits.queue_deadline_s


def _ranking(books: Books, limits: Limits, now_s: float) -> Callable[[Waiting, Mapping[str, int]], Rank]:
    over = over_share(books, limits, now_s)
    aged_s = min(limits.aged_s, AGED_SHARE * limits.queue_deadline_s)
    aged_before_s = now_s - aged_s if aged_s else float("-inf")
    starved = {seat for seat in over if seat in books.unserved_s and now_s >= starved_at_s(books, limits, seat)}

    def rank(waiting: Waiting, held: Mapping[str, int]) -> Rank:
        starves = waiting.seat in starved
        beyond = waiting.seat in over and not starves
        since_s = books.unserved_s[waiting.seat] if starves else waiting.arrived_s
        aged = starves or (not beyond and since_s <= aged_before_s)
        return (
            beyond,  # a
            now_s < waiting.turn_from_s,  # b
            now_s < waiting.equal_from_s,  # c
            not aged,  # d
            since_s if aged else held[waiting.seat],  # d, e
            waiting.run_started_s,  # f
            waiting.arrived_s,  # g
            waiting.id,
        )

    return rank
