"""A prefix cache of blocks that all sequences share, least recently used out first. Pure.

Rules: a block's name covers all blocks before it, so a hit is always a true prefix. Within one prompt the head
is touched last, so a block is never evicted before the blocks that follow it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

BLOCK_TOKENS = 64
BYTES_PER_TOKEN = 4
BLOCK_BYTES = BLOCK_TOKENS * BYTES_PER_TOKEN


def block_chain(prompt: bytes) -> tuple[bytes, ...]:
    """The names of the full blocks of `prompt`; a cut block at the end has none."""
    names: list[bytes] = []
    name = b""
    for start in range(0, len(prompt) - BLOCK_BYTES + 1, BLOCK_BYTES):
        name = blake2b(name + prompt[start : start + BLOCK_BYTES], digest_size=16).digest()
        names.append(name)
    return tuple(names)


class PrefixCache:
    """Which blocks are held. `capacity_tokens` is rounded down to whole blocks; 0 holds nothing."""

    __slots__ = ("_blocks", "_capacity")

    def __init__(self, capacity_tokens: int) -> None:
        self._capacity = capacity_tokens // BLOCK_TOKENS
        self._blocks: OrderedDict[bytes, None] = OrderedDict()

    @property
    def tokens(self) -> int:
        """Tokens held now."""
        return len(self._blocks) * BLOCK_TOKENS

    def hit_tokens(self, chain: Sequence[bytes]) -> int:
        """How many tokens at the head of `chain` are held; does not count as a use."""
        hits = 0
        for name in chain:
            if name not in self._blocks:
                break
            hits += 1
        return hits * BLOCK_TOKENS

    def holds(self, name: bytes) -> bool:
        """Whether the block is held."""
        return name in self._blocks

    def insert(self, chain: Sequence[bytes]) -> None:
        """Hold `chain`, or its head when it is larger than the cache; the least recently used give way."""
        for name in reversed(chain[: self._capacity]):
            self._blocks[name] = None
            self._blocks.move_to_end(name)
        self._evict()

    def resize(self, capacity_tokens: int) -> None:
        """Change the capacity; what no longer fits goes."""
        self._capacity = capacity_tokens // BLOCK_TOKENS
        self._evict()

    def clear(self) -> None:
        """Hold nothing."""
        self._blocks.clear()

    def _evict(self) -> None:
        while len(self._blocks) > self._capacity:
            self._blocks.popitem(last=False)
