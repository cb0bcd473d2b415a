"""Whether a layer of a long step reads its cold rows where they are or from staging: what takes less time. Pure.

In place each tile of tokens reads its expert's rows over the link, of visited experts alone. A copy reads every cold
row once, whoever is visited, and is hidden behind what is computed meanwhile. Rules:
1. Who is visited is known when a layer's router has run, too late for a copy that is to be hidden. So readings are
   expected: as many as at that layer's last long step, in proportion to tokens, times what the layers of this step
   that were seen already needed to what was expected of them. Of a layer that was never seen every row is read once.
2. How long is computed from a layer to the next is measured at each step, without what the layer waited for its copy
   and without its readings.
3. What a copy takes beyond that is lost, and all of it where it has not begun a layer ahead; in place the readings are.
4. Once readings in place are known to have cost a step more than the copies of those layers, by a copy, all that
   follows in it is staged.
What was expected wrongly, and is seen too late for its step, is known at the next one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

IN_PLACE_RATE = 0.9
"""Of the copy engine's: at what rate kernels read host pages. Source: docs/measurements.md, 0.88 to 0.93 on H200."""
SOME = 0.1
"""Readings: what needed none may need some now."""


@dataclass(frozen=True, slots=True)
class ColdRows:
    """Of one layer: `count`, and `copy_s`, seconds to copy all of them."""

    count: int
    copy_s: float

    def in_place_s(self, readings: float) -> float:
        """Seconds that so many readings of one row take."""
        return readings * self.copy_s / self.count / IN_PLACE_RATE


@dataclass(frozen=True, slots=True)
class SeenLayer:
    """What a layer of a long step was: how many readings of a cold row its `tokens` needed, or would have in place.
    `since_s`: from when the kernel of the layer before could begin until this layer's router had run, seconds. `step`:
    a number that grows."""

    step: int
    layer: int
    tokens: int
    readings: int
    since_s: float
    is_staged: bool


class LongReads:
    """`rows`: by layer."""

    def __init__(self, rows: Mapping[int, ColdRows]) -> None:
        self._rows = rows
        self.forget()

    def forget(self) -> None:
        """What was seen until now was made up."""
        self._known: dict[int, SeenLayer] = {}
        self._work_s: dict[int, float] = {}
        self._before: SeenLayer | None = None
        self._begin(0)

    def is_staged(self, step: int, layer: int, tokens: int, *, is_ahead: bool) -> bool:
        """`is_ahead`: a copy that began now would have a layer's time to be hidden behind.  (3)"""
        if step > self._step:
            self._begin(step)
        rows = self._rows[layer]
        if self._lost_s > rows.copy_s:
            return True
        work_s = self._work_s.get(layer, 0.0) * tokens
        expected = self._as_before(layer, tokens) * (self._found / self._foreseen if self._foreseen else 1)
        return rows.copy_s - (work_s if is_ahead else 0) <= rows.in_place_s(expected)

    def seen(self, seen: SeenLayer) -> None:
        """A layer, in the order in which they run; maybe after its step is over."""
        rows, before = self._rows[seen.layer], self._before
        if seen.step == self._step:
            self._found += seen.readings + SOME
            self._foreseen += self._as_before(seen.layer, seen.tokens)
            if not seen.is_staged:
                self._lost_s += rows.in_place_s(seen.readings) - rows.copy_s
        if before is not None and before.step == seen.step:
            read_s = 0.0 if before.is_staged else self._rows[before.layer].in_place_s(before.readings)
            self._work_s[before.layer] = max(0.0, seen.since_s - read_s) / before.tokens
        self._known[seen.layer] = self._before = seen

    def _begin(self, step: int) -> None:
        self._step = step
        self._found = self._foreseen = 0.0
        self._lost_s = 0.0

    def _as_before(self, layer: int, tokens: int) -> float:
        """Readings.  (1)"""
        known = self._known.get(layer)
        return SOME + (known.readings * tokens / known.tokens if known else self._rows[layer].count)
