"""Whether the admission policy may refuse a request, as its witness sees it."""

from __future__ import annotations

from collections import Counter

from gateway.admission_types import Arrive, Event, Reason, Rejected, SeatsGone
from tests.gateway.admission_known import Known
from tests.gateway.admission_witness import Witness


def refused(witness: Witness, effect: Rejected, event: Event) -> None:
    """One of those in line is sent away, by `event`."""
    known = witness.waiting[effect.id]
    late = witness.now_s >= known.arrived_s + witness.limits.queue_deadline_s
    arrives = isinstance(event, Arrive) and event.id == effect.id
    assert effect.retry_after_s == 0 or 10 <= effect.retry_after_s <= 59
    match effect.reason:
        case Reason.PAUSED:
            witness.counts["paused"] += arrives
            assert witness.held
            assert is_full(witness, known) if arrives and not late else late
        case Reason.DEADLINE:
            assert late
            assert not witness.held
        case Reason.SEAT_GONE:
            assert isinstance(event, SeatsGone)
            assert effect.retry_after_s == 0
        case Reason.ENGINE_LOST | Reason.DRAINING:
            assert not witness.open
        case Reason.PREDICTED_WAIT:
            assert arrives
            assert not witness.held
            assert effect.position > witness.free or not witness.may_run(known) or known.seat in _bounded(witness)
        case _:
            witness.counts["cold refused"] += effect.reason is Reason.SEAT_COLD_QUEUE_FULL
            assert arrives, "bounds refuse arrivals, never who waits already"
            assert not witness.held
            assert is_full(witness, known)
            assert witness.limits.queue_max or witness.free <= 0 or not witness.may_run(known)
    del witness.waiting[effect.id]
    if witness.open:
        witness.no_candidate(known)


def is_full(witness: Witness, known: Known) -> bool:
    """Whether more than a bound of the queue wait, with `known`, which does too."""
    limits, waiting = witness.limits, witness.waiting.values()
    of_seat = [other for other in waiting if other.seat == known.seat]
    cold = sum(witness.is_cold(other) and not other.helper for other in of_seat)
    takes = witness.is_cold(known) and not known.helper
    return (
        len(waiting) > limits.queue_max - (limits.queue_max // 4 if len(of_seat) > 1 else 0)
        or len(of_seat) > limits.queue_per_seat
        or 0 < limits.queue_bytes < sum(other.body_bytes for other in waiting)
        or (takes and 0 < limits.queue_cold_per_seat < cold)
    )


def _bounded(witness: Witness) -> set[str]:
    """Seats that wait for a ticket of their own."""
    seats = Counter(known.seat for known in [*witness.waiting.values(), *witness.running.values()])
    return {seat for seat, own in witness.own_max.items() if own is not None and seats[seat] > own}
