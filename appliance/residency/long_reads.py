"""Whether a layer of a long step reads its cold rows where they are or from staging: what takes less time. Pure.

In place each tile of tokens reads its expert's rows over the link, of visited experts alone. A copy reads every cold
row once, whoever is visited, and is hidden behind what is computed meanwhile. Rules:
1. Who is visited is known when a layer's router has run, too late for a copy that is to be hidden. So readings are
   expected: as many for a token as that layer needed at its last long step, times what the layers of this step that
   were seen already needed to what was expected of them; few rows say little. Of a layer that was never seen every row
   is read once.
2. How long is computed from a layer to the next is measured at each step, without what the layer waited for its copy
   and without its readings, and expected in the same way.
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


@dataclass(slots=True)
class _Expected:
    """Of the layers of a step that were seen already: what was found, and what had been expected."""

    found: float
    foreseen: float

    def add(self, found: float, foreseen: float) -> None:
        self.found, self.foreseen = self.found + found, self.foreseen + foreseen

    @property
    def ratio(self) -> float:
        return self.found / self.foreseen if self.foreseen else 1.0


class LongReads:
    """`rows`: by layer."""

    def __init__(self, rows: Mapping[int, ColdRows]) -> None:
        self._rows = rows
        self._most_rows = max((one.count for one in rows.values()), default=0)
        self.forget()

    def forget(self) -> None:
        """What was seen until now was made up."""
        self._readings: dict[int, float] = {}
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
        work_s = self._work_s.get(layer, 0.0) * tokens * self._works.ratio
        expected = self._as_before(layer, tokens) * self._needs.ratio
        return rows.copy_s - (work_s if is_ahead else 0) <= rows.in_place_s(expected)

    def seen(self, seen: SeenLayer) -> None:
        """A layer, in the order in which they run; maybe after its step is over."""
        rows, layer = self._rows[seen.layer], seen.layer
        if seen.step == self._step:
            self._needs.add(seen.readings + SOME, self._as_before(layer, seen.tokens))
            if not seen.is_staged:
                self._lost_s += rows.in_place_s(seen.readings) - rows.copy_s
        if self._before is not None and self._before.step == seen.step:
            self._learn(self._before, seen.since_s)
        self._readings[layer] = seen.readings / seen.tokens
        self._before = seen

    def _begin(self, step: int) -> None:
        self._step, self._lost_s = step, 0.0
        self._needs, self._works = _Expected(self._most_rows, self._most_rows), _Expected(0.0, 0.0)

    def _learn(self, before: SeenLayer, took_s: float) -> None:
        """That layer computed, and read if it was not staged.  (2)"""
        read_s = 0.0 if before.is_staged else self._rows[before.layer].in_place_s(before.readings)
        work_s = max(0.0, took_s - read_s) / before.tokens
        if before.step == self._step and before.layer in self._work_s:
            self._works.add(work_s, self._work_s[before.layer])
        self._work_s[before.layer] = work_s

    def _as_before(self, layer: int, tokens: int) -> float:
        """Readings.  (1)"""
        known = self._readings.get(layer)
        return SOME + (self._rows[layer].count if known is None else known * tokens)
