"""What a witness of the admission policy knows from events and effects alone, and what it says to each ticket.

It is as naive as it can be: nothing is kept that can be counted again. Where two numbers are so close that rounding
decides, it says nothing (`UNSURE`).
"""

from __future__ import annotations

from collections import Counter
from math import exp, inf

from gateway.admission import HELPER_PATIENCE_S
from gateway.admission_types import (
    Close,
    Cost,
    Costs,
    Event,
    FirstToken,
    Hold,
    Leave,
    Limits,
    Open,
    Reload,
    SeatLimit,
    Sent,
    TicketId,
    WaitKind,
)
from tests.gateway.admission_known import UNSURE, Known

ASKED_KEPT_S = 600.0


class Witness:
    """All requests that are here, and what is to be kept of those that are not."""

    def __init__(self, limits: Limits, now_s: float, counts: Counter[str]) -> None:
        self.limits, self.now_s, self.counts = limits, now_s, counts
        self.open, self.held = True, False
        self.waiting: dict[TicketId, Known] = {}
        self.running: dict[TicketId, Known] = {}
        self.own_max: dict[str, int | None] = {}
        self.had: list[tuple[float, str, float]] = []
        self.asked_s: dict[str, float] = {}
        self.spaced_until_s = self.opened_s = -inf
        self.shut_s = self.level_s = 0.0

    def sent_by_all(self, at_s: float | None = None) -> dict[TicketId, Sent]:
        """What is known of each reply, now or at another time; a lead stays what it is."""
        at_s, floor = self.now_s if at_s is None else at_s, self.limits.floor_tok_per_s
        return {
            known.id: Sent((at_s - known.first_s + known.lead_s) * floor, at_s)
            for known in self.running.values()
            if known.first_s is not None and known.lead_s is not None
        }

    # The words of the rules

    @property
    def free(self) -> int:
        return self.limits.streams - len(self.running) if self.open and not self.held else 0

    @property
    def quiet_s(self) -> float:
        return min(self.limits.quiet_s, self.limits.queue_deadline_s / 6)

    def is_cold(self, known: Known) -> bool:
        long = known.cost.uncached_tokens > self.limits.cold_tokens
        return long and known.cost.prefill_s >= self.limits.short_s and self.limits.queue_max > 0

    def is_equal(self, known: Known) -> bool:
        return not any(self.stands_behind(known))

    def stands_behind(self, known: Known) -> tuple[bool, bool]:
        helper = known.helper and self.now_s < known.arrived_s + HELPER_PATIENCE_S
        return helper, known.over and self.now_s < known.over_until_s

    def may_run(self, known: Known) -> bool:
        own = self.own_max[known.seat]
        return own is None or sum(other.seat == known.seat for other in self.running.values()) < own

    def rivals(self, without: Known | None = None) -> list[Known]:
        return [known for known in self.waiting.values() if self.may_run(known) and known is not without]

    def is_read(self, known: Known) -> bool:
        return known.first_s is not None or self.now_s >= known.assumed_s

    def reading(self) -> Known | None:
        return next((known for known in self.running.values() if known.cold and not self.is_read(known)), None)

    def lane_is_free(self) -> bool:
        return self.reading() is None and self.now_s >= self.spaced_until_s

    def unread_s(self) -> float:
        return sum(known.cost.prefill_s for known in self.running.values() if not self.is_read(known))

    def over_share(self, without: Known | None = None) -> tuple[set[str], bool]:
        """Seats over their share, and whether that is sure."""
        here = {known.seat for known in [*self.waiting.values(), *self.running.values()] if known is not without}
        use = dict.fromkeys(here, 0.0)
        for at_s, seat, tokens in self.had:
            if seat in use:
                use[seat] += tokens * exp((at_s - self.now_s) / 300.0)
        if len(here) < 2 or not self.limits.over_share:
            return set(), True
        bound = self.limits.over_share * max(1000.0, sum(use.values()) / len(use))
        sure = all(abs(value - bound) > UNSURE * bound for value in use.values())
        return {seat for seat, value in use.items() if value > bound}, sure

    def order(self, rivals: list[Known], without: Known | None = None) -> list[Known] | None:
        """Rule 1; None = not sure."""
        over, sure = self.over_share(without)
        deadline_s = self.limits.queue_deadline_s
        starved = {seat for seat in over if self.now_s >= self.asked_s.get(seat, inf) + 5 / 6 * deadline_s}
        aged_s = min(self.limits.aged_s or inf, deadline_s / 3) if self.limits.aged_s else inf

        def rank(known: Known) -> tuple[object, ...]:
            since_s = self.asked_s[known.seat] if known.seat in starved else known.arrived_s
            beyond = known.seat in over - starved
            aged = known.seat in starved or (not beyond and since_s + aged_s <= self.now_s)
            tickets = sum(other.seat == known.seat for other in self.running.values())
            rest = (known.run_s, known.arrived_s, known.id)
            return beyond, *self.stands_behind(known), not aged, since_s if aged else float(tickets), *rest

        if sure and rivals:
            best = min(rivals, key=rank)
            self.counts["starved first"] += best.seat in starved and len(rivals) > 1
            self.counts["over last"] += any(known.seat in over - starved for known in rivals) and best.seat not in over
            self.counts["aged first"] += not rank(best)[3] and any(rank(other)[3] for other in rivals)
        return sorted(rivals, key=rank) if sure else None

    def candidate(self, order: list[Known]) -> Known | None:
        """The next cold request."""
        cold = [known for known in order if self.is_cold(known)]
        clocked = [known for known in cold if known.could_go_s is not None]
        return min(clocked, key=lambda known: (known.could_go_s, known.id)) if clocked else next(iter(cold), None)

    def gate(self, candidate: Known | None) -> bool:
        """Whether it is closed for `candidate`."""
        ready = candidate is not None and self.is_equal(candidate) and self.lane_is_free()
        return ready and self.free > 0 and bool(self.running)

    def goes_at_s(self, candidate: Known) -> float:
        if candidate.could_go_s is not None:
            return candidate.could_go_s + self.quiet_s
        return self.now_s - self.inherited_s() + self.quiet_s

    def inherited_s(self) -> float:
        return max(0.0, self.shut_s - (self.now_s - self.opened_s)) if self.shut_s else 0.0

    def falls_behind(self, warm: Known) -> bool | None:
        """Rule 3: whether somebody does if it is read now; None = not sure."""
        if self.now_s >= warm.arrived_s + min(self.limits.last_wait_s, self.limits.queue_deadline_s / 2):
            self.counts["last wait over"] += bool(self.limits.last_wait_s)
            return False
        late_s = self.late_s(warm)
        return None if late_s is None else late_s > 0

    def all_can_wait(self, cold: Known) -> bool | None:
        """Rule 2c: whether all write, and nobody falls behind if it is read now; None = not sure."""
        if any(known.streamed and known.first_s is None for known in self.running.values()):
            return False
        late_s = self.late_s(cold)
        return None if late_s is None else late_s <= 0

    def late_s(self, waiting: Known) -> float | None:
        """How far somebody is behind once it is read, with a quarter of a second to spare; None = not sure."""
        behind = [
            -known.lead_s if known.lead_s is not None else self.now_s - known.first_s
            for known in self.running.values()
            if known.streamed and known.first_s is not None
        ]
        kept_s = max((value for value in behind if value <= 4.0), default=-inf)
        late_s = kept_s + waiting.cost.prefill_s + self.unread_s() + 0.25
        if any(abs(value - 4.0) < UNSURE for value in behind) or abs(late_s) < UNSURE:
            return None
        self.counts["lost"] += any(value > 4.0 for value in behind)
        self.counts["margin"] += 0 < late_s < 0.25
        begun = [known.granted_s for known in self.running.values() if not self.is_read(known)]
        self.counts["whole unread"] += (
            late_s > 0 >= late_s - max((self.now_s - (at_s or 0) for at_s in begun), default=0)
        )
        known_s = max((-known.lead_s for known in self.running.values() if known.lead_s is not None), default=-inf)
        self.counts["nothing known"] += late_s > 0 >= late_s - kept_s + known_s
        return late_s

    # What it says to each

    def objection(self, granted: Known, without: Known | None = None) -> str | None:
        """Why `granted` should not have a ticket now, if `without` is not here yet; None = it should."""
        if self.free <= 0:
            return "no ticket is free"
        if not self.may_run(granted):
            return "the seat's own bound"
        if self.now_s >= granted.arrived_s + self.limits.queue_deadline_s:
            return "past the deadline"
        order = self.order(self.rivals(without), without)
        if order is None:
            return None
        candidate = self.candidate(order)
        warm = next((known for known in order if not self.is_cold(known)), None)
        ready = candidate is not None and self.is_equal(candidate) and self.lane_is_free()
        if self.is_cold(granted):
            return self._objection_to_cold(granted, candidate, alone=warm is None, ready=ready)
        if candidate is not None and (self.gate(candidate) or (ready and not self.running)):
            return "the gate is closed"
        if granted is not warm:
            return "another warm request comes first"
        if self.free == 1 and self.limits.queue_max and self.running and self.falls_behind(granted):
            return "a reply falls behind"
        return None

    def _objection_to_cold(self, granted: Known, candidate: Known | None, *, alone: bool, ready: bool) -> str | None:
        if granted is not candidate:
            return "another cold request comes first"
        if not self.running:
            self.counts["gate drained"] += granted.could_go_s is not None
            self.counts["spacing waived"] += self.now_s < self.spaced_until_s
            return None if ready or alone else "a warm request may run instead"
        if not ready:
            return "a second cold prompt, or no spacing, or it stands behind others"
        if self.now_s >= self.goes_at_s(granted):
            self.counts["quiet ran out"] += bool(self.quiet_s)
            return None
        self.counts["went by lead"] += 1
        return "the quiet time is not over" if self.all_can_wait(granted) is False else None

    def reasons(self) -> dict[TicketId, WaitKind] | None:
        """Why each of them waits; None = not sure. Starts the clock of who could go."""
        order = self.order(self.rivals())
        if order is None:
            return None
        candidate = self.candidate(order)
        closed = self.gate(candidate)
        if closed and candidate is not None and candidate.could_go_s is None:
            self.counts["inherited"] += self.inherited_s() > 0
            candidate.could_go_s = self.now_s - self.inherited_s()
        reading, spaced = self.reading(), self.now_s < self.spaced_until_s and bool(self.running)
        kinds = {}
        for known in self.waiting.values():
            cold = self.is_cold(known)
            kinds[known.id] = next(
                kind
                for kind, holds in (
                    (WaitKind.HELD, self.held),
                    (WaitKind.SEAT_BUSY, not self.may_run(known)),
                    (WaitKind.READING, cold and reading is not None),
                    (WaitKind.SPACING, cold and spaced),
                    (WaitKind.QUIET, closed and known is candidate),
                    (WaitKind.COLD_LINE, closed and cold),
                    (WaitKind.GATE, closed),
                    (WaitKind.STREAMS_BUSY, self.free <= 0),
                    (WaitKind.QUIET, cold and known is candidate),
                    (WaitKind.COLD_LINE, cold),
                    (WaitKind.PACE, True),
                )
                if holds
            )
        return kinds

    # What happens

    def happens(self, event: Event) -> None:
        """What an event itself changes, before anything follows from it."""
        match event:
            case Leave(id, tokens):
                self.leaves(id, tokens)
            case FirstToken(id) if id in self.running:
                known = self.running[id]
                known.first_s = self.now_s if known.first_s is None else known.first_s
            case Costs(costs):
                for known in [self.waiting[id] for id in costs if id in self.waiting]:
                    self.costs(known, costs[known.id])
            case Reload(limits):
                self.limits, self.level_s = limits, 0.0
                for known in self.waiting.values():
                    known.shut_s = 0.0
            case SeatLimit(seat, max_streams):
                self.own_max[seat] = max_streams
            case Close() | Open():
                self.open = isinstance(event, Open)
            case Hold(held):
                self.held = held
            case _:
                pass

    def due_s(self) -> list[float]:
        """All times at which something may become due without an event, but for the paces."""
        deadline_s, due = self.limits.queue_deadline_s, [self.spaced_until_s]
        for known in self.waiting.values():
            starved_s = self.asked_s[known.seat] + 5 / 6 * deadline_s
            due += [known.arrived_s + deadline_s, known.arrived_s + HELPER_PATIENCE_S, known.over_until_s, starved_s]
            due += [self.goes_at_s(known)] if known.could_go_s is not None else []
        for known in self.running.values():
            due += [known.assumed_s, (known.granted_s or 0) + self.limits.max_stream_s]
        return due

    def leaves(self, id: TicketId, tokens: float) -> None:
        if id in self.running:
            self.ends(self.running[id], tokens)
        elif id in self.waiting:
            self.no_candidate(self.waiting.pop(id))

    def costs(self, known: Known, cost: Cost) -> None:
        was_cold, known.cost = self.is_cold(known), cost
        self.counts["turned cold"] += self.is_cold(known) and not was_cold
        if not self.is_cold(known):
            self.counts["turned warm"] += known.could_go_s is not None
            self.no_candidate(known)

    def forgets_the_lane(self) -> None:
        self.spaced_until_s = self.opened_s = -inf
        self.shut_s = 0.0

    def arrives(self, known: Known) -> None:
        here = any(other.seat == known.seat for other in self.waiting.values())
        if not here and self.now_s - self.asked_s.get(known.seat, self.now_s) >= ASKED_KEPT_S:
            del self.asked_s[known.seat]
        if self.open:
            self.asked_s.setdefault(known.seat, self.now_s)
        self.waiting[known.id] = known

    def runs(self, known: Known) -> None:
        del self.waiting[known.id]
        known.cold, before_s = self.is_cold(known), self.unread_s()
        known.granted_s = self.now_s
        known.assumed_s = self.now_s + 2 * (before_s + known.cost.prefill_s) + 10
        if not known.streamed:
            known.assumed_s = self.now_s + (before_s + 1.3 * known.cost.prefill_s)
        self.running[known.id] = known
        del self.asked_s[known.seat]
        if any(other.seat == known.seat for other in self.waiting.values()):
            self.asked_s[known.seat] = self.now_s
        self.had.append((self.now_s, known.seat, known.cost.uncached_tokens / 10))
        if known.cold:
            self.spaced_until_s = self.now_s + self.spacing_s(known.cost.prefill_s)
            self.shut_s = self.level_s = 0.0

    def spacing_s(self, read_s: float) -> float:
        return min(self.limits.spacing * read_s, self.limits.queue_deadline_s / 2)

    def ends(self, known: Known, tokens: float) -> None:
        del self.running[known.id]
        self.had.append((self.now_s, known.seat, tokens))
        if known.cold and not self.is_read(known) and known.granted_s is not None:
            read_s = min(known.cost.prefill_s, self.now_s - known.granted_s)
            self.counts["cut"] += self.spaced_until_s > known.granted_s + self.spacing_s(read_s)
            self.spaced_until_s = min(self.spaced_until_s, known.granted_s + self.spacing_s(read_s))

    def no_candidate(self, known: Known) -> None:
        """It left, or is warm now."""
        if known.could_go_s is not None:
            self.shut_s, self.opened_s, known.could_go_s = self.now_s - known.could_go_s, self.now_s, None

    def time_passes(self, seconds: float, closed_for: Known | None) -> None:
        """The gate is closed for somebody, or open, for so long."""
        self.now_s += seconds
        if closed_for is None:
            self.level_s = max(0.0, self.level_s - seconds)
            return
        closed_for.shut_s += seconds
        self.level_s += seconds
        assert closed_for.shut_s <= self.quiet_s + UNSURE, "the gate stays closed too long for one"
        assert self.level_s <= 2 * self.quiet_s + UNSURE, "the gate stays closed too long for many"
