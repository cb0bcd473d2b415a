"""Names the blocks of a prompt, so that two prompts share names as far as they share their beginning. Pure.

Rules:
- A name covers all that is before it: the same name is the same prefix.
- A block ends at 1 KiB or at the end of a segment (a tool, a message). So the end of a prompt is a block's end in
  the next turn, whatever is appended.
- An image, or another file in base64, costs an engine what it shows and not what it is long: it is one block, of
  the weight that `BLOB_BYTES` says.
- A body is read and not kept. May run in a thread of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from typing import Any

from gateway.dialects.canonical import segments

BLOCK_BYTES = 1024
NAME_BYTES = 8
BLOCKS_MAX = 16_384
"""Blocks of one prompt; whatever is behind them is one more. A million tokens are about 4,000."""
BLOB_BYTES = 4096
"""About 1,000 tokens, the middle of what models with eyes make of a picture (256 to 1,600)."""
_BLOB = re.compile(rb'"(?:url|image_url|data|file_data)":"(?:data:[\w/+.;=-]{0,100};base64,)?[A-Za-z0-9+/]{1024}')
_EDGE_BYTES = 96
_WRITTEN = re.compile(rb'"role":"assistant"|"type":"(?:reasoning|\w+_call)"')
"""A quote inside a text is escaped, so no text looks like this."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The blocks of one prompt, in order. `ends`: canonical bytes up to the end of each block, blobs as their weight.
    `written`: whether a model wrote it (an assistant's message, a call). `blobs`: how many there are."""

    names: tuple[bytes, ...] = ()
    ends: tuple[int, ...] = ()
    written: tuple[bool, ...] = ()
    blobs: int = 0

    @property
    def bytes(self) -> int:
        """Canonical bytes of all of it."""
        return self.ends[-1] if self.ends else 0

    @property
    def sizes(self) -> tuple[int, ...]:
        """Canonical bytes of each block."""
        return tuple(end - start for start, end in zip((0, *self.ends), self.ends, strict=False))


def fingerprint(body: dict[str, Any]) -> Fingerprint:
    """Of a parsed request of any dialect. Raises nothing."""
    return fingerprint_of(segments(body))


def fingerprint_of(parts: Iterable[bytes]) -> Fingerprint:
    """The same, of the segments of a request (`dialects.canonical.segments`)."""
    names: list[bytes] = []
    ends: list[int] = []
    written: list[bool] = []
    name, end, blobs = b"", 0, 0
    blocks = _blocks(parts)
    for block, weight, by_model in islice(blocks, BLOCKS_MAX):
        name = blake2b(name + block, digest_size=NAME_BYTES).digest()
        blobs += weight != len(block)
        end += weight
        names.append(name)
        ends.append(end)
        written.append(by_model)
    rest = blake2b(name, digest_size=NAME_BYTES)
    more = 0
    for block, weight, _ in blocks:
        rest.update(block)
        more += weight
        blobs += weight != len(block)
    if more:
        names.append(rest.digest())
        ends.append(end + more)
        written.append(False)
    return Fingerprint(tuple(names), tuple(ends), tuple(written), blobs)


def _blocks(parts: Iterable[bytes]) -> Iterator[tuple[bytes, int, bool]]:
    """Each block with its weight in bytes and whether a model wrote it."""
    for segment in parts:
        size = len(segment)
        by_model = _WRITTEN.search(segment, 0, _EDGE_BYTES) or _WRITTEN.search(segment, max(0, size - _EDGE_BYTES))
        if size <= BLOCK_BYTES:
            yield segment, size, by_model is not None
            continue
        at = 0
        for start, end in _blobs(segment):
            yield from _cut(segment[at:start], by_model is not None)
            yield segment[start:end], BLOB_BYTES, by_model is not None
            at = end
        yield from _cut(segment[at:] if at else segment, by_model is not None)


def _cut(text: bytes, by_model: bool) -> Iterator[tuple[bytes, int, bool]]:
    for start in range(0, len(text), BLOCK_BYTES):
        block = text[start : start + BLOCK_BYTES]
        yield block, len(block), by_model


def _blobs(segment: bytes) -> Iterator[tuple[int, int]]:
    """Where files in base64 are."""
    if b"base64" not in segment and b'"data":"' not in segment and b'"file_data":"' not in segment:
        return
    for found in _BLOB.finditer(segment):
        closing = segment.find(b'"', found.end())
        yield found.start(), closing if closing >= 0 else len(segment)
