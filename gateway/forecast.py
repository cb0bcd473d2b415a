"""How long those who wait are likely to, and why they do. Pure; estimates only, nothing is decided by them but a wait
for tickets beyond the deadline (rule 6 of admission.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.admission_books import Waiting
from gateway.admission_lane import is_cold, quiet_s, spacing_s
from gateway.admission_types import Cost, Lane, Limits, TicketId, Wait, WaitKind

_HOLD_MIN_S = 1e-3


@dataclass(frozen=True, slots=True)
class State:
    """How admission is at one moment. `free`: a ticket is. `paced`: the last one is withheld (rule 3). `seat`, `cost`:
    of the cold prompt that is read, else of the one that goes next. `next_free_s`: when a ticket comes back; `drain_s`:
    when all running replies have ended, with nobody else admitted."""

    held: bool
    free: bool
    paced: bool
    lane: Lane
    seat: str
    cost: Cost
    next_free_s: float
    drain_s: float


def first_s(holds_s: Sequence[float]) -> float:
    """When the first of streams that are held so long on the mean is over, whatever their ages: one that has run for
    a while goes on for about as long as one that begins. Source: the simulation, see docs/measurements.md."""
    return 1 / sum(1 / max(hold_s, _HOLD_MIN_S) for hold_s in holds_s) if holds_s else 0.0


def last_s(holds_s: Sequence[float]) -> float:
    """When the last of them is."""
    return sum(holds_s) / len(holds_s) * sum(1 / count for count in range(1, len(holds_s) + 1)) if holds_s else 0.0


def _lane_free_s(state: State) -> float:
    """When another cold prompt may be read: when this one is, and the spacing is over or nothing runs any more."""
    lane = state.lane
    return max(lane.reading_left_s, min(lane.spacing_left_s, lane.reading_left_s + state.drain_s))


def ticket_waits(
    line: Sequence[Waiting],
    seat_max: Mapping[str, int | None],
    held: Mapping[str, int],
    streams: int,
    free: int,
    hold_s: float,
) -> dict[TicketId, float]:
    """Seconds until a ticket comes for each of `line`: `free` of them are here, the others come back at
    `streams / hold` a second; of a seat with a bound of its own, which has `held` of them, at `bound / hold`."""
    ahead: Counter[str] = Counter()
    waits: dict[TicketId, float] = {}
    for position, waiting in enumerate(line, start=1):
        ahead[waiting.seat] += 1
        wait = max(0, position - max(0, free)) / max(1, streams)
        own = seat_max.get(waiting.seat)
        if own:
            wait = max(wait, (ahead[waiting.seat] - max(0, own - held[waiting.seat])) / own)
        waits[waiting.id] = wait * hold_s
    return waits


def with_lane(
    line: Sequence[Waiting], tickets: dict[TicketId, float], state: State, limits: Limits, hold_s: float
) -> dict[TicketId, float]:
    """The same with the cold lane: cold prompts go one by one, with their spacing or, if that is sooner, when nothing
    runs; behind a closed gate everybody waits for the one that goes next. `hold_s`: how long each is held."""
    lane, waits, longest_s = state.lane, dict(tickets), quiet_s(limits)
    at_s = min(_lane_free_s(state) + min(longest_s, state.drain_s), lane.reading_left_s + state.drain_s)
    for waiting in line:
        if is_cold(waiting.cost, limits):
            go_s = max(waits[waiting.id], at_s)
            if waiting.id == lane.next and lane.closed:
                go_s = min(lane.quiet_left_s, state.drain_s)
            waits[waiting.id], read_s = go_s, waiting.cost.prefill_s
            at_s = go_s + min(max(read_s, spacing_s(read_s, limits)) + min(longest_s, hold_s), read_s + hold_s)
        elif lane.closed:
            waits[waiting.id] = max(waits[waiting.id], min(lane.quiet_left_s, state.drain_s))
    return waits


def why(waiting: Waiting, state: State, *, cold: bool, seat_busy: bool) -> Wait:
    """Why a request waits: the first that applies."""
    lane = state.lane
    if state.held:
        return Wait(WaitKind.HELD)
    if seat_busy:
        return Wait(WaitKind.SEAT_BUSY)
    tokens, own = state.cost.uncached_tokens, state.seat == waiting.seat
    if cold and lane.reading is not None:
        return Wait(WaitKind.READING, _lane_free_s(state), tokens, own)
    if cold and lane.spacing_left_s > 0:
        return Wait(WaitKind.SPACING, _lane_free_s(state))
    if lane.closed and waiting.id == lane.next:
        return Wait(WaitKind.QUIET, min(lane.quiet_left_s, state.drain_s))
    if lane.closed:
        gate_s = min(lane.quiet_left_s, state.drain_s) + state.cost.prefill_s
        return Wait(WaitKind.COLD_LINE if cold else WaitKind.GATE, gate_s, tokens, own)
    if not state.free:
        return Wait(WaitKind.STREAMS_BUSY, state.next_free_s)
    if cold:  # the next one, whose clock does not run: it stands behind others and closes no gate
        return (
            Wait(WaitKind.QUIET, state.drain_s)
            if waiting.id == lane.next
            else Wait(WaitKind.COLD_LINE, None, tokens, own)
        )
    return Wait(WaitKind.PACE if state.paced else WaitKind.ORDER)
