"""Prompts made of numbers, for tests that look at blocks and not at text: 64 tokens each, four bytes a token. Pure."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from hashlib import blake2b

from gateway.meter import Usage
from gateway.prefix.fingerprint import NAME_BYTES, Fingerprint
from gateway.prefix.index import PrefixIndex
from tests.fake_engine.cache import BLOCK_BYTES, BLOCK_TOKENS


def chain(path: Sequence[int], *, written: Sequence[int] = ()) -> Fingerprint:
    """A block for each number; paths that begin alike share names. `written`: the places of what a model wrote."""
    name, names = b"", []
    for number in path:
        name = blake2b(name + bytes([number]), digest_size=NAME_BYTES).digest()
        names.append(name)
    ends = tuple((at + 1) * BLOCK_BYTES for at in range(len(names)))
    return Fingerprint(tuple(names), ends, tuple(at in written for at in range(len(names))))


def ask(
    index: PrefixIndex,
    print_: Fingerprint,
    *,
    cached: int | None = None,
    reply: int = 0,
    seat: str = "ana",
    at: float = 0,
) -> int:
    """One request from begin to end; what was expected to be cached."""
    reading = index.begin(print_, seat, at)
    index.end(reading, Usage(len(print_.names) * BLOCK_TOKENS, reply, cached), read=True, now_s=at)
    return reading.expected.cached_tokens


def at_once(steps: Generator[None, None, bytes]) -> bytes:
    """What comes of steps."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            made: bytes = end.value
            return made


def dumped(index: PrefixIndex) -> bytes:
    """What an index is kept as."""
    return at_once(index.dumping())
