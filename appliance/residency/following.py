"""Residency follows traffic: what one rank makes of each reading of the counts. Pure.

Rules:
1. Counts are by physical row, as rows stood when they were read; rates are by expert.
2. Rows may stand elsewhere by now: what is cold is taken from where they stand when it is decided.
3. What the link is allowed gathers with time, up to what the steps of a round carry, or one swap if that is more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .document import Residency
from .policy import Policy, Rates, Swap, swaps

MIB = 1 << 20
STEP_BYTES = 64 * MIB
"""Exchanged before one step at most, or one swap if that is more: 1.3 ms of a link of 50 GB/s."""
STEP_SWAPS = 8
"""Nor more than these: each is some dozens of calls of torch."""
ROUND_STEPS = 128
"""From one reading to the next."""
ROUND_BYTES = STEP_BYTES * ROUND_STEPS // 2
"""Half of a round's steps carry it, the other half shows what came of it."""

Orders = Mapping[int, Sequence[int]]
"""Of each layer the logical id in each row."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one reading. `tokens` that were counted in `seconds`; visits `all` of them made, and those to `cold` rows;
    `cold_bytes`: of those visits, which is what crossed the link if no two tokens of a step shared an expert."""

    tokens: int
    seconds: float
    visits: int
    cold_visits: int
    cold_bytes: int


@dataclass(slots=True)
class Following:
    """`row_bytes`: of one expert's rows on this rank, by layer. `totals`: all visits since the start, by layer and
    expert; `tokens`: that made them."""

    residency: Residency
    row_bytes: Mapping[int, int]
    mib_per_s: int
    rates: Rates = field(default_factory=lambda: Rates(Policy()))
    totals: dict[int, list[int]] = field(default_factory=dict)
    tokens: int = 0
    swapped: int = 0
    _room: float = 0.0

    def hear(self, tokens: int, seconds: float, visits: Mapping[int, Sequence[int]], orders: Orders) -> Figures:
        """A reading: `visits` by layer and row, rows in the `orders` of then.  (1)"""
        by_expert = {layer: _by_expert(counted, orders[layer]) for layer, counted in visits.items()}
        cold = {layer: sum(visits[layer][len(orders[layer]) - count :]) for layer, count in self._counts(orders)}
        every = sum(map(sum, visits.values()))
        if self.rates.is_other(sum(cold.values()), every, self.cold(orders)):
            self.rates.forget()
        self.rates.count(by_expert, tokens)
        for layer, counted in by_expert.items():
            before = self.totals.get(layer, [0] * len(counted))
            self.totals[layer] = [old + new for old, new in zip(before, counted, strict=True)]
        self.tokens += tokens
        return Figures(
            tokens,
            seconds,
            every,
            sum(cold.values()),
            sum(count * self.row_bytes[layer] for layer, count in cold.items()),
        )

    def decide(self, seconds: float, orders: Orders) -> tuple[Swap, ...]:
        """What to exchange now, the rows in `orders`, `seconds` after the last time.  (2, 3)"""
        cold = self.cold(orders)
        row = max((self.row_bytes[layer] for layer in cold), default=0)
        self._room = min(max(ROUND_BYTES, 2 * row), self._room + self.mib_per_s * MIB * seconds)
        found = swaps(self.rates, cold, row, int(self._room))
        self._room -= 2 * row * len(found)
        self.rates.moved(found)
        self.swapped += len(found)
        return found

    def cold(self, orders: Orders) -> dict[int, list[int]]:
        """The experts in the last rows of each layer that has cold ones."""
        return {layer: sorted(orders[layer][len(orders[layer]) - count :]) for layer, count in self._counts(orders)}

    def _counts(self, orders: Orders) -> list[tuple[int, int]]:
        return [(layer, len(cold)) for layer, cold in self.residency.cold.items() if cold and layer in orders]


def _by_expert(counted: Sequence[int], order: Sequence[int]) -> list[int]:
    found = [0] * len(order)
    for row, expert in enumerate(order):
        found[expert] = counted[row]
    return found
