"""What of a prompt the engine's cache holds, estimated from what it read before and corrected by what it says. Pure.

Rules:
- Lengths: bytes by the seat's ratio, until an engine counted. The length of a prompt that was read is exact, and is
  known at its end; what it shares with the next one is not estimated again.
- A reply is cached behind its prompt. Its bytes are not known before they come back, so what a model wrote behind a
  known end counts as cached, up to the tokens that the reply had.
- The engine is right. What it had of a prompt that parts from others at some block is expected of the next one that
  parts there: a chat template may write the system prompt before the tools, or an old turn anew.
- Where it had less than was expected, and the age of what it lost explains that, several times in 5 min, then all that
  is older went too, and its cache is smaller than was believed. Where it still had what was believed to have gone, its
  cache is larger.
- An engine that does not say what was cached is taken at the estimate.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from types import MappingProxyType

from gateway.meter import Usage
from gateway.prefix.blocks import Block, Blocks
from gateway.prefix.fingerprint import NAME_BYTES, Fingerprint
from gateway.prefix.packed import TOKENS_MAX, Packed, pack, unpack
from gateway.prefix.ratio import Ratios

SLACK_TOKENS = 512
SLACK_SHARE = 0.05
"""A difference below the larger of both is one of estimates, and of blocks as engines cut them (16 to 1,056 tokens)."""
EXPLAINED_SHARE = 0.5
"""A loss is the cache's when half of what was held is younger than what was lost."""
SHRINK = 0.9
GROW = 1.1
LOSSES_MIN = 2
EXPLAINED_S = 3600.0
"""So many losses that its size explains within so many seconds say something of the cache. A box that is a little too
small for its team loses a prompt every few minutes."""
LOSSES_S = 300.0
"""What is told as lost lately."""
_LOSSES_KEPT = 1000


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a prompt asks of the engine, in tokens."""

    prompt_tokens: int
    cached_tokens: int

    @property
    def uncached_tokens(self) -> int:
        """What the engine has to read."""
        return self.prompt_tokens - self.cached_tokens


@dataclass(frozen=True, slots=True)
class _Found:
    """What of a prompt is held: `depth` blocks, and behind them a reply of `reply_tokens`."""

    depth: int
    reply_tokens: int


@dataclass(slots=True)
class SeatHits:
    """Sums over a seat's requests of which the engine said what was cached."""

    requests: int = 0
    prompt_tokens: int = 0
    expected_tokens: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """A request that the engine has. `expected` is what was believed when it went there; `epoch`: in which index, since
    it was cleared last."""

    print_: Fingerprint
    seat: str
    expected: Estimate
    depth: int
    known_depth: int
    ages: tuple[int, ...]
    epoch: object
    parts: bool
    ahead: bool = False


class PrefixIndex:
    """One per engine. Times are seconds of one monotonic clock. `capacity_tokens` None: not known, until something is
    seen to be lost."""

    def __init__(self, capacity_tokens: int | None = None) -> None:
        self.capacity_tokens = capacity_tokens
        self.losses = 0
        self._blocks = Blocks()
        self._ratios = Ratios()
        self._lost_s: deque[float] = deque(maxlen=_LOSSES_KEPT)
        self._explained_s: deque[float] = deque(maxlen=LOSSES_MIN)
        self._hits: dict[str, SeatHits] = {}
        self._epoch = object()

    @property
    def held_tokens(self) -> int:
        """What the cache is believed to hold."""
        return self._blocks.tokens

    @property
    def hits(self) -> Mapping[str, SeatHits]:
        """Expected against real, seat by seat."""
        return MappingProxyType(self._hits)

    def losses_lately(self, now_s: float) -> int:
        """How often in the last 5 min the engine had lost what was believed to be there."""
        return sum(now_s - at_s <= LOSSES_S for at_s in self._lost_s)

    def estimate(self, print_: Fingerprint, seat: str) -> Estimate:
        """What a request would ask of the engine now. Changes nothing; a search by halves."""
        there = self._there(print_)
        known_depth = self._blocks.known_depth(print_.names, there.depth)
        return self._estimate(print_, seat, there, known_depth)

    def begin(self, print_: Fingerprint, seat: str, now_s: float, *, ahead: bool = False) -> Reading:
        """The engine gets it: all of it counts as held from now on and stays, until `end` of what this returns.
        `ahead`: nobody asked for it yet, so that it says nothing of how well the seat's requests hit."""
        blocks, names = self._blocks, print_.names
        there = self._there(print_)
        known_depth = blocks.known_depth(names, there.depth)
        ages = tuple(map(blocks.age, names[: there.depth]))
        expected = self._estimate(print_, seat, there, known_depth)
        parts = 0 < there.depth < len(names) and not self._comes_back(print_, seat, there)
        reading = Reading(print_, seat, expected, there.depth, known_depth, ages, self._epoch, parts, ahead)
        if 0 < there.depth < len(names):
            blocks.remove(_reply_name(names[there.depth - 1]))  # it comes back as what follows, or as nothing
        blocks.pin(names, print_.ends, self._ratios.tok_per_byte(seat))
        blocks.shrink(self.capacity_tokens)
        return reading

    def end(self, reading: Reading, usage: Usage | None, *, read: bool, now_s: float) -> None:
        """The engine is done with it. `usage`: what it counted, None when it did not come to that. `read`: it had read
        the prompt (a token came, or usage)."""
        if reading.epoch is not self._epoch or not reading.print_.names:
            return
        names = reading.print_.names
        read = read or usage is not None
        if usage is not None and 0 < usage.prompt_tokens <= TOKENS_MAX and 0 <= usage.completion_tokens <= TOKENS_MAX:
            self._learn(reading, usage, now_s)
            upto = usage.prompt_tokens + usage.completion_tokens
            self._blocks.add(_reply_name(names[-1]), Block(upto, usage.completion_tokens, exact=True, read=True))
        self._blocks.unpin(names, read)
        self._blocks.shrink(self.capacity_tokens)

    def clear(self) -> None:
        """The engine was started again: its cache is empty. Readings of before, as those of another index, end
        without effect."""
        self._blocks = Blocks()
        self._epoch = object()

    def dumping(self) -> Generator[None, None, bytes]:
        """All that a later `load` needs to estimate the same, in steps, see packed.py; of prompts only names."""
        return pack(Packed(self.capacity_tokens, self._ratios, *self._blocks.oldest_first()))

    @classmethod
    def load(cls, raw: bytes) -> PrefixIndex:
        """An index as `dumping` left it, with nothing running. Raises ValueError for anything else."""
        packed = unpack(raw)
        index = cls(packed.capacity_tokens)
        index._ratios = packed.ratios
        for name, block in zip(packed.names, packed.blocks, strict=True):
            index._blocks.add(name, block)
        index._blocks.shrink(index.capacity_tokens)
        return index

    # Lengths

    def _there(self, print_: Fingerprint) -> _Found:
        depth = self._blocks.depth(print_.names)
        reply = self._blocks.held(_reply_name(print_.names[depth - 1])) if depth else None
        return _Found(depth, reply.tokens if reply is not None else 0)

    def _block(self, name: bytes) -> Block:
        block = self._blocks.held(name)
        assert block is not None
        return block

    def _prompt_tokens(self, print_: Fingerprint, seat: str, known_depth: int) -> int:
        upto, start = 0, 0
        if known_depth:
            block = self._blocks.known(print_.names[known_depth - 1])
            assert block is not None
            upto, start = block.upto, print_.ends[known_depth - 1]
        return max(1, upto + round((print_.bytes - start) * self._ratios.tok_per_byte(seat)))

    def _estimate(self, print_: Fingerprint, seat: str, there: _Found, known_depth: int) -> Estimate:
        prompt = self._prompt_tokens(print_, seat, known_depth)
        cached = self._comes_back(print_, seat, there)
        if there.depth:
            last = self._block(print_.names[there.depth - 1])
            parts = not cached and there.depth < len(print_.names) and last.parting is not None
            cached += last.parting if parts and last.parting is not None else last.upto
        return Estimate(prompt, max(0, min(cached, prompt - 1)))

    def _comes_back(self, print_: Fingerprint, seat: str, there: _Found) -> int:
        """Tokens of the reply behind what is there that stand in this prompt too."""
        to = there.depth
        while there.reply_tokens and to < len(print_.names) and print_.written[to]:
            to += 1
        if to == there.depth:
            return 0
        size = print_.ends[to - 1] - print_.ends[there.depth - 1]
        return min(there.reply_tokens, round(size * self._ratios.tok_per_byte(seat)))

    # Learning

    def _learn(self, reading: Reading, usage: Usage, now_s: float) -> None:
        print_, seat = reading.print_, reading.seat
        at, upto = self._exact_before(print_, usage.prompt_tokens)
        if not print_.blobs:
            size = print_.bytes - (print_.ends[at] if at >= 0 else 0)
            self._ratios.learn(seat, usage.prompt_tokens - upto, size)
        if usage.cached_tokens is not None:
            cached_tokens = max(0, min(usage.cached_tokens, usage.prompt_tokens))
            self._compare(reading, usage.prompt_tokens, cached_tokens, now_s)
        self._measure(print_, usage.prompt_tokens, at, upto)

    def _compare(self, reading: Reading, prompt_tokens: int, cached_tokens: int, now_s: float) -> None:
        """Expected against real."""
        expected = reading.expected.cached_tokens
        if not reading.ahead:
            hits = self._hits.setdefault(reading.seat, SeatHits())
            hits.requests += 1
            hits.prompt_tokens += prompt_tokens
            hits.expected_tokens += min(expected, prompt_tokens)
            hits.cached_tokens += cached_tokens
        slack = max(SLACK_TOKENS, SLACK_SHARE * prompt_tokens)
        if cached_tokens < expected - slack:
            if self._lost(reading, prompt_tokens, cached_tokens, now_s):
                return
        elif cached_tokens > expected + slack and reading.known_depth > reading.depth:
            if self.capacity_tokens is not None:
                self.capacity_tokens = min(round(self.capacity_tokens * GROW), TOKENS_MAX)
            return
        if reading.parts:
            last = self._block(reading.print_.names[reading.depth - 1])
            last.parting = cached_tokens if cached_tokens <= last.upto + slack else None

    def _lost(self, reading: Reading, prompt_tokens: int, cached_tokens: int, now_s: float) -> bool:
        """The engine had less than was expected. True when that is taken for the doing of its cache's size."""
        self.losses += 1
        self._lost_s.append(now_s)
        names = reading.print_.names[: reading.depth]
        age = next(
            (age for name, age in zip(names, reading.ages, strict=True) if self._block(name).upto > cached_tokens), 0
        )
        if not age:  # a part of a reply, or of what another request holds just now
            return False
        others = self._blocks.tokens - (prompt_tokens - cached_tokens)
        younger = others - self._blocks.older_tokens(age)
        if younger < EXPLAINED_SHARE * others:
            return False
        self._explained_s.append(now_s)
        if sum(now_s - at_s <= EXPLAINED_S for at_s in self._explained_s) < LOSSES_MIN:
            return False
        self._blocks.drop_older(age)
        believed = others if self.capacity_tokens is None else min(others, self.capacity_tokens)
        self.capacity_tokens = max(1, younger, round(SHRINK * believed))
        return True

    def _exact_before(self, print_: Fingerprint, tokens: int) -> tuple[int, int]:
        """The latest block but the last of which an engine counted the tokens, and they are fewer than `tokens`; -1 and
        0 for the beginning."""
        for before in range(len(print_.names) - 2, -1, -1):
            block = self._block(print_.names[before])
            if block.exact and block.upto < tokens:
                return before, block.upto
        return -1, 0

    def _measure(self, print_: Fingerprint, tokens: int, before: int, upto: int) -> None:
        """The prompt has `tokens`: spread them over the blocks behind the one at `before`, which ends at `upto`."""
        blocks, last = self._blocks, len(print_.names) - 1
        start = print_.ends[before] if before >= 0 else 0
        per_byte = (tokens - upto) / max(1, print_.ends[last] - start)
        former = upto
        for index in range(before + 1, last + 1):
            now = tokens if index == last else upto + round((print_.ends[index] - start) * per_byte)
            blocks.measure(self._block(print_.names[index]), now, now - former, index == last)
            former = now


def _reply_name(name: bytes) -> bytes:
    """The name of what a model wrote behind a block."""
    return blake2b(name, digest_size=NAME_BYTES, person=b"reply").digest()
