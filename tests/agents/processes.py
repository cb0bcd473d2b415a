"""A client as a process: started in a clean environment, watched, killed, and nothing of it left. Touches processes.

Rules: every process of a client carries MOE_TEST_AGENT=<id> in its environment, which is how those are found that
left its process group. stdout and stderr go to files, so that a grandchild that keeps them open holds nobody up.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

MARK = "MOE_TEST_AGENT"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Desk:
    """One developer's place: a home folder for settings and sessions, a work folder for the task."""

    folder: Path

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def work(self) -> Path:
        return self.folder / "work"

    @classmethod
    def at(cls, folder: Path) -> Desk:
        """Make the folders below `folder`."""
        desk = cls(folder)
        for place in (desk.home, desk.work, desk.home / "tmp"):
            place.mkdir(parents=True, exist_ok=True)
        return desk


@dataclass(frozen=True, slots=True)
class Launch:
    """What to start: arguments, and variables besides the few that every client gets."""

    argv: Sequence[str]
    environ: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Result:
    """How it ended. `code` is negative after a signal."""

    code: int
    stdout: str
    stderr: str
    took_s: float

    def told(self) -> str:
        """For assertions: everything, shortened."""
        return (
            f"exit {self.code} after {self.took_s:.1f} s\nstdout: {self.stdout[-1500:]}\nstderr: {self.stderr[-3000:]}"
        )


@dataclass(slots=True)
class Run:
    """A client that was started."""

    process: asyncio.subprocess.Process
    mark: str
    out: Path
    err: Path
    started_s: float

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.process.returncode is not None

    async def result(self, limit_s: float = 60.0) -> Result:
        """Wait for its end. Fails after `limit_s`."""
        try:
            async with asyncio.timeout(limit_s):
                code = await self.process.wait()
        except TimeoutError:
            raise AssertionError(f"not over within {limit_s:g} s\n{self.so_far().told()}") from None
        return self._read(code)

    def so_far(self) -> Result:
        """What it has written until now."""
        return self._read(0)

    def _read(self, code: int) -> Result:
        stdout, stderr = (path.read_text(errors="replace") for path in (self.out, self.err))
        return Result(code, stdout, stderr, time.monotonic() - self.started_s)

    def kill(self) -> float:
        """SIGKILL to its process group; returns when, on the monotonic clock."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        return time.monotonic()

    async def end(self) -> None:
        """Kill whatever of it still runs."""
        self.kill()
        await self.process.wait()
        for pid in living(self.mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@asynccontextmanager
async def started(launch: Launch, desk: Desk) -> AsyncIterator[Run]:
    """Start it at `desk`; when the block ends, so does all that is left of it."""
    mark = secrets.token_hex(8)
    common = {
        "HOME": str(desk.home),
        "TMPDIR": str(desk.home / "tmp"),
        "PATH": PATH,
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "NO_COLOR": "1",
        MARK: mark,
    }
    out, err = desk.folder / f"{mark}.out", desk.folder / f"{mark}.err"
    with out.open("wb") as stdout, err.open("wb") as stderr:
        started_s = time.monotonic()
        process = await asyncio.create_subprocess_exec(
            *launch.argv,
            cwd=desk.work,
            env=common | dict(launch.environ),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
    run = Run(process, mark, out, err, started_s)
    try:
        yield run
    finally:
        await run.end()


def living(mark: str | None = None) -> list[int]:
    """The pids of processes with this mark, or with any, that are not zombies."""
    wanted = f"{MARK}={mark or ''}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            variables = (entry / "environ").read_bytes().split(b"\0")
            if any(item == wanted or (mark is None and item.startswith(wanted)) for item in variables):
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                if state not in "ZX":
                    found.append(int(entry.name))
    return sorted(found)
