"""Cold rows for long steps: copied ahead into VRAM that all layers share, instead of read over the link tile by tile.

Pure, but for the lane that copies. Rules:
1. A layer that is to compute more than `above` tokens reads its cold rows from staging; else it reads them where they
   are.
2. Layers take turns at the parts of staging, in the order in which they run: while one computes, the rows of the next
   are on their way.
3. A copy begins behind all that stands on the model's stream then: whatever read that part before is among it, and so
   is every exchange of rows.
4. A layer waits for its copy. One that finds other rows in its part, because it is the first of its step or because the
   order was another, copies anew.
5. What was copied holds until rows of that layer are exchanged.
Source: measured on H200 (docs/measurements.md): one 32 MiB matrix at 8,192 tokens takes 20.9 ms from the host, 0.34 ms
from VRAM, one copy 0.61 ms; 12 layers of 128 experts of which a token visits 8, a third cold, take in place 1.4 times
as long as with staging at 2,048 tokens, 4.7 times at 8,192, and about as long at 1,024.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

TILE_TOKENS = 64
"""That visit an expert are computed with one reading of its rows, or with more of them: Marlin's largest tile, and
Triton's without a table, in vLLM 0.26.0."""
PARTS = 2
"""One is read while the next is filled."""


def long_step(experts: int, top_k: int) -> int:
    """Steps of more tokens are long: they read an expert's rows more than once, visits being even. Shorter ones read
    them once where they are, which takes the link as long as a copy, and leave out those that nobody visits."""
    return TILE_TOKENS * experts // top_k


@dataclass(frozen=True, slots=True)
class Copy:
    """Bytes of a layer's cold rows: from the host's pages to staging's, by address."""

    target: int
    source: int
    size: int


class Lane(Protocol):
    """The stream that copies, beside the model's."""

    def copy_behind_model(self, copies: Sequence[Copy]) -> object:
        """Begin when all that stands on the model's stream is done. Returns what `hold_model` takes."""

    def hold_model(self, copied: object) -> None:
        """The model's stream goes on when those copies are done."""


class Staging:
    """`copies`: by layer, in the order in which they run. `above`: tokens."""

    def __init__(self, lane: Lane, copies: Mapping[int, Sequence[Copy]], above: int) -> None:
        self._lane, self._copies, self.above = lane, copies, above
        self._order = list(copies)
        self._turn = {layer: turn for turn, layer in enumerate(self._order)}
        self._held: dict[int, int] = {}
        self._copied: dict[int, object] = {}

    def before(self, layer: int, tokens: int) -> bool:
        """A layer is to compute `tokens`: whether it shall read staging, and then `after` must follow.  (1, 4)"""
        if tokens <= self.above:
            return False
        turn = self._turn[layer]
        if self._held.get(turn % PARTS) != layer:
            for ahead in range(PARTS):
                self._copy(turn + ahead)
        self._lane.hold_model(self._copied[turn % PARTS])
        return True

    def after(self, layer: int) -> None:
        """That layer's kernels are on the model's stream: its part is the next one's.  (2)"""
        self._copy(self._turn[layer] + PARTS)

    def exchanged(self, layer: int) -> None:
        """Rows of that layer were exchanged.  (5)"""
        self._held = {part: held for part, held in self._held.items() if held != layer}

    def _copy(self, turn: int) -> None:
        if turn < len(self._order):
            layer = self._order[turn]
            self._copied[turn % PARTS] = self._lane.copy_behind_model(self._copies[layer])  # 3
            self._held[turn % PARTS] = layer
