"""What the kernel says of a process: CPU time, memory, cores. Touches /proc, affinity and priority."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

REALTIME = 10
"""SCHED_FIFO priority; its size says nothing where nobody else has one."""


def cpu_ns(pid: int) -> int:
    """Nanoseconds on a CPU of all threads of `pid`. Source: Documentation/scheduler/sched-stats.rst, schedstat."""
    total = 0
    for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):  # a thread that just ended
            total += int(file.read_text().split()[0])
    return total


def rss_mb(pid: int) -> float:
    """Resident memory of `pid`, MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise ValueError(f"no VmRSS for {pid}")


def two_cores() -> tuple[int, int] | None:
    """(core for the contender, core for client and upstream), None when we have but one."""
    allowed = sorted(os.sched_getaffinity(0))
    return (allowed[0], allowed[-1]) if len(allowed) > 1 else None


def pin(pid: int, core: int) -> None:
    """Keep all threads of `pid` (0 = us) on one core; does nothing where that is not allowed."""
    for task in Path(f"/proc/{pid or os.getpid()}/task").iterdir():
        with contextlib.suppress(OSError):
            os.sched_setaffinity(int(task.name), {core})


def hurry(pid: int) -> bool:
    """Let `pid` (0 = us) run before everything else on its core, so that other work on this machine does not
    show as delay. False where that is not allowed (it needs CAP_SYS_NICE)."""
    try:
        os.sched_setscheduler(pid, os.SCHED_FIFO, os.sched_param(REALTIME))
    except OSError:
        return False
    return True
