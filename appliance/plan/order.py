"""In which order experts go to the host, by each way of choosing. Pure.

An order is a sequence of steps, each some experts of one layer; a plan takes a prefix of it. Rules:
1. The last `keep` experts of a layer, the hottest where there are counts, are in no step: a token's visits must find
   enough experts on the cards.
2. routing-stats: one expert a step, the least visited first; on a tie the lower layer, then the lower expert.
3. uniform: one expert a step, always of the layer with the fewest cold ones, the lower layer on a tie; within a layer
   the least visited first, the lowest first without counts.
4. layers: a layer a step, from the last one down or as listed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest

Step = tuple[int, tuple[int, ...]]
"""A layer, and its experts that go together."""
Visits = Mapping[int, Sequence[int]]
"""Layer -> visits by expert."""


def candidates(experts: int, keep: int, visits: Sequence[int] | None = None) -> tuple[int, ...]:
    """The experts of a layer that may go, the first to go first.  (1)"""
    if visits is None:
        return tuple(range(max(0, experts - keep)))
    return tuple(sorted(range(experts), key=lambda expert: (visits[expert], expert))[: max(0, experts - keep)])


def coldest_first(going: Mapping[int, Sequence[int]], visits: Visits) -> Iterator[Step]:
    """By visits over all layers. `going`: layer -> its candidates.  (2)"""
    flat = [(visits[layer][expert], layer, expert) for layer, experts in going.items() for expert in experts]
    return ((layer, (expert,)) for _, layer, expert in sorted(flat))


def level(going: Mapping[int, Sequence[int]]) -> Iterator[Step]:
    """As many in each layer.  (3)"""
    layers = sorted(going)
    for round_ in zip_longest(*(going[layer] for layer in layers)):
        for layer, expert in zip(layers, round_, strict=True):
            if expert is not None:
                yield layer, (expert,)


def by_layer(going: Mapping[int, Sequence[int]], listed: Sequence[int] = ()) -> Iterator[Step]:
    """Layer after layer.  (4)"""
    for layer in listed or sorted(going, reverse=True):
        if going[layer]:
            yield layer, tuple(going[layer])
