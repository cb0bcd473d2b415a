"""The blocks that an engine's cache is believed to hold, least recently used out first. Pure.

Rules:
- What is held is closed: with a block, all blocks before it are held. So a chain is searched by halves.
- A block of a running request is pinned and never goes. When its last request ends it becomes the youngest, the end of
  a prompt before its beginning, so that ends go first.
- What went is remembered for a while: its length is still true, and finding it in the engine after all says that the
  cache is larger than was believed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

BLOCKS_MAX = 100_000
"""Held and gone together, about 30 MB; 100 MB of text."""


@dataclass(slots=True)
class Block:
    """`upto`: tokens from the beginning of the prompt to this block's end; `exact`: an engine counted them. `tokens`:
    of this block alone. `read`: an engine has read it to its end. `parting`: what an engine had of the last prompt that
    went on differently behind it, None = as far as `upto`. `age`: a greater one is younger."""

    upto: int
    tokens: int
    exact: bool = False
    read: bool = False
    parting: int | None = None
    pins: int = 0
    age: int = 0


class Blocks:
    """Blocks by name. `tokens`: of all that are held."""

    def __init__(self) -> None:
        self.tokens = 0
        self._pinned: dict[bytes, Block] = {}
        self._free: OrderedDict[bytes, Block] = OrderedDict()
        self._gone: OrderedDict[bytes, Block] = OrderedDict()
        self._age = 0

    def __len__(self) -> int:
        return len(self._pinned) + len(self._free)

    def held(self, name: bytes) -> Block | None:
        """The block, when it is held."""
        return self._pinned.get(name) or self._free.get(name)

    def known(self, name: bytes) -> Block | None:
        """The block, also when it went."""
        return self.held(name) or self._gone.get(name)

    def age(self, name: bytes) -> int:
        """How young a held block is; 0 for one that is pinned."""
        block = self._free.get(name)
        return block.age if block is not None else 0

    def depth(self, names: Sequence[bytes]) -> int:
        """How many blocks at the beginning of a chain are held."""
        return bisect_left(names, True, key=lambda name: self.held(name) is None)

    def known_depth(self, names: Sequence[bytes], depth: int) -> int:
        """The same with those that went; `depth` are held."""
        return bisect_left(names, True, lo=depth, key=lambda name: self.known(name) is None)

    def pin(self, names: Sequence[bytes], ends: Sequence[int], tok_per_byte: float) -> None:
        """A request begins to read a chain; `ends`: bytes up to the end of each block. How long one is that is not
        known is guessed by `tok_per_byte`. A prompt has thousands of them, and every stream waits for this."""
        pinned, free, gone = self._pinned, self._free, self._gone
        upto, start = 0, 0
        for name, end in zip(names, ends, strict=True):
            block = pinned.get(name)
            if block is None:
                block = free.pop(name, None)
                if block is None:
                    block = gone.pop(name, None)
                    if block is None:
                        tokens = max(1, round((end - start) * tok_per_byte))
                        block = Block(upto + tokens, tokens)
                    block.read = False
                    self.tokens += block.tokens
                pinned[name] = block
            block.pins += 1
            upto, start = block.upto, end

    def unpin(self, names: Sequence[bytes], read: bool) -> None:
        """The request ended. A block that nobody has read to its end is not held."""
        for name in reversed(names):
            block = self._pinned[name]
            block.pins -= 1
            block.read = block.read or read
            if block.pins:
                continue
            del self._pinned[name]
            if block.read:
                self._younger(name, block)
            else:
                self.tokens -= block.tokens

    def add(self, name: bytes, block: Block) -> None:
        """Hold a block that follows a pinned one, and replace what has its name."""
        self.remove(name)
        self._gone.pop(name, None)
        self.tokens += block.tokens
        self._younger(name, block)

    def remove(self, name: bytes) -> None:
        """Forget a block that is not pinned and that no other follows; nothing when it is not held."""
        block = self._free.pop(name, None)
        if block is not None:
            self.tokens -= block.tokens

    def measure(self, block: Block, upto: int, tokens: int, exact: bool) -> None:
        """A held block is that long."""
        self.tokens += tokens - block.tokens
        block.upto, block.tokens, block.exact = upto, tokens, exact

    def older_tokens(self, age: int) -> int:
        """Tokens of what is older than `age` and may go."""
        total = 0
        for block in self._free.values():
            if block.age >= age:
                break
            total += block.tokens
        return total

    def drop_older(self, age: int) -> None:
        """What is older than `age` went."""
        while self._free and next(iter(self._free.values())).age < age:
            self._drop()

    def shrink(self, capacity_tokens: int | None) -> None:
        """Let the oldest go until `capacity_tokens` hold the rest (None: whatever it is), and forget what went long
        ago."""
        while capacity_tokens is not None and self.tokens > capacity_tokens and self._free:
            self._drop()
        while len(self) + len(self._gone) > BLOCKS_MAX:
            if self._gone:
                self._gone.popitem(last=False)
            elif self._free:
                self._drop()
            else:
                return

    def oldest_first(self) -> tuple[list[bytes], list[Block]]:
        """What is held and was read, as it would be if nothing ran, ends before beginnings: names, and their blocks.
        Two lists of what is there: a hundred thousand pairs would cost 70 ms of garbage collection."""
        running = [(name, block) for name, block in reversed(self._pinned.items()) if block.read]
        running.sort(key=lambda item: -item[1].upto)
        return (
            [*self._free, *(name for name, _ in running)],
            [*self._free.values(), *(block for _, block in running)],
        )

    def _drop(self) -> None:
        name, block = self._free.popitem(last=False)
        self.tokens -= block.tokens
        self._gone[name] = block

    def _younger(self, name: bytes, block: Block) -> None:
        self._age += 1
        block.age = self._age
        self._free[name] = block
