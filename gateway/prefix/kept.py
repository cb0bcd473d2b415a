"""Keeps what is known of the engine's cache in one small file, so that a gateway that was killed knows what is warm.

Touches that file, a thread to write it, and the loop's clock.

Rules:
- Of prompts it holds names of blocks (hashes) and lengths, no text; only its owner may read it; replaced at once.
- It holds the start id of the engine that it speaks of: that of another start is never taken.
- Written when something changed, at most every 5 s, and half a second after a cold prompt was read.
- Whatever is in the file, reading it raises nothing: it is taken whole or not at all.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Generator
from dataclasses import dataclass
from hashlib import blake2b
from math import inf
from pathlib import Path
from typing import Any

import orjson

from gateway.files import read_small, replace_file
from gateway.prefix.index import PrefixIndex

NAME = "prefixes.bin"
EVERY_S = 5.0
SOON_S = 0.5
FILE_MAX_BYTES = 8 * 1024 * 1024
"""A full index has 2.1 MB."""
_SUM_BYTES = 16


@dataclass(frozen=True, slots=True)
class Kept:
    """What a file held. `more` is what else was given to `keeping`, as plain JSON values."""

    index: PrefixIndex
    more: Any


def keeping(start_id: str, index: PrefixIndex, more: Any = None) -> Generator[None, None, bytes]:
    """What the file holds: the index of the engine of that start, and `more` in plain JSON values; in steps of a few
    milliseconds, between which the index may be used."""
    head = orjson.dumps({"start_id": start_id, "more": more})
    content = head + b"\n" + (yield from index.dumping())
    yield
    return blake2b(content, digest_size=_SUM_BYTES).digest() + content


def read_kept(path: Path, start_id: str) -> Kept | str | None:
    """What `path` holds of the engine of that start, or why that is not to be had; None = there is no such file. Raises
    nothing."""
    try:
        raw = read_small(path, FILE_MAX_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        return error.strerror or str(error)
    except ValueError as error:
        return str(error)
    content = raw[_SUM_BYTES:]
    if blake2b(content, digest_size=_SUM_BYTES).digest() != raw[:_SUM_BYTES]:
        return "it is not whole"
    line, _, index = content.partition(b"\n")
    try:
        head = orjson.loads(line)
        if not isinstance(head, dict) or head.get("start_id") != start_id:
            return "it is of another start of the engine"
        return Kept(PrefixIndex.load(index), head.get("more"))
    except ValueError as error:
        return f"it cannot be read: {error}"


class Keeper:
    """Writes the file. `take` gives what it is to hold in steps, on the loop, which does other things between
    them; None = nothing to keep now. `unkept`: why the last time failed, "" when it did not."""

    def __init__(self, path: Path, take: Callable[[], Generator[None, None, bytes] | None]) -> None:
        self.unkept = ""
        self.path = path
        self._take = take
        self._due_s = inf
        self._written_s = -inf
        self._changed = asyncio.Event()
        self._one = asyncio.Lock()

    def note(self, *, soon: bool = False) -> None:
        """Something changed; `soon`: something that was dear."""
        now_s = asyncio.get_running_loop().time()
        self._due_s = min(self._due_s, now_s + SOON_S if soon else max(now_s, self._written_s + EVERY_S))
        self._changed.set()

    async def run(self) -> None:
        """Write what is noted, for ever."""
        while True:
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(None if self._due_s == inf else self._due_s):
                    await self._changed.wait()
            if asyncio.get_running_loop().time() >= self._due_s:
                await self.keep()

    async def keep(self) -> None:
        """Write now. Raises nothing: `unkept` says why it was not possible, and `run` tries again."""
        async with self._one:
            self._due_s, self._written_s = inf, asyncio.get_running_loop().time()
            steps = self._take()
            if steps is not None:
                self.unkept = await asyncio.to_thread(_write, self.path, await _in_steps(steps))
                if self.unkept:
                    self.note()


async def _in_steps(steps: Generator[None, None, bytes]) -> bytes:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            made: bytes = end.value
            return made
        await asyncio.sleep(0)


def _write(path: Path, data: bytes) -> str:
    """Why it cannot be written, "" when it is."""
    if len(data) > FILE_MAX_BYTES:
        return f"{path} would be longer than {FILE_MAX_BYTES} bytes"
    try:
        replace_file(path, data, 0o600)
    except OSError as error:
        return f"{path} cannot be written: {error.strerror or error}"
    return ""
