"""Whether a layer of a long step reads its cold rows where they are or from staging: what takes less time. Pure.

In place each tile of tokens reads its expert's rows over the link, of visited experts alone. A copy reads every cold
row once, whoever is visited, and is hidden behind what is computed meanwhile. Rules:
1. Who is visited is known when a layer's router has run, too late for a copy that is to be hidden. So readings are
   expected: as many as at that layer's last long step, in proportion where this one is longer, times what the layers of
   this step that were seen already needed to what was expected of them. A layer that was never seen is visited evenly.
2. How long is computed from one such layer to the next when nothing holds it up is learned, as one figure for a token,
   from the times at which layers are seen.
3. In place it takes that and the readings. From staging it takes the longer of that and the copy, or their sum where
   the copy has not begun a layer ahead.
4. Once readings in place have taken a step longer than the copies of those layers would have, all that follows in it is
   staged: whatever was expected wrongly costs a layer or two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

IN_PLACE_RATE = 0.9
"""Of the copy engine's: at what rate kernels read host pages. Source: docs/measurements.md, 0.88 to 0.93 on H200."""
HELD_UP = 1.15
"""A layer that took longer than so many times its copy was not held up by it."""
WEIGHT = 1 / 8
"""Of a layer's time in what is learned."""


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
    """What a layer of a long step was: how many readings of a cold row its `tokens` needed, or would have in place, and
    when its router had run, seconds of any clock."""

    layer: int
    tokens: int
    readings: int
    at_s: float
    is_staged: bool


class LongReads:
    """`rows`: by layer. `tile_tokens`: so many tokens read an expert's rows once, visits being even."""

    def __init__(self, rows: Mapping[int, ColdRows], tile_tokens: int) -> None:
        self._rows, self._tile_tokens = rows, tile_tokens
        self.forget()

    def forget(self) -> None:
        """What was seen until now was made up."""
        self._known: dict[int, SeenLayer] = {}
        self._work_s = 0.0
        self.begin_step()

    def begin_step(self) -> None:
        """The layers that follow are of another step."""
        self._before: SeenLayer | None = None
        self._found = self._foreseen = 1.0
        self._lost_s = 0.0

    def is_staged(self, layer: int, tokens: int, *, is_ahead: bool) -> bool:
        """`is_ahead`: a copy that began now would have a layer's time to be hidden behind.  (3)"""
        rows, work = self._rows[layer], self._work_s * tokens
        if self._lost_s > 0:
            return True
        copied = max(work, rows.copy_s) if is_ahead else work + rows.copy_s
        expected = self._as_before(layer, tokens) * self._found / self._foreseen
        return copied <= work + rows.in_place_s(expected)

    def seen(self, seen: SeenLayer) -> None:
        """A layer of this step, in the order in which they run."""
        rows = self._rows[seen.layer]
        self._foreseen += self._as_before(seen.layer, seen.tokens)
        self._found += seen.readings + 1
        if not seen.is_staged:
            self._lost_s += rows.in_place_s(seen.readings) - rows.copy_s
        if self._before is not None:
            self._learn(self._before, seen.at_s - self._before.at_s)
        self._known[seen.layer] = self._before = seen

    def _as_before(self, layer: int, tokens: int) -> float:
        """Readings, and one: what needed none may need some now.  (1)"""
        if (known := self._known.get(layer)) is None:
            return 1 + self._rows[layer].count * -(-tokens // self._tile_tokens)
        return 1 + known.readings * max(1, tokens / known.tokens)

    def _learn(self, before: SeenLayer, took_s: float) -> None:
        """From a layer to the next it took so long.  (2)"""
        rows, per_token = self._rows[before.layer], took_s / before.tokens
        if not before.is_staged:
            found = max(0.0, took_s - rows.in_place_s(before.readings)) / before.tokens
        elif took_s > HELD_UP * rows.copy_s:
            found = per_token
        else:
            found = min(self._work_s, per_token)
        self._work_s += WEIGHT * (found - self._work_s)
