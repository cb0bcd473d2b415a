"""Asks a child process a question, under a deadline. Touches processes; blocks, so call it in a thread.

Rules:
- The child leads a session of its own: one SIGKILL to its group ends it and what it started, also when it has ended by
  itself, and a Ctrl-C at the terminal is not for it. The group is signalled before its leader is reaped: after that the
  id may be another's.
- Output goes to files in memory, not through pipes: what was said before a kill is there, however long the dying takes
  and whoever still holds the other end. A CUDA process killed amid a copy takes a second or two to go.
- What a driver holds in an uninterruptible sleep outlives SIGKILL. It is waited for a while and then left behind;
  `OneChild` starts no other beside it, so that re-checks pile up no processes.
- When memory is short the kernel takes a child rather than the daemon, whose favour it would inherit.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeAlias

AFTER_KILL_S = 5.0
OOM_SCORE_ADJ = "500"
"""Below the engine's 1000 (guard.py). Source: proc(5)."""
_POLL_S = 0.01
_RUNNING: set[int] = set()
"""Process groups of children that somebody waits for; at the end of the process they end too."""

Kill: TypeAlias = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a child wrote, and its end. `code`: exit code, minus the signal's number, or None when it had to be killed
    at the deadline. `refused`: why none was started, "" = one was."""

    out: str = ""
    err: str = ""
    code: int | None = None
    refused: str = ""


def run(argv: Sequence[str], environ: Mapping[str, str], deadline_s: float) -> Answer:
    """What `argv`, with stdin closed, said in `deadline_s`. Returns `AFTER_KILL_S` after the deadline at the latest.
    Raises OSError when it cannot be started."""
    return _asked(argv, environ, deadline_s, AFTER_KILL_S, os.killpg)[0]


class OneChild:
    """At most one child at a time, and at most one that SIGKILL did not end. `kill` is os.killpg but in tests."""

    def __init__(self, kill: Kill = os.killpg, after_kill_s: float = 0.5) -> None:
        self._kill = kill
        self._after_kill_s = after_kill_s
        self._turn = threading.Lock()
        self._stuck: subprocess.Popen[bytes] | None = None

    def ask(self, argv: Sequence[str], environ: Mapping[str, str], deadline_s: float) -> Answer:
        """Run `argv` with stdin closed for `deadline_s` at most, half a second more where it must be killed; as long
        again where another thread is asking. Raises OSError when it cannot be started."""
        if not self._turn.acquire(timeout=deadline_s):
            return Answer(refused="another question is being asked")
        try:
            if self._stuck is not None and self._stuck.poll() is None:
                return Answer(refused=f"process {self._stuck.pid} still hangs since an earlier question")
            answer, self._stuck = _asked(argv, environ, deadline_s, self._after_kill_s, self._kill)
            return answer
        finally:
            self._turn.release()


def _asked(
    argv: Sequence[str], environ: Mapping[str, str], deadline_s: float, after_kill_s: float, kill: Kill
) -> tuple[Answer, subprocess.Popen[bytes]]:
    with _memory("out") as out, _memory("err") as err:
        child = subprocess.Popen(
            list(argv), stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=dict(environ), start_new_session=True
        )
        ended = False
        _RUNNING.add(child.pid)
        with suppress(OSError):  # it may have ended
            Path(f"/proc/{child.pid}/oom_score_adj").write_text(OOM_SCORE_ADJ)
        try:
            ended = _wait(child.pid, deadline_s)
        finally:
            _end(child, after_kill_s, kill)
            _RUNNING.discard(child.pid)
        return Answer(_text(out), _text(err), child.returncode if ended else None), child


def _wait(pid: int, deadline_s: float) -> bool:
    """Whether it ended before the deadline; it is not reaped."""
    until = time.monotonic() + deadline_s
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        if time.monotonic() > until:
            return False
        time.sleep(_POLL_S)
    return True


def _end(child: subprocess.Popen[bytes], after_kill_s: float, kill: Kill) -> None:
    """SIGKILL to the group, and a while for it to go: what dies still holds memory of the cards."""
    until = time.monotonic() + after_kill_s
    with suppress(ProcessLookupError):
        kill(child.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        child.wait(after_kill_s)
    while time.monotonic() < until and _there(child.pid):
        time.sleep(_POLL_S)


def _there(group: int) -> bool:
    """Whether a process of the group still runs; one that only waits to be reaped by others is gone."""
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, of_group = entry.read_text().rpartition(")")[2].split()[:3]
            if int(of_group) == group and state != "Z":
                return True
    return False


@atexit.register
def _end_running() -> None:
    for group in tuple(_RUNNING):
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


def _memory(name: str) -> IO[bytes]:
    return os.fdopen(os.memfd_create(name), "w+b")


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "replace")
