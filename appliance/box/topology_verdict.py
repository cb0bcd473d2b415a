"""Judges how a box's cards reach each other, for experts that both read from host memory. Pure.

The label alone proves little: many boxes print SYS inside one NUMA node, and NVLink hides where the cards are. So both
the relation and the NUMA nodes count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import combinations

from appliance.box.gpu import Relation

SLOW_FACTOR = (1.17, 1.51)
"""Median time a token, cards on two sockets against cards on one NUMA node; one run each, so a likely cause and no
proof. Source: the study's pods 1 and 2."""
ASK = (
    "ask the provider for a host whose cards are on one NUMA node: `nvidia-smi topo -m` shows NODE, PHB, PXB, PIX or NV"
    " between them and the same NUMA Affinity"
)
MEASURE = "moe-appliance preflight --deep"


class Grade(IntEnum):
    """From good to bad. NOTE: worth saying, no reason to act; UNKNOWN: cannot be told, measure; SLOW: the study's slow
    host."""

    GOOD = 0
    NOTE = 1
    UNKNOWN = 2
    SLOW = 3


@dataclass(frozen=True, slots=True)
class Verdict:
    """`pairs`: those with the worst grade. `observed`: of the first of them, in words. `factor`: how much slower each
    token came on such a host, least and most; None unless SLOW. `remedy`: "" when GOOD."""

    grade: Grade
    pairs: tuple[tuple[int, int], ...]
    observed: str
    factor: tuple[float, float] | None = None
    remedy: str = ""


def verdict(
    relations: Mapping[tuple[int, int], Relation], nodes: Mapping[int, int | None], cards: Sequence[int]
) -> Verdict:
    """The worst of all pairs of `cards` (indexes). `relations`: (i, j) with i < j; `nodes`: NUMA node by index, None or
    missing = unknown."""
    graded: dict[tuple[int, int], tuple[Grade, str]] = {}
    for a, b in combinations(sorted(set(cards)), 2):
        graded[a, b] = _grade(relations.get((a, b)), nodes.get(a), nodes.get(b))
    if not graded:
        return Verdict(Grade.GOOD, (), "there are no two cards")
    worst = max(grade for grade, _ in graded.values())
    pairs = tuple(pair for pair, (grade, _) in graded.items() if grade is worst)
    (a, b), others = pairs[0], len(pairs) - 1
    more = f" ({others} more such pair{'s' if others > 1 else ''})" if others else ""
    return Verdict(
        worst,
        pairs,
        f"GPU{a} and GPU{b}: {graded[a, b][1]}{more}",
        SLOW_FACTOR if worst is Grade.SLOW else None,
        {Grade.GOOD: "", Grade.SLOW: ASK}.get(worst, MEASURE),
    )


def _grade(relation: Relation | None, one: int | None, other: int | None) -> tuple[Grade, str]:
    """1. Without the nodes only SYS is in doubt: anything else says by itself that the path stays inside one node.
    2. On one node whatever joins the cards is good; SYS there is worth a note.
    3. On two nodes SYS is the slow host; anything else reaches the other card well, and only host memory may be far.
    """
    name = "an unknown way" if relation is None else str(relation)
    if one is None or other is None:  # 1
        doubt = relation is Relation.SYS or relation is None
        return (Grade.UNKNOWN if doubt else Grade.GOOD), f"{name}, NUMA nodes unknown"
    if relation is None:
        return Grade.UNKNOWN, f"{name}, on NUMA nodes {one} and {other}"
    if one == other:  # 2
        both = f"both on NUMA node {one}"
        return (Grade.NOTE, f"SYS, yet {both}") if relation is Relation.SYS else (Grade.GOOD, f"{name}, {both}")
    where = f"on NUMA nodes {one} and {other}"
    if relation is Relation.SYS:  # 3
        return Grade.SLOW, f"SYS, {where}: reads of host memory and of the other card cross the link between sockets"
    return Grade.NOTE, f"{name}, yet {where}"
