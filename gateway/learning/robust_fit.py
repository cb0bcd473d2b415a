"""Weighted medians, and least squares over weights that are never negative. Pure.

Rules:
- Errors are relative: a prompt of 2 s that took 3 counts as much as one of 20 that took 30.
- What lies far from all others counts little (Cauchy weights), so that one hiccup of an engine moves nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import combinations
from operator import mul

ROUNDS = 10
SPREAD_MIN = 0.05
"""Relative; measurements agree no better than this, however few there are."""
_MAD_TO_SIGMA = 1.4826
"""Source: the median absolute deviation of a normal distribution is sigma / 1.4826."""
_TINY = 1e-12
_SETTLED = 1e-4

Row = tuple[tuple[float, ...], float, float]
"""Features, measured value, weight."""


def weighted_median(values: Iterable[tuple[float, float]]) -> float | None:
    """Of (value, weight); the lower of two that could be it. None without any weight."""
    ranked = sorted((value, weight) for value, weight in values if weight > 0)
    half = sum(weight for _, weight in ranked) / 2
    passed = 0.0
    for value, weight in ranked:
        passed += weight
        if passed >= half * (1 - 1e-9):
            return value
    return None


def fit(rows: Sequence[Row], start: Sequence[float]) -> tuple[float, ...]:
    """Coefficients, none negative, for `measured = sum(coefficient * feature)`. `start`: a rough guess, from which
    outliers are told. `rows` have values above zero."""
    found, columns = tuple(start), list(zip(*(features for features, _, _ in rows), strict=True))
    measured, given = [row[1] for row in rows], [row[2] for row in rows]
    products = [[list(map(mul, left, right)) for right in (*columns, measured)] for left in columns]
    for _ in range(ROUNDS):
        expected = [max(sum(map(mul, found, features)), _TINY) for features, _, _ in rows]
        apart = [abs(math.log(value / own)) for value, own in zip(measured, expected, strict=True)]
        middle = weighted_median(zip(apart, given, strict=True)) or 0.0
        spread = max(SPREAD_MIN, _MAD_TO_SIGMA * middle)
        weights = [
            weight / (1 + (gap / spread) ** 2) / own**2 for weight, gap, own in zip(given, apart, expected, strict=True)
        ]
        normal = [[sum(map(mul, weights, product)) for product in line] for line in products]
        before, found = found, _non_negative(normal)
        if max(abs(new - old) for new, old in zip(found, before, strict=True)) <= _SETTLED * max(found):
            break
    return found


def _non_negative(normal: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """The best coefficients that are not negative, from the normal equations (the right side is the last column): the
    best among the fits of each choice of features."""
    size = len(normal)
    best, least = (0.0,) * size, 0.0
    for count in range(1, size + 1):
        for chosen in combinations(range(size), count):
            part = _solved([[normal[i][j] for j in (*chosen, size)] for i in chosen])
            if part is None or min(part) < 0:
                continue
            gain = sum(value * normal[i][size] for i, value in zip(chosen, part, strict=True))  # what the fit explains
            if gain > least:
                by_feature = dict(zip(chosen, part, strict=True))
                best, least = tuple(by_feature.get(i, 0.0) for i in range(size)), gain
    return best


def _solved(rows: list[list[float]]) -> list[float] | None:
    """Gaussian elimination with pivots; None when there is no single solution."""
    size = len(rows)
    scale = [max(map(abs, line[:size])) or 1.0 for line in rows]
    for column in range(size):
        pivot = max(range(column, size), key=lambda at: abs(rows[at][column]) / scale[at])
        if abs(rows[pivot][column]) <= 1e-10 * scale[pivot]:
            return None
        rows[column], rows[pivot] = rows[pivot], rows[column]
        scale[column], scale[pivot] = scale[pivot], scale[column]
        for below in range(column + 1, size):
            factor = rows[below][column] / rows[column][column]
            rows[below] = [value - factor * top for value, top in zip(rows[below], rows[column], strict=True)]
    found = [0.0] * size
    for at in reversed(range(size)):
        known = sum(rows[at][column] * found[column] for column in range(at + 1, size))
        found[at] = (rows[at][size] - known) / rows[at][at]
    return found
