"""Whether two engines said the same, and how their pace compares over pairs of boots. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, log, sqrt
from statistics import mean, stdev
from typing import Any

_T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
"""Pairs -> Student's t, two-sided 95 %, one degree of freedom less."""


def agreement(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """How many tokens of both answers are equal at the same place, short and long prompts apart."""
    said = []
    for key in ("tokens", "long_tokens"):
        if key not in one or key not in other:
            return "not compared: one of them has no tokens"
        pairs = [
            (left, right)
            for answer, same in zip(one[key], other[key], strict=True)
            for left, right in zip(answer, same, strict=True)
        ]
        said.append(f"{sum(left == right for left, right in pairs)} of {len(pairs)}")
    return ", long prompts ".join(said)


def ratio(pairs: Sequence[tuple[float, float]]) -> str:
    """Of the first to the second of each pair, 2 to 10 of them: the boot is the unit, so one figure a pair counts, and
    the interval is Student's on the logarithms."""
    logs = [log(one / other) for one, other in pairs]
    half = _T_95[len(logs)] * stdev(logs) / sqrt(len(logs))
    low, middle, high = (exp(mean(logs) + side * half) for side in (-1, 0, 1))
    return f"{middle:.3f} (95 %: {low:.3f} to {high:.3f}, {len(logs)} pairs of boots)"
