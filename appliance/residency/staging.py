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
6. What a layer of a long step visits is counted on the card before its kernel runs. For the first `AWAITED` layers of a
   step that is waited for, while their kernels run: they tell a prompt from the one before. What the others visit is
   heard of when it is there. So the card does not wait for its next step; but on one card, where vLLM gives the step
   before out once this one is launched, that comes later by those layers and by launching the others.
Source: measured on H200 (docs/measurements.md): one 32 MiB matrix at 8,192 tokens takes 20.9 ms from the host, 0.34 ms
from VRAM, one copy 0.61 ms; 12 layers of 128 experts of which a token visits 8, a third cold, take in place 1.4 times
as long as with staging at 2,048 tokens, 4.7 times at 8,192, and about as long at 1,024; where cold experts are rarely
visited, 0.4 times at 2,048 tokens and 0.9 at 8,192.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from .long_reads import LongReads, SeenLayer

TILE_TOKENS = 64
"""That visit an expert are computed with one reading of its rows, or with more of them: Marlin's largest tile in vLLM
0.26.0. Triton's is 16 to 128, by table."""
PARTS = 2
"""One is read while the next is filled."""
AWAITED = 3
"""Layers of each long step."""


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

    def look(self, visited: object, cold: range, tile: int) -> object:
        """Count, on the model's stream, how often a kernel of tiles of so many tokens would read a cold row in place.
        `visited`: physical ids, [tokens, top-k]. Returns what `begin` and `found` take."""

    def begin(self, look: object) -> None:
        """That layer's kernel is next on the model's stream."""

    def found(self, look: object, *, is_awaited: bool) -> tuple[int, float] | None:
        """What it counted, and how many seconds after the `begin` of the look that was found before it. None: it is not
        there yet, and not awaited."""


@dataclass(frozen=True, slots=True)
class _Looked:
    step: int
    layer: int
    tokens: int
    is_staged: bool
    look: object


class Staging:
    """`layers`: in the order in which they run. `above`: tokens. Around each layer's kernel a long step calls
    `before` and `after`."""

    def __init__(self, lane: Lane, layers: Mapping[int, ColdPart], reads: LongReads, above: int) -> None:
        self._lane, self._layers, self._reads, self.above = lane, layers, reads, above
        self._order = list(layers)
        self._turn = {layer: turn for turn, layer in enumerate(self._order)}
        self._step, self._last, self._run = 0, len(self._order), 0
        self._held: dict[int, int] = {}
        self._copied: dict[int, object] = {}
        self._looks: deque[_Looked] = deque()

    def forget(self) -> None:
        """What was computed until now was made up."""
        self._hear(is_awaited=True)
        self._reads.forget()

    def is_long(self, tokens: int) -> bool:
        """Whether a step of so many calls `before` and `after`; a shorter one reads in place.  (1)"""
        return tokens > self.above

    def before(self, layer: int, tokens: int, visited: object, tile: int) -> bool:
        """A layer is to compute `tokens`, in tiles of so many: whether it shall read staging.  (1, 4)"""
        turn = self._turn[layer]
        if turn <= self._last:
            self._step, self._run = self._step + 1, 0
        self._last, self._run = turn, self._run + 1
        look = self._lane.look(visited, self._layers[layer].ids, tile)
        self._fetch(turn, tokens)
        is_staged = self._held.get(turn % PARTS) == layer
        if is_staged:
            self._lane.hold_model(self._copied[turn % PARTS])
        self._lane.begin(look)
        self._looks.append(_Looked(self._step, layer, tokens, is_staged, look))
        return is_staged

    def after(self, layer: int, tokens: int) -> None:
        """That layer's kernels are on the model's stream: its part is the next one's.  (2)"""
        if self._run <= AWAITED:
            self._hear(is_awaited=True)
        self._fetch(self._turn[layer] + 1, tokens)

    def exchanged(self, layer: int) -> None:
        """Rows of that layer were exchanged.  (5)"""
        self._held = {part: held for part, held in self._held.items() if held != layer}

    def _fetch(self, turn: int, tokens: int) -> None:
        """The layer of that turn, which is about to run, and those ahead of it, if they are to be staged."""
        self._hear(is_awaited=False)
        for ahead, layer in enumerate(self._order[turn : turn + PARTS]):
            part = (turn + ahead) % PARTS
            if self._held.get(part) != layer and self._reads.is_staged(self._step, layer, tokens, is_ahead=ahead > 0):
                self._copied[part] = self._lane.copy_behind_model(self._layers[layer].copies)  # 3
                self._held[part] = layer

    def _hear(self, *, is_awaited: bool) -> None:
        """Of all looks, or of those that are there.  (6)"""
        while self._looks:
            one = self._looks[0]
            if (found := self._lane.found(one.look, is_awaited=is_awaited)) is None:
                return
            self._looks.popleft()
            self._reads.seen(SeenLayer(one.step, one.layer, one.tokens, *found, one.is_staged))
