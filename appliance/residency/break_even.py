"""Up to how many tokens a step reads its cold rows where they are sooner than from staging. Pure.

Rules:
1. Staging copies all cold rows of a layer, whoever is visited. Read in place, an expert's rows cross the link once for
   each tile of the tokens that visit it, and not at all when nobody does. So it is the visits that decide: traffic that
   hardly visits cold experts reads few of their rows, in long steps too.
2. A step had better read staging once it would read `LARGE_SHARE` of all cold rows in place: the copy is hidden behind
   what the step computes, reading is not.
3. Visits are taken to be independent, at the rates that short steps showed. A step that visits more than they say
   reads each cold row once more than it should have, at worst, until its tokens fill more tiles.
4. Lengths are tried from `least` on, each twice the one before: finer than that the rates do not say it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp

from .policy import Rates

LARGE_SHARE = 0.7
TILE_TOKENS = 64
"""Of vLLM 0.26.0's kernels: Marlin's largest, and Triton's without a table; those with tables take 16 to 128."""


def staged_above(rates: Rates, cold: Mapping[int, Sequence[int]], least: int, longest: int) -> int:
    """Steps of more tokens are for staging. `cold`: the cold experts by layer; `least` stands while nothing was
    counted; a result of `longest` or more: none is."""
    each = [rates.rate(layer, one) for layer, experts in cold.items() if layer in rates.visits for one in experts]
    if not rates.weight:
        return least
    tokens = max(1, least)
    while tokens < longest and _rows_read(each, tokens) < LARGE_SHARE * len(each):
        tokens *= 2
    return tokens


def _rows_read(each: Sequence[float], tokens: int) -> float:  # 1, 3
    visits = (rate * tokens for rate in each)
    return sum(max(1.0 - exp(-count), count / TILE_TOKENS) for count in visits)
