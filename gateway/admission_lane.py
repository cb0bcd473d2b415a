"""The cold lane: one cold prompt is read at a time, with spacing behind it. Rule 2 of admission.py. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from gateway.admission_books import Books, Running, Waiting
from gateway.admission_types import Cost, Lane, Limits

QUIET_SHARE = 1 / 6
SPACING_SHARE = 1 / 2
"""Of the deadline: the gate is not closed, and the lane not kept free, for longer than that."""


@dataclass(slots=True)
class ColdLane:
    """`spacing_until_s`: no other cold prompt before that, unless nothing runs. `shut_s`, `opened_s`: for how long the
    gate was closed for one that did not go after all, and until when; the next one's clock has that behind it, less
    what has passed since, so that many who leave again do not keep it closed."""

    spacing_until_s: float = -inf
    shut_s: float = 0.0
    opened_s: float = -inf

    def is_free(self, books: Books, now_s: float) -> bool:
        """Whether a cold prompt may be read at all: none is, and the spacing behind the last one has passed."""
        return now_s >= self.spacing_until_s and reading(books, now_s) is None

    def start_clock(self, waiting: Waiting, now_s: float) -> None:
        """`waiting` could go now for the first time."""
        if waiting.could_go_s is None:
            waiting.could_go_s = now_s - max(0.0, self.shut_s - max(0.0, now_s - self.opened_s))

    def go_at_s(self, waiting: Waiting, limits: Limits) -> float | None:
        """When it goes anyway; None = its clock does not run."""
        return waiting.could_go_s + quiet_s(limits) if waiting.could_go_s is not None else None

    def granted(self, waiting: Waiting, limits: Limits, now_s: float) -> None:
        """A cold prompt got its ticket."""
        self.spacing_until_s = now_s + spacing_s(waiting.cost.prefill_s, limits)
        self.shut_s = 0.0

    def left(self, waiting: Waiting, now_s: float) -> None:
        """One that waited left without a ticket, or need not be read any more."""
        if waiting.could_go_s is not None:
            self.shut_s, self.opened_s = max(0.0, now_s - waiting.could_go_s), now_s
            waiting.could_go_s = None

    def cut(self, running: Running, limits: Limits, now_s: float) -> None:
        """A cold prompt was not read to its end: only what was read of it keeps others away."""
        if running.cold and not running.is_read(now_s):
            read_s = max(0.0, now_s - running.since_s)
            self.spacing_until_s = min(self.spacing_until_s, running.since_s + spacing_s(read_s, limits))

    def view(self, books: Books, coming: Waiting | None, limits: Limits, *, free: bool, now_s: float) -> Lane:
        """How the lane is, for people."""
        read = reading(books, now_s)
        go_at_s = self.go_at_s(coming, limits) if coming is not None and free and self.is_free(books, now_s) else None
        return Lane(
            reading=read.id if read else None,
            reading_left_s=max(0.0, read.since_s + read.cost.prefill_s - now_s) if read else 0.0,
            next=coming.id if coming else None,
            spacing_left_s=max(0.0, self.spacing_until_s - now_s) if books.running else 0.0,
            quiet_left_s=max(0.0, go_at_s - now_s) if go_at_s is not None else 0.0,
            closed=go_at_s is not None,
        )


def quiet_s(limits: Limits) -> float:
    """The longest that the gate is closed for one."""
    return min(limits.quiet_s, QUIET_SHARE * limits.queue_deadline_s)


def is_cold(cost: Cost, limits: Limits) -> bool:
    """Whether so much of a prompt is not cached that reading it stops everybody for long. One that is read in a few
    seconds is not cold, whatever its length: it would fill the lane for nothing."""
    return cost.uncached_tokens > limits.cold_tokens and cost.prefill_s >= limits.short_s and limits.gated


def reading(books: Books, now_s: float) -> Running | None:
    """The cold prompt that the engine reads."""
    return next((other for other in books.running.values() if other.cold and not other.is_read(now_s)), None)


def next_cold(order: Iterable[Waiting], limits: Limits) -> Waiting | None:
    """The cold request that goes next: the one whose clock runs, else the first."""
    cold = [waiting for waiting in order if is_cold(waiting.cost, limits)]
    clocked = [(waiting.could_go_s, waiting.id, waiting) for waiting in cold if waiting.could_go_s is not None]
    return min(clocked)[2] if clocked else next(iter(cold), None)


def spacing_s(prefill_s: float, limits: Limits) -> float:
    """How long after its ticket a cold prompt keeps others from being read, while anything runs."""
    return min(limits.spacing * prefill_s, SPACING_SHARE * limits.queue_deadline_s)
