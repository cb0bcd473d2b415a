"""How far files are that take minutes or hours. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Progress:
    """`done_bytes` of `total_bytes` are there and hashed, `received_bytes` of them came over the network now;
    `files_done` of `files` are whole."""

    done_bytes: int = 0
    total_bytes: int = 0
    received_bytes: int = 0
    files_done: int = 0
    files: int = 0


OnProgress: TypeAlias = Callable[[Progress], None]


class Tally:
    """Adds up, and tells every step to `on_progress`."""

    def __init__(self, on_progress: OnProgress, total_bytes: int, files: int) -> None:
        self._tell = on_progress
        self.now = Progress(total_bytes=total_bytes, files=files)
        on_progress(self.now)

    @property
    def missing_bytes(self) -> int:
        """What is not done."""
        return self.now.total_bytes - self.now.done_bytes

    def hashed(self, count: int) -> None:
        """Bytes that were there already were read."""
        self._set(replace(self.now, done_bytes=self.now.done_bytes + count))

    def received(self, count: int) -> None:
        """Bytes came; below 0: so many that were there were dropped."""
        done, came = self.now.done_bytes + count, self.now.received_bytes + max(0, count)
        self._set(replace(self.now, done_bytes=done, received_bytes=came))

    def finished(self, files: int = 1) -> None:
        """Files are whole."""
        self._set(replace(self.now, files_done=self.now.files_done + files))

    def _set(self, now: Progress) -> None:
        self.now = now
        self._tell(now)
