"""What a process and everything below it have used: processor time, bytes read. Touches /proc; a look takes some
milliseconds, so call it in a thread.

Rules:
- Figures only grow: what a process used before it ended stays counted, as far as a look has seen it.
- A pid is a process only together with its start time: pids are used again.
- What cannot be read (a process that ends, one of another user) counts nothing.
- Bytes are the larger of what went through read(2) and what came from storage: files that are mapped are only in the
  second, the page cache only in the first. Source: proc_pid_io(5).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from appliance.engine.stall import Usage
from appliance.unwaited import unwaited

PROC = Path("/proc")
LOOK_LIMIT_S = 2.0
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Tree:
    """The processes below `root`, itself left out."""

    root: int
    proc: Path = PROC
    _last: Usage = field(default_factory=Usage)
    _seen: dict[tuple[int, int], tuple[float, int]] = field(default_factory=dict)

    def look(self) -> Usage:
        """What they have used by now."""
        cpu_s, read_bytes = self._last.cpu_s, self._last.read_bytes
        seen: dict[tuple[int, int], tuple[float, int]] = {}
        for pid in self._below():
            found = _stat(self.proc, pid)
            if found is None:
                continue
            start, used_s = found
            before_s, before_bytes = self._seen.get((pid, start), (0.0, 0))
            read = max(before_bytes, _read_bytes(self.proc, pid))
            seen[pid, start] = used_s, read
            cpu_s += max(0.0, used_s - before_s)
            read_bytes += read - before_bytes
        self._seen = seen
        self._last = Usage(cpu_s, read_bytes, dict(seen.keys()))
        return self._last

    def _below(self) -> Iterator[int]:
        found, ahead = {self.root}, [self.root]
        while ahead:
            for child in _children(self.proc, ahead.pop()):
                if child not in found:
                    found.add(child)
                    ahead.append(child)
                    yield child


def start_of(pid: int, proc: Path = PROC) -> int | None:
    """The start time of a process that lives; None = it is gone, or only waits to be reaped. One whose first thread has
    ended lives as long as another hangs in the kernel."""
    found = _stat(proc, pid)
    return None if found is None else found[0]


def _ended(proc: Path, pid: int, state: str) -> bool:
    if state not in "ZX":
        return False
    try:
        return len(os.listdir(proc / str(pid) / "task")) <= 1  # noqa: PTH208 - as below
    except OSError:
        return True


def _children(proc: Path, pid: int) -> Iterator[int]:
    """A child is listed with the thread that made it."""
    with suppress(OSError, ValueError):
        for thread in os.listdir(proc / str(pid) / "task"):  # noqa: PTH208 - pathlib takes three times as long
            with suppress(OSError):
                yield from map(int, (proc / str(pid) / "task" / thread / "children").read_text().split())


def _stat(proc: Path, pid: int) -> tuple[int, float] | None:
    """Start time and processor seconds of its own. Source: proc_pid_stat(5), fields 14, 15, 22."""
    try:
        fields = (proc / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        if _ended(proc, pid, fields[0]):
            return None
        return int(fields[19]), (int(fields[11]) + int(fields[12])) / _TICKS
    except (OSError, IndexError, ValueError):
        return None


def _read_bytes(proc: Path, pid: int) -> int:
    try:
        lines = (proc / str(pid) / "io").read_text().splitlines()
        figures = {name: int(value) for name, _, value in (line.partition(": ") for line in lines)}
    except (OSError, ValueError):
        return 0
    return max(figures.get("rchar", 0), figures.get("read_bytes", 0))


async def watch(tree: Tree, pause_s: Callable[[], float], tell: Callable[[Usage], None]) -> None:
    """Look again and again, `pause_s` apart, until it is cancelled. A look that hangs is waited for, and the last
    figures are told meanwhile."""
    usage, looking = Usage(), None
    while True:
        await asyncio.sleep(pause_s())
        looking = looking or asyncio.ensure_future(unwaited(tree.look))
        if (await asyncio.wait([looking], timeout=LOOK_LIMIT_S))[0]:
            usage, looking = looking.result(), None
        tell(usage)
