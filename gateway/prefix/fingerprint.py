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
from itertools import repeat
from typing import Any

from gateway.dialects.canonical import segments

BLOCK_BYTES = 1024
NAME_BYTES = 8
BLOCKS_MAX = 16_384
"""Blocks of one prompt; whatever is behind them is one more. A million tokens are about 4,000."""
BLOB_BYTES = 4096
"""About 1,000 tokens, the middle of what models with eyes make of a picture (256 to 1,600)."""
_BLOB = re.compile(rb'"(?:url|image_url|data|file_data)":"(?:data:[\w/+.;=-]{0,100};base64,)?[A-Za-z0-9+/]{1024}')
_RUN = re.compile(rb"[A-Za-z0-9+/]{128}")
_RUN_EVERY = 1024 - 128
"""A blob is long enough that it has such a run at some multiple of this; text does not, and is looked at no more."""
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
    rest = None
    for piece, is_blob, by_model in _pieces(parts):
        blobs += is_blob
        step = len(piece) if is_blob else BLOCK_BYTES
        for start in range(0, len(piece) or 1, step):
            block = piece[start : start + step]
            end += BLOB_BYTES if is_blob else len(block)
            if len(names) < BLOCKS_MAX:
                name = blake2b(name + block, digest_size=NAME_BYTES).digest()
                names.append(name)
                ends.append(end)
                written.append(by_model)
            else:
                rest = rest or blake2b(name, digest_size=NAME_BYTES)
                rest.update(block)
    if rest is not None and end > ends[-1]:
        names.append(rest.digest())
        ends.append(end)
        written.append(False)
    return Fingerprint(tuple(names), tuple(ends), tuple(written), blobs)


def _pieces(parts: Iterable[bytes]) -> Iterator[tuple[bytes, bool, bool]]:
    """Each segment, cut where blobs are in it; whether a piece is a blob, and whether a model wrote it."""
    for segment in parts:
        size = len(segment)
        written = _WRITTEN.search(segment, 0, _EDGE_BYTES) or _WRITTEN.search(segment, max(0, size - _EDGE_BYTES))
        by_model = written is not None
        at = 0
        for start, end in _blobs(segment) if size > BLOCK_BYTES else ():
            if at < start:
                yield segment[at:start], False, by_model
            yield segment[start:end], True, by_model
            at = end
        if at < size or not size:
            yield segment[at:], False, by_model


def _blobs(segment: bytes) -> Iterator[tuple[int, int]]:
    """Where files in base64 are."""
    if not any(map(_RUN.match, repeat(segment), range(0, len(segment), _RUN_EVERY))):
        return
    if b"base64" not in segment and b'data":"' not in segment:
        return
    for found in _BLOB.finditer(segment):
        closing = segment.find(b'"', found.end())
        yield found.start(), closing if closing >= 0 else len(segment)
