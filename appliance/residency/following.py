"""Residency follows traffic: what one rank makes of each reading of the counts. Pure.

Rules:
1. Counts are by physical row, as rows stood when they were read; rates are by expert.
2. Rows may stand elsewhere by now: what is cold is taken from where they stand when it is decided.
3. What the link is allowed gathers with time, up to what the steps of half a round carry, or one swap if that is more:
   the other half shows what came of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .document import Residency
from .policy import Policy, Rates, Rest, Swap, on, swaps

MIB = 1 << 20

Orders = Mapping[int, Sequence[int]]
"""Of each layer the logical id in each row."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one reading. `tokens` that were counted in `seconds` of work; `visits` that they made, those to cold rows, and
    the bytes of these: what crossed the link if no two tokens of a step shared an expert."""

    tokens: int
    seconds: float
    visits: int
    cold_visits: int
    cold_bytes: int


@dataclass(slots=True)
class Following:
    """`row_bytes`: of one expert's rows on this rank that cross the link, those of tensors that are partly in host RAM,
    by layer that has cold ones. `round_bytes`: that a round's steps
    carry; `rest`: between layers. `totals`: all visits since the start, by layer and expert; `tokens`: that made
    them."""

    residency: Residency
    row_bytes: Mapping[int, int]
    mib_per_s: int
    round_bytes: int
    rest: Rest = on
    rates: Rates = field(default_factory=lambda: Rates(Policy()))
    totals: dict[int, list[int]] = field(default_factory=dict)
    tokens: int = 0
    swapped: int = 0
    _room: float = 0.0

    def hear(self, tokens: int, seconds: float, visits: Mapping[int, Sequence[int]], orders: Orders) -> Figures:
        """A reading: `visits` by layer and row, rows in the `orders` of then.  (1)"""
        by_expert = {}
        for layer, counted in visits.items():
            by_expert[layer] = _by_expert(counted, orders[layer])
            self.rest()
        cold = self.cold(orders)
        cold_visits = {layer: sum(by_expert[layer][one] for one in experts) for layer, experts in cold.items()}
        every = sum(map(sum, by_expert.values()))
        if self.rates.is_other(sum(cold_visits.values()), every, cold):
            self.rates.forget()
        self.rates.count(by_expert, tokens, self.rest)
        for layer, counted in by_expert.items():
            before = self.totals.get(layer, [0] * len(counted))
            self.totals[layer] = [old + new for old, new in zip(before, counted, strict=True)]
            self.rest()
        self.tokens += tokens
        return Figures(
            tokens,
            seconds,
            every,
            sum(cold_visits.values()),
            sum(count * self.row_bytes[layer] for layer, count in cold_visits.items()),
        )

    def decide(self, seconds: float, orders: Orders) -> tuple[Swap, ...]:
        """What to exchange now, the rows in `orders`, `seconds` after the last time.  (2, 3)"""
        cold = self.cold(orders)
        moved = 2 * max((self.row_bytes[layer] for layer in cold), default=0)
        most = max(self.round_bytes, moved)
        self._room = min(most, self._room + self.mib_per_s * MIB * seconds)
        found = swaps(self.rates, cold, moved // 2, int(self._room), self.rest)
        self._room -= moved * len(found)
        self.swapped += len(found)
        return found

    def cold(self, orders: Orders) -> dict[int, list[int]]:
        """The experts in the last rows of each layer that has any in host RAM."""
        counts = ((layer, len(cold)) for layer, cold in self.residency.cold.items() if cold)
        there = ((layer, count) for layer, count in counts if layer in orders and layer in self.row_bytes)
        return {layer: sorted(orders[layer][len(orders[layer]) - count :]) for layer, count in there}


def _by_expert(counted: Sequence[int], order: Sequence[int]) -> list[int]:
    found = [0] * len(order)
    for row, expert in enumerate(order):
        found[expert] = counted[row]
    return found
