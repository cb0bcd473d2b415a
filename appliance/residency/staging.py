"""Cold rows for long steps: copied ahead into VRAM that all layers share, instead of read over the link tile by tile.

Pure, but for the lane that copies and counts. Rules:
1. A layer that is to compute more than `above` tokens reads its cold rows from staging where that takes less, as
   long_reads.py expects; else it reads them where they are.
2. Layers take turns at the parts of staging, in the order in which they run: while one computes, the rows of the next
   are on their way.
3. A copy begins behind all that stands on the model's stream then: whatever read that part before is among it, and so
   is every exchange of rows.
4. A layer waits for its copy. One that finds other rows in its part, because it is the first of its step, or was not to
   be staged when its turn was near, or the order was another, copies anew or reads in place.
5. What was copied holds until rows of that layer are exchanged.
6. What a long step visits is counted on the card before its kernel runs, and known here while it runs: so the model's
   stream is never empty because of it, and is never further ahead of the card than a layer.
Source: measured on H200 (docs/measurements.md): one 32 MiB matrix at 8,192 tokens takes 20.9 ms from the host, 0.34 ms
from VRAM, one copy 0.61 ms; 12 layers of 128 experts of which a token visits 8, a third cold, take in place 1.4 times
as long as with staging at 2,048 tokens, 4.7 times at 8,192, and about as long at 1,024; where cold experts are rarely
visited, 0.4 times at 2,048 tokens and 0.9 at 8,192.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from .long_reads import LongReads, SeenLayer

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


@dataclass(frozen=True, slots=True)
class ColdPart:
    """Of a layer: the physical ids of its cold experts, and what brings all their rows to staging."""

    ids: range
    copies: Sequence[Copy]


class Lane(Protocol):
    """The stream that copies, beside the model's; and a look at what the model's stream is about to compute."""

    def copy_behind_model(self, copies: Sequence[Copy]) -> object:
        """Begin when all that stands on the model's stream is done. Returns what `hold_model` takes."""

    def hold_model(self, copied: object) -> None:
        """The model's stream goes on when those copies are done."""

    def look(self, visited: object, cold: range) -> None:
        """Count, on the model's stream, how often the kernel that follows would read a cold row in place. `visited`:
        physical ids, [tokens, top-k]."""

    def seen(self) -> tuple[int, float]:
        """What the last look counted, and when it had, in seconds. Waits for it."""


class Staging:
    """`layers`: in the order in which they run. `above`: tokens. A step of more calls `before` and `after` around each
    layer's kernel."""

    def __init__(self, lane: Lane, layers: Mapping[int, ColdPart], reads: LongReads, above: int) -> None:
        self._lane, self._layers, self._reads, self.above = lane, layers, reads, above
        self._order = list(layers)
        self._turn = {layer: turn for turn, layer in enumerate(self._order)}
        self._last = len(self._order)
        self._held: dict[int, int] = {}
        self._copied: dict[int, object] = {}

    def forget(self) -> None:
        """What was computed until now was made up."""
        self._reads.forget()

    def before(self, layer: int, tokens: int, visited: object) -> bool:
        """A layer is to compute `tokens`: whether it shall read staging.  (1, 4)"""
        turn = self._turn[layer]
        if turn <= self._last:
            self._reads.begin_step()
        self._last, self._tokens = turn, tokens
        self._lane.look(visited, self._layers[layer].ids)
        self._fetch(turn)
        self._is_staged = self._held.get(turn % PARTS) == layer
        if self._is_staged:
            self._lane.hold_model(self._copied[turn % PARTS])
        return self._is_staged

    def after(self, layer: int) -> None:
        """That layer's kernels are on the model's stream: its part is the next one's.  (2, 6)"""
        readings, at_s = self._lane.seen()
        self._reads.seen(SeenLayer(layer, self._tokens, readings, at_s, self._is_staged))
        self._fetch(self._turn[layer] + 1)

    def exchanged(self, layer: int) -> None:
        """Rows of that layer were exchanged.  (5)"""
        self._held = {part: held for part, held in self._held.items() if held != layer}

    def _fetch(self, turn: int) -> None:
        """The layer of that turn, which is about to run, and those ahead of it, if they are to be staged."""
        for ahead, layer in enumerate(self._order[turn : turn + PARTS]):
            part = (turn + ahead) % PARTS
            if self._held.get(part) != layer and self._reads.is_staged(layer, self._tokens, is_ahead=ahead > 0):
                self._copied[part] = self._lane.copy_behind_model(self._layers[layer].copies)  # 3
                self._held[part] = layer
