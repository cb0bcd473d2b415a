"""Shows how far an engine's installation is. Writes to standard error: a bar on a terminal, elsewhere a line when a
step begins and every 30 s."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from appliance.cli.checkpoint_progress import LINE_S, gib
from appliance.engine.environments.wheels import OnProgress, Progress


@contextmanager
def shown() -> Iterator[OnProgress]:
    """Yield what takes the progress and shows it while the block lasts."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield Lines(lambda line: print(line, file=sys.stderr, flush=True))
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True), TimeElapsedColumn())
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)

        def update(now: Progress) -> None:
            bar.update(task, description=_named(now), total=now.total_bytes or None, completed=now.done_bytes)

        yield update


class Lines:
    """Says a line when a step begins and when 30 s went by since the last one."""

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._say, self._clock = say, clock
        self._said_s, self._step = clock(), ""

    def __call__(self, now: Progress) -> None:
        """Take a progress."""
        at_s = self._clock()
        if now.step != self._step or at_s - self._said_s >= LINE_S:
            self._say(line(now))
            self._said_s, self._step = at_s, now.step


def line(now: Progress) -> str:
    """One line of progress."""
    if not now.total_bytes:
        return _named(now)
    return f"{_named(now)}: {gib(now.done_bytes)} of {gib(now.total_bytes)} ({now.done_bytes / now.total_bytes:.0%})"


def _named(now: Progress) -> str:
    return f"{now.step} {now.done}/{now.total} packages" if now.total_bytes else now.step
