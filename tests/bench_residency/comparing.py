"""Whether two engines said the same, and how their pace compares over pairs of boots. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, inf, log, sqrt
from statistics import mean, median, stdev
from typing import Any

_T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
"""Pairs -> Student's t, two-sided 95 %, one degree of freedom less."""


Answer = Sequence[Mapping[str, float]]


def agreement(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """`compared` for the answers to short and to long prompts that two runs found."""
    keys = ("tokens", "long_tokens")
    if any(key not in found for key in keys for found in (one, other)):
        return "not compared: one of them has no tokens"
    return ", long prompts ".join(compared(one[key], other[key]) for key in keys)


def compared(some: Sequence[Answer], others: Sequence[Answer]) -> str:
    """How many tokens of greedy answers are equal at the same place, and how far they are from it. An answer is a list
    of places, each the likeliest tokens and their logprobs, the chosen one first.

    Up to the first difference both engines have seen the same, so there, and only there, logprobs compare: how much
    those of the chosen tokens differ, and by how much the other preferred its own token to the one chosen here."""
    pairs = [list(zip(answer, same, strict=True)) for answer, same in zip(some, others, strict=True)]
    equal = sum(_chosen(left) == _chosen(right) for pair in pairs for left, right in pair)
    return f"{equal} of {sum(map(len, pairs))}{_distance(pairs)}"


def _chosen(place: Mapping[str, float]) -> str:
    return next(iter(place))


def _distance(pairs: Sequence[Sequence[tuple[Mapping[str, float], Mapping[str, float]]]]) -> str:
    apart, preferred = [], []
    for pair in pairs:
        for left, right in pair:
            chosen = _chosen(left)
            if chosen != _chosen(right):
                preferred.append(right[_chosen(right)] - right[chosen] if chosen in right else inf)
                break
            apart.append(abs(left[chosen] - right[chosen]))
    said = f" (logprobs apart by {median(apart):.4f}, at most {max(apart):.4f}" if apart else " (no token equal"
    if preferred:
        said += f"; {len(preferred)} of {len(pairs)} answers part, at tokens apart by at most {max(preferred):.4f}"
    return said + ")"


NEAR, LOOK_S = 1.1, 10.0


def settled(rows: Sequence[Mapping[str, float]], best: float) -> float | None:
    """After how many seconds the share of visits to cold experts was, over `LOOK_S`, within a tenth of `best`. Rows:
    `at`, seconds, and all `visits` and `cold_visits` until then, the first as the traffic became another. None: never.
    """
    for begin in rows:
        for end in rows:
            if end["at"] >= begin["at"] + LOOK_S:
                share = (end["cold_visits"] - begin["cold_visits"]) / max(1, end["visits"] - begin["visits"])
                if share <= NEAR * best:
                    return begin["at"] - rows[0]["at"]
                break
    return None


def ratio(pairs: Sequence[tuple[float, float]]) -> str:
    """Of the first to the second of each pair, 2 to 10 of them: the boot is the unit, so one figure a pair counts, and
    the interval is Student's on the logarithms."""
    logs = [log(one / other) for one, other in pairs]
    half = _T_95[len(logs)] * stdev(logs) / sqrt(len(logs))
    low, middle, high = (exp(mean(logs) + side * half) for side in (-1, 0, 1))
    return f"{middle:.3f} (95 %: {low:.3f} to {high:.3f}, {len(logs)} pairs of boots)"
