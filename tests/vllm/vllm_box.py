"""A box whose engine is the real vLLM: its processes by name, the course of a boot, what a death leads to.

Touches /proc besides what a Box touches. vLLM writes its processes' titles over their environment, so that the mark of
a Box is not to be read there: they are found by their sessions, as children of what has the mark.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any

from tests.e2e.box import Box, alive, command_line, parent_of, until

READY_S = 300.0


@dataclass(frozen=True)
class Moment:
    """What the state said, seconds after the look began."""

    at_s: float
    phase: str
    step: str
    progress: float | None
    whole: float | None
    left_s: float | None


@dataclass(frozen=True)
class Boot:
    """All that was seen on the way to READY."""

    moments: tuple[Moment, ...]

    @property
    def took_s(self) -> float:
        """Until READY."""
        return self.moments[-1].at_s

    @property
    def steps(self) -> tuple[str, ...]:
        """Their names in order, each once for as long as it went on."""
        found: list[str] = []
        for moment in self.moments:
            if moment.step and found[-1:] != [moment.step]:
                found.append(moment.step)
        return tuple(found)

    def told(self) -> str:
        """For people: each step with when it began."""
        seen: dict[str, float] = {}
        for moment in self.moments:
            seen.setdefault(moment.step or moment.phase, moment.at_s)
        return ", ".join(f"{name} {at_s:.0f} s" for name, at_s in seen.items())


class VllmBox(Box):
    """See the module."""

    def __init__(self, home: Path, **options: Any) -> None:
        super().__init__(home, **options)
        self._sessions: set[int] = set()

    def left(self) -> list[int]:
        """Also what has the mark no longer: by session."""
        marked = super().left()
        for pid in marked:
            with contextlib.suppress(ProcessLookupError):
                self._sessions.add(os.getsid(pid))
        found = set(marked)
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and alive(int(entry.name)):
                with contextlib.suppress(OSError):
                    if os.getsid(int(entry.name)) in self._sessions:
                        found.add(int(entry.name))
        return sorted(found)

    def engine_tree(self) -> list[int]:
        """The living processes of the engine, its own first."""
        top = self.engine_pid
        return [top, *(pid for pid in self.left() if pid != top and _below(pid, top))]

    def named(self, title: str) -> int:
        """The pid of the engine's process with that title."""
        return next(pid for pid in self.engine_tree() if command_line(pid).startswith(title))

    def boot(self, after: str = "") -> Boot:
        """Follow a start that is not `after` until it serves."""
        began_s, found = time.monotonic(), list[Moment]()
        while time.monotonic() - began_s < READY_S:
            with contextlib.suppress(OSError, HTTPException):
                state = self.state()["engine"]
                now = _moment(time.monotonic() - began_s, state)
                if state["start_id"] not in ("", after):
                    if not found or (now.step, now.progress, now.left_s) != (
                        found[-1].step,
                        found[-1].progress,
                        found[-1].left_s,
                    ):
                        found.append(now)
                    if now.phase == "ready":
                        return Boot((*found, now))
                assert state["phase"] not in ("failed", "refused"), state
            time.sleep(0.05)
        raise AssertionError(f"not ready within {READY_S} s: {self.log[-3000:]}")


@dataclass(frozen=True)
class Death:
    """What came of it, seconds after it: the box said so, the last process of that run was gone, it served again.
    `log`: the engine's last lines."""

    noticed_s: float
    gone_s: float
    ready_s: float
    cause: dict[str, Any]
    log: str


def died(box: VllmBox, act: Callable[[], float]) -> Death:
    """Do it (`act` says when, on the monotonic clock), then wait until the engine serves anew and nothing is left."""
    before = box.state()["engine"]
    tree = box.engine_tree()
    assert len(tree) >= 4, [command_line(pid) for pid in tree]
    at_s = act()
    box.wait_state("noticed", lambda s: s["engine"]["phase"] != "ready", 120)
    noticed_s = time.monotonic() - at_s
    until("nothing of the old run is left", lambda: not any(map(alive, tree)), 60)
    gone_s = time.monotonic() - at_s
    ended = box.wait_state("a cause", lambda s: s["engine"]["cause"], 20)["engine"]
    box.boot(before["start_id"])
    after = box.state()["engine"]
    assert after["restarts"] == before["restarts"] + 1
    return Death(noticed_s, gone_s, time.monotonic() - at_s, ended["cause"], "\n".join(ended["log_tail"]))


def _moment(at_s: float, engine: dict[str, Any]) -> Moment:
    told = (engine[name] for name in ("phase", "step", "progress", "start_progress", "left_s"))
    return Moment(at_s, *told)


def _below(pid: int, top: int) -> bool:
    while pid > 1:
        pid = parent_of(pid)
        if pid == top:
            return True
    return False
