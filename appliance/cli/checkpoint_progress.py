"""Shows how far a fetch, a verification or the reading of headers is. Writes to standard error.

A bar on a terminal; elsewhere a line every 30 s for what takes minutes, and nothing for headers.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.progress import Progress as Bar

from appliance.checkpoint.progress import OnProgress, Progress
from appliance.checkpoint.read import OnHeader
from appliance.units import GIB

LINE_S = 30.0


@contextmanager
def shown(doing: str) -> Iterator[OnProgress]:
    """Yield what takes the progress and shows it while the block lasts. `doing`: "fetching", "checking"."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield Lines(doing, lambda line: print(line, file=sys.stderr, flush=True))
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(compact=True),
    )
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task(doing, total=None)

        def update(now: Progress) -> None:
            described = f"{doing} {now.files_done}/{now.files} files"
            bar.update(task, description=described, total=now.total_bytes or None, completed=now.done_bytes)

        yield update


@contextmanager
def headers_shown() -> Iterator[OnHeader]:
    """Yield what is told how many files' headers were read, and shows it on a terminal while the block lasts."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Bar(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("headers", total=None)
        yield lambda done, files: bar.update(task, completed=done, total=files)


class Lines:
    """Says a line when 30 s went by since the last one, with the rate in between."""

    def __init__(self, doing: str, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._doing, self._say, self._clock = doing, say, clock
        self._said_s = clock()
        self._said_bytes: int | None = None

    def __call__(self, now: Progress) -> None:
        """Take a progress."""
        at_s = self._clock()
        if self._said_bytes is None:
            self._said_bytes = now.done_bytes
        passed_s = at_s - self._said_s
        if passed_s >= LINE_S:
            self._say(line(self._doing, now, (now.done_bytes - self._said_bytes) / passed_s))
            self._said_s, self._said_bytes = at_s, now.done_bytes


def line(doing: str, now: Progress, rate: float) -> str:
    """One line of progress; `rate` in bytes/s, the time left is told when there is one."""
    share = now.done_bytes / now.total_bytes if now.total_bytes else 1.0
    left = f", {duration((now.total_bytes - now.done_bytes) / rate)} left" if rate > 0 else ""
    size = f"{gib(now.done_bytes)} of {gib(now.total_bytes)} ({share:.0%})"
    return f"{doing}: {size}, {rate / 1e6:,.0f} MB/s{left}, {now.files_done} of {now.files} files"


def gib(size_bytes: int) -> str:
    """A size for people; small ones in MiB."""
    return f"{size_bytes / GIB:,.1f} GiB" if size_bytes >= GIB else f"{size_bytes / (1 << 20):,.1f} MiB"


def duration(seconds: float) -> str:
    """A time for people: `42 s`, `7 min`, `3 h 05 min`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02} min"
