"""Sets of experts as people write them: "0-11,40,77-90". Pure.

One spelling for one set: ascending, runs of two or more joined, so that a plan's digest does not hang on style.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import groupby

_PART = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?")


def parse(text: str, limit: int | None = None) -> tuple[int, ...]:
    """The numbers of `text`, ascending; "" is none. Raises ValueError: not a range, a number twice, one that is not
    below `limit`."""
    if not text.strip():
        return ()
    found: set[int] = set()
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"{part.strip()!r} is neither a number nor a range such as 3-7")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise ValueError(f"{part.strip()!r} runs backwards")
        if limit is not None and last >= limit:
            raise ValueError(f"{last} is out of range: there are {limit}, 0 to {limit - 1}")
        twice = found.intersection(range(first, last + 1))
        if twice:
            raise ValueError(f"{min(twice)} occurs twice")
        found.update(range(first, last + 1))
    return tuple(sorted(found))


def spell(numbers: Iterable[int]) -> str:
    """The one spelling of a set of numbers."""
    runs = []
    for _, group in groupby(enumerate(sorted(set(numbers))), key=lambda pair: pair[1] - pair[0]):
        run = [number for _, number in group]
        runs.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return ",".join(runs)
