"""What the kernel says while an engine runs: Xids of the cards, processes that it killed for memory. Touches /dev/kmsg,
else a journalctl child.

Rule: only what came after `opened`: an Xid of last week explains nothing. /dev/kmsg is opened at the end of the log and
read later; journalctl is asked for what came since.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

from appliance.box.child import OneChild
from appliance.printable import printable

LINES_MAX = 20
"""The last ones are kept."""
_TOLD = re.compile(r"NVRM: Xid \(|[Oo]ut of memory: Killed process|oom-kill:|Memory cgroup out of memory")
_JOURNAL_S = 2.0
_RECORD_BYTES = 8192
"""Longest record. Source: CONSOLE_EXT_LOG_MAX of the kernel."""
_RECORDS_MAX = 20_000


@dataclass(slots=True)
class KernelLog:
    """The log since it was opened; `close` it. Blocks for up to `_JOURNAL_S` seconds in `lines`."""

    since_s: float
    _fd: int | None = None
    _journal: bool = False
    _found: tuple[str, ...] = ()

    @classmethod
    def opened(cls, root: Path = Path("/")) -> KernelLog:
        """From now on."""
        try:
            fd = os.open(root / "dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(fd, 0, os.SEEK_END)
        except OSError:
            return cls(time.time(), None, root == Path("/"))
        return cls(time.time(), fd)

    def lines(self) -> tuple[str, ...] | None:
        """What is of interest since then, the oldest first; None when the log cannot be read."""
        if self._fd is not None:
            self._found = (*self._found, *_told(_records(self._fd)))[-LINES_MAX:]
            return self._found
        return _journal(self.since_s) if self._journal else None

    def close(self) -> None:
        """Harmless when repeated."""
        if self._fd is not None:
            os.close(self._fd)
        self._fd, self._journal = None, False


def _records(fd: int) -> str:
    records: list[bytes] = []
    for _ in range(_RECORDS_MAX):
        try:
            record = os.read(fd, _RECORD_BYTES)
        except BrokenPipeError:  # overwritten while we read: the next read goes on behind it
            continue
        except OSError:  # EAGAIN: the end of the log
            break
        if not record:
            break
        records.append(record)
    lines = (line.partition(b";")[2] for line in b"".join(records).splitlines())
    return b"\n".join(lines).decode(errors="replace")


def _journal(since_s: float) -> tuple[str, ...] | None:
    argv = ["journalctl", "-k", "-o", "cat", "--no-pager", "-q", f"--since=@{since_s:.0f}"]
    with contextlib.suppress(OSError):
        answer = OneChild().ask(argv, os.environ, _JOURNAL_S)
        if answer.code == 0 and not answer.err.strip():
            return _told(answer.out)
    return None


def _told(text: str) -> tuple[str, ...]:
    return tuple(printable(line.strip()) for line in text.splitlines() if _TOLD.search(line))[-LINES_MAX:]
