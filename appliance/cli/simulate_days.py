"""Simulates many days on all usable CPUs. Touches child processes, and standard error for progress on a terminal.

Rules:
- What comes back is in the order of what was asked, whichever CPU was faster.
- Ctrl-C is for the parent alone, which then ends its children at once: a day takes seconds.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import active_children, get_context

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from appliance.errors import MoeError
from gateway.simulation.cells import Scenario, Trial, simulate_day
from gateway.simulation.metrics import Day, Figures, figures


def simulate_all(trials: Sequence[Trial], seeds: int) -> list[Figures]:
    """The figures of each. Raises MoeError when a process was killed."""
    days = [(trial.scenario, trial.policy, seed) for trial in trials for seed in range(seeds)]
    with _progress(len(days)) as progress:
        done = []
        for day in _simulated(days):
            done.append(day)
            progress()
    return [figures(done[at : at + seeds]) for at in range(0, len(done), seeds)]


def _simulated(days: Sequence[tuple[Scenario, str, int]]) -> Iterator[Day]:
    processes = min(len(os.sched_getaffinity(0)), len(days))
    if processes < 2:
        yield from (simulate_day(*day) for day in days)
        return
    pool = ProcessPoolExecutor(processes, get_context("spawn"))
    try:
        with _ctrl_c_later():
            done = pool.map(_day, days)
        yield from done
    except BrokenProcessPool as error:
        raise MoeError("a process of the simulation was killed", "free -m   shows whether memory ran out") from error
    except KeyboardInterrupt:
        for child in active_children():
            child.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _day(given: tuple[Scenario, str, int]) -> Day:
    return simulate_day(*given)


@contextmanager
def _ctrl_c_later() -> Iterator[None]:
    """Ctrl-C comes when this is over, and never to processes that are started in it: they keep it blocked."""
    came: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)
    if came:  # a thread of a library took it
        raise KeyboardInterrupt


class _Step:
    """One day more is done."""

    def __init__(self, bar: Progress, days: int) -> None:
        self._bar, self._id = bar, bar.add_task("simulated days", total=days)

    def __call__(self) -> None:
        self._bar.advance(self._id)


@contextmanager
def _progress(days: int) -> Iterator[_Step]:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        yield _Step(bar, days)
