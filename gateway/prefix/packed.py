"""An index as bytes: a line of JSON, then names, lengths and flags of its blocks, oldest first. Pure.

Rules:
- Read on the machine that wrote it. Whatever is in them, reading raises nothing but ValueError.
- A full index takes about 80 ms to write, so it is written in steps; between two of them other things may happen to its
  blocks. What is written of each block is of one moment.
"""

from __future__ import annotations

from array import array
from collections.abc import Generator
from dataclasses import dataclass

import orjson

from gateway.prefix.blocks import BLOCKS_MAX, Block
from gateway.prefix.fingerprint import NAME_BYTES
from gateway.prefix.ratio import Ratios

VERSION = 1
TOKENS_MAX = 2**30
"""Longest prompt, longest reply, largest cache."""
STEP_BLOCKS = 2048
"""About 2 ms."""
_NUMBERS = 3
"""Of each block: tokens up to its end, its own, and where others part."""


@dataclass(frozen=True, slots=True)
class Packed:
    """What is kept of an index. `names`, `blocks`: each name with its block, oldest first."""

    capacity_tokens: int | None
    ratios: Ratios
    names: list[bytes]
    blocks: list[Block]


def pack(index: Packed) -> Generator[None, None, bytes]:
    """As bytes, 21 for each block, in steps of STEP_BLOCKS."""
    head = {
        "version": VERSION,
        "capacity_tokens": index.capacity_tokens,
        "ratios": index.ratios.as_dict(),
        "blocks": len(index.blocks),
    }
    names, uptos, tokens, partings, exact = bytearray(), array("I"), array("I"), array("I"), bytearray()
    for start in range(0, len(index.blocks), STEP_BLOCKS):
        blocks = index.blocks[start : start + STEP_BLOCKS]
        names += b"".join(index.names[start : start + STEP_BLOCKS])
        uptos.extend([block.upto for block in blocks])
        tokens.extend([block.tokens for block in blocks])
        partings.extend([0 if block.parting is None else block.parting + 1 for block in blocks])
        exact += bytes([block.exact for block in blocks])
        yield
    return b"".join((orjson.dumps(head), b"\n", names, uptos.tobytes(), tokens.tobytes(), partings.tobytes(), exact))


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
    in_order: list[bytes] = []
    blocks: list[Block] = []
    for i, exact in enumerate(rest[-count:] if count else b""):
        parting = lengths[2 * count + i]
        in_order.append(names[i * NAME_BYTES : (i + 1) * NAME_BYTES])
        blocks.append(Block(lengths[i], lengths[count + i], bool(exact), True, parting - 1 if parting else None))
    return Packed(capacity, Ratios.from_dict(head.get("ratios")), in_order, blocks)
