"""Find and end the engine of a former run by the record that its guard left.

Touches /proc, signals and the record file. Blocks for up to about three seconds: use a thread under asyncio.

Rules:
- Nothing is signalled whose identity was not checked: pid and start time, through a pidfd, so that a pid
  which is reused between the look and the signal is not hit.
- The kernel does not reuse a pid while a group or session of that number has members. So a process with the
  recorded pid and another start time proves that the recorded group is gone.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from gateway.files import replace_file

_PROC = Path("/proc")
_BOOT_ID = _PROC / "sys/kernel/random/boot_id"
TERM_S = 2.0
KILL_S = 1.0


@dataclass(frozen=True, slots=True)
class Record:
    """Who an engine is. `start_ticks`: clock ticks after boot, field 22 of /proc/PID/stat."""

    pid: int
    pgid: int
    start_ticks: int
    boot_id: str


@dataclass(frozen=True, slots=True)
class _Process:
    pid: int
    state: str
    pgid: int
    session: int
    start_ticks: int


def read_record(path: Path) -> Record | None:
    """The record in `path`; None when there is none or it makes no sense. Raises OSError if unreadable."""
    try:
        raw = json.loads(path.read_bytes())
        record = Record(int(raw["pid"]), int(raw["pgid"]), int(raw["start_ticks"]), str(raw["boot_id"]))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        return None
    # 0 and 1 would mean "my own group" and "everything" to kill(2).
    return record if record.pid > 1 and record.pgid == record.pid else None


def write_record(path: Path, pid: int) -> None:
    """Record a child that leads its own session, other than an engine (its guard writes its own)."""
    seen = _process(pid)
    if seen is None:
        return
    record = {"pid": pid, "pgid": pid, "start_ticks": seen.start_ticks, "boot_id": _BOOT_ID.read_text().strip()}
    replace_file(path, json.dumps(record).encode() + b"\n", 0o644)


def _process(pid: int) -> _Process | None:
    try:
        fields = (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        return _Process(pid, fields[0], int(fields[2]), int(fields[3]), int(fields[19]))
    except (OSError, IndexError, ValueError):
        return None


def _ours(record: Record) -> list[_Process]:
    """The live members of the recorded group that are certainly of that run.

    1. The leader is there with the recorded start time: the whole group is ours.
    2. The pid belongs to somebody else: nothing is.
    3. The leader is gone: members in the leader's session that started no earlier than it did.
    """
    leader = _process(record.pid)
    if leader is not None and leader.start_ticks != record.start_ticks:
        return []
    members = []
    for entry in _PROC.iterdir():
        process = _process(int(entry.name)) if entry.name.isdigit() else None
        if process is None or process.pgid != record.pgid or process.state in "ZX":
            continue
        if leader is None and (process.session != record.pgid or process.start_ticks < record.start_ticks):
            continue
        members.append(process)
    return members


def _await_ends(pidfds: list[int], limit_s: float) -> None:
    poll = select.poll()
    for fd in pidfds:
        poll.register(fd, select.POLLIN)
    waiting = set(pidfds)
    deadline = time.monotonic() + limit_s
    while waiting and (left_s := deadline - time.monotonic()) > 0:
        for fd, _ in poll.poll(left_s * 1000):
            poll.unregister(fd)
            waiting.discard(fd)


def _end(members: list[_Process], numbers: tuple[int, ...], limit_s: float) -> None:
    """Send `numbers` to each process that is still the one that was seen, and wait for their ends."""
    with ExitStack() as stack:
        pidfds = []
        for seen in members:
            with suppress(ProcessLookupError, PermissionError):
                fd = os.pidfd_open(seen.pid)
                stack.callback(os.close, fd)
                now = _process(seen.pid)
                if now is not None and now.start_ticks == seen.start_ticks:
                    for number in numbers:
                        signal.pidfd_send_signal(fd, number)
                    pidfds.append(fd)
        _await_ends(pidfds, limit_s)


def sweep(record_path: Path, *, term_s: float = TERM_S) -> list[int]:
    """End what the recorded run left behind; the pids that were signalled, often none.

    SIGTERM, `term_s` seconds, SIGKILL. The record is removed unless something outlived SIGKILL. Raises
    OSError when the record can be neither read nor removed.
    """
    record = read_record(record_path)
    if record is None or record.boot_id != _BOOT_ID.read_text().strip():
        record_path.unlink(missing_ok=True)
        return []
    signalled: set[int] = set()
    members = _ours(record)
    signalled.update(member.pid for member in members)
    if members:
        _end(members, (signal.SIGTERM, signal.SIGCONT), term_s)
    deadline = time.monotonic() + KILL_S
    while (members := _ours(record)) and time.monotonic() < deadline:
        signalled.update(member.pid for member in members)
        _end(members, (signal.SIGKILL,), deadline - time.monotonic())
    if not members:
        record_path.unlink(missing_ok=True)
    return sorted(signalled)
