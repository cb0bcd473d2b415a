"""Which experts change places while the engine runs: hot rows that nobody visits for cold ones that many do. Pure.

Rules:
1. What counts is the rate of visits: visits a token, decayed by tokens, so that the traffic of the last minutes speaks
   and an idle box forgets nothing.
2. A swap exchanges one hot and one cold expert of one layer. It pays when the difference of their rates, over the
   tokens that the rates look back on, is worth `pays_hits` visits to a cold row: what moving two rows costs the link.
   Counts are a sample, and of many experts the best and the worst are chosen: the difference must also be `sure`
   standard deviations of two counts, or even traffic would be swapped for ever.
3. The one that pays most goes first, over all layers; never more bytes than the caller allows. A swap moves both rows
   over the link.
4. Counts whose share of visits to cold experts is half as much again as the rates say, and more than chance makes it,
   are other traffic: what was counted before then weighs a twentieth. Rates that look back far are exact but slow, and
   this makes them quick when it matters. Not again for `other_tokens`: requests that each prefer other experts are one
   traffic, and following each would move rows for nothing.
Source: an exchange of two rows costs the link what two reads of a cold one cost. Numbers by simulation: 12 x 128
experts of which a third is cold, top 8, Zipf of 1.2 and 0.7 shifted by half: within a tenth of the best placement after
1,600 to 6,900 tokens; even traffic spends 0.2 % of its reads on exchanges.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import merge
from itertools import islice
from math import inf, sqrt

Rest = Callable[[], object]
"""Called between two layers: the engine's own thread waits while this one holds the interpreter."""


def on() -> None:
    """No rest."""


@dataclass(frozen=True, slots=True)
class Policy:
    """`pays_hits`: visits that a swap must save, and `sure` standard deviations on top, 0 = none; `half_life_tokens`:
    after so many tokens a visit counts half. Other traffic: `other_share` times as many visits to cold experts as
    expected and `other_deviations` on top; then what was counted weighs `other_keeps`, once in `other_tokens`."""

    pays_hits: float = 2.0
    sure: float = 1.0
    half_life_tokens: float = 6_000.0
    other_share: float = 1.5
    other_deviations: float = 3.0
    other_keeps: float = 0.05
    other_tokens: float = 3_000.0


@dataclass(frozen=True, slots=True)
class Swap:
    """`hot` goes to the host, `cold` to VRAM; logical ids of layer `layer`. `saves`: visits to cold rows a token."""

    layer: int
    hot: int
    cold: int
    saves: float


@dataclass(slots=True)
class Rates:
    """Visits a token of each expert, by layer. `weight`: decayed tokens that they rest on."""

    policy: Policy
    visits: dict[int, list[float]] = field(default_factory=dict)
    weight: float = 0.0
    _forgot_tokens_ago: float = inf

    def count(self, visits: Mapping[int, Sequence[int]], tokens: int, rest: Rest = on) -> None:
        """`tokens` more, and which experts they visited, by layer and logical id; layers left out: none.  (1)"""
        keeps = 0.5 ** (tokens / self.policy.half_life_tokens)
        self.weight = self.weight * keeps + tokens
        self._forgot_tokens_ago += tokens
        for layer in self.visits.keys() | visits.keys():
            counted = visits[layer] if layer in visits else [0] * len(self.visits[layer])
            before = self.visits.get(layer, [0.0] * len(counted))
            self.visits[layer] = [old * keeps + new for old, new in zip(before, counted, strict=True)]
            rest()

    def rate(self, layer: int, expert: int) -> float:
        """Visits a token; 0 before any was counted."""
        return self.visits[layer][expert] / self.weight if self.weight else 0.0

    def cold_share(self, cold: Mapping[int, Sequence[int]]) -> float:
        """Share of all visits that go to the cold experts `cold`, by layer; 0 before any was counted."""
        everything = sum(map(sum, self.visits.values()))
        counted = {layer: experts for layer, experts in cold.items() if layer in self.visits}
        there = sum(self.visits[layer][expert] for layer, experts in counted.items() for expert in experts)
        return there / everything if everything else 0.0

    def is_other(self, cold_visits: int, visits: int, cold: Mapping[int, Sequence[int]]) -> bool:
        """Whether counts with so many visits, so many of them to `cold`, are not the traffic of these rates.  (4)"""
        if not self.weight or self._forgot_tokens_ago < self.policy.other_tokens:
            return False
        expected = self.cold_share(cold) * visits
        chance = self.policy.other_deviations * sqrt(max(1.0, expected))
        return cold_visits > self.policy.other_share * expected + chance

    def forget(self) -> None:
        """What was counted so far is of other traffic.  (4)"""
        keeps, self._forgot_tokens_ago = self.policy.other_keeps, 0.0
        self.weight *= keeps
        self.visits = {layer: [old * keeps for old in counted] for layer, counted in self.visits.items()}


def swaps(
    rates: Rates, cold: Mapping[int, Sequence[int]], row_bytes: int, most_bytes: int, rest: Rest = on
) -> tuple[Swap, ...]:
    """What to exchange now, the most useful first. `cold`: the cold experts by layer; `row_bytes`: one expert's rows in
    all tensors of a layer; `most_bytes`: that may cross the link.  (2, 3)"""
    ranked = []
    for layer, experts in cold.items():
        if layer in rates.visits:
            ranked.append(_ranked(rates, layer, experts))
            rest()
    best_first = merge(*ranked, key=lambda swap: (-swap.saves, swap.layer))
    return tuple(islice(best_first, most_bytes // max(1, 2 * row_bytes)))


def _ranked(rates: Rates, layer: int, experts: Sequence[int]) -> list[Swap]:
    """A layer's swaps that pay: the most visited cold expert for the least visited hot one, and so on."""
    cold, policy = set(experts), rates.policy
    here = range(len(rates.visits[layer]))
    wanted = sorted((one for one in here if one in cold), key=lambda one: (-rates.rate(layer, one), one))
    unwanted = sorted((one for one in here if one not in cold), key=lambda one: (rates.rate(layer, one), one))
    found = []
    for hot, one in zip(unwanted, wanted, strict=False):
        saves = rates.rate(layer, one) - rates.rate(layer, hot)
        both = rates.visits[layer][one] + rates.visits[layer][hot]
        if saves * rates.weight < policy.pays_hits + policy.sure * sqrt(both):
            break
        found.append(Swap(layer, hot, one, saves))
    return found
