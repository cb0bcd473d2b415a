"""Sets of experts as people write them: "0-11,40,77-90". Pure.

One spelling for one set: ascending, runs of two or more joined, so that a plan's digest does not hang on style.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import groupby, pairwise

MOST = 10_000
"""Numbers are below it: no model has as many layers, or experts in one, and a range is kept written out."""
_PART = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?")


def parse(text: str, limit: int = MOST) -> tuple[int, ...]:
    """The numbers of `text`, ascending; "" is none. Raises ValueError: not a range, a number twice, one that is not
    below `limit`."""
    return tuple(number for first, last in _runs(text, limit) for number in range(first, last + 1))


def respell(text: str) -> str:
    """The one spelling of what `text` says, found without writing the numbers out. Raises ValueError as `parse`."""
    joined: list[tuple[int, int]] = []
    for first, last in _runs(text, MOST):
        if joined and joined[-1][1] + 1 == first:
            first, _ = joined.pop()
        joined.append((first, last))
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in joined)


def _runs(text: str, limit: int) -> list[tuple[int, int]]:
    """First and last number of each part, ascending."""
    if not text.strip():
        return []
    runs = sorted(_run(part.strip(), limit) for part in text.split(","))
    for (_, last), (first, _) in pairwise(runs):
        if first <= last:
            raise ValueError(f"{first} occurs twice")
    return runs


def _run(part: str, limit: int) -> tuple[int, int]:
    """The first and the last number of one part. Raises ValueError."""
    match = _PART.fullmatch(part)
    if match is None:
        raise ValueError(f"{part!r} is neither a number nor a range such as 3-7")
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first:
        raise ValueError(f"{part!r} runs backwards")
    if last >= limit:
        raise ValueError(f"{last} is out of range: there are {limit}, 0 to {limit - 1}")
    return first, last


def spell(numbers: Iterable[int]) -> str:
    """The one spelling of a set of numbers."""
    runs = []
    for _, group in groupby(enumerate(sorted(set(numbers))), key=lambda pair: pair[1] - pair[0]):
        run = [number for _, number in group]
        runs.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return ",".join(runs)
