"""An index as bytes: a line of JSON, then names, lengths and flags of its blocks, oldest first. Pure.

Rules: read on the machine that wrote it. Whatever is in them, reading raises nothing but ValueError.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import orjson

from gateway.prefix.blocks import BLOCKS_MAX, Block
from gateway.prefix.fingerprint import NAME_BYTES
from gateway.prefix.ratio import Ratios

VERSION = 1
TOKENS_MAX = 2**30
"""Longest prompt, longest reply, largest cache."""
_NUMBERS = 3
"""Of each block: tokens up to its end, its own, and where others part."""


@dataclass(frozen=True, slots=True)
class Packed:
    """What is kept of an index."""

    capacity_tokens: int | None
    ratios: Ratios
    blocks: list[tuple[bytes, Block]]


def pack(index: Packed) -> bytes:
    """As bytes: 21 for each block."""
    head = {
        "version": VERSION,
        "capacity_tokens": index.capacity_tokens,
        "ratios": index.ratios.as_dict(),
        "blocks": len(index.blocks),
    }
    blocks = [block for _, block in index.blocks]
    names = b"".join(name for name, _ in index.blocks)
    lengths = array("I", [block.upto for block in blocks])
    lengths.extend(block.tokens for block in blocks)
    lengths.extend(0 if block.parting is None else block.parting + 1 for block in blocks)
    return b"".join((orjson.dumps(head), b"\n", names, lengths.tobytes(), bytes(block.exact for block in blocks)))


def unpack(raw: bytes) -> Packed:
    """What `pack` got. Raises ValueError."""
    line, _, rest = raw.partition(b"\n")
    head = orjson.loads(line)
    if not isinstance(head, dict) or head.get("version") != VERSION:
        raise ValueError("not of this version")
    count, capacity = head.get("blocks"), head.get("capacity_tokens")
    if type(count) is not int or not 0 <= count <= BLOCKS_MAX:
        raise ValueError("no count of blocks")
    if capacity is not None and (type(capacity) is not int or not 0 < capacity <= TOKENS_MAX):
        raise ValueError("no capacity")
    lengths = array("I")
    names, numbers = rest[: count * NAME_BYTES], rest[count * NAME_BYTES : -count or None]
    if len(rest) != count * (NAME_BYTES + _NUMBERS * lengths.itemsize + 1):
        raise ValueError("cut short, or too long")
    lengths.frombytes(numbers)
    if any(
        upto > 2 * TOKENS_MAX or tokens > upto for upto, tokens in zip(lengths[:count], lengths[count:], strict=False)
    ):
        raise ValueError("lengths out of range")
    if any(parting > TOKENS_MAX + 1 for parting in lengths[2 * count :]):
        raise ValueError("lengths out of range")
    blocks: list[tuple[bytes, Block]] = []
    for i, exact in enumerate(rest[-count:] if count else b""):
        parting = lengths[2 * count + i]
        block = Block(lengths[i], lengths[count + i], bool(exact), True, parting - 1 if parting else None)
        blocks.append((names[i * NAME_BYTES : (i + 1) * NAME_BYTES], block))
    return Packed(capacity, Ratios.from_dict(head.get("ratios")), blocks)
