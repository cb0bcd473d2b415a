"""Run the engine under its guard: start, follow, read the log, stop; nothing is left behind.

Touches child processes, pipes and the record file, on the event loop.

Rules:
- Everything below the guard lives only while `_lifeline`, the write end of its stdin, is open. It must not
  leak into other children (Python opens it close-on-exec), or the engine would outlive the daemon.
- `wait_ended` answers at once; `wait` when nothing of the run is left and its log is complete. Start the next
  run, and diagnose this one, only after `wait`.
- A guard that ends without saying `clean` was killed: `wait` then sweeps the recorded group itself.
- Await `wait` or `stop` once for each run: they also give back the pipes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from appliance.engine.failures import Exit, signal_name
from appliance.engine.leftovers import Record, read_record, sweep
from appliance.engine.logring import LogRing

__all__ = ["EngineProcess", "Exit", "LogRing", "Record", "read_record", "sweep"]

GUARD = Path(__file__).with_name("guard.py")
LOG_END_S = 0.5
"""How long the rest of the log is waited for once nothing can write it any more (but an escaped process)."""
STOP_MARGIN_S = 5.0
"""A guard that takes longer than its grace and this long is stuck itself and is killed."""


class _Output(asyncio.SubprocessProtocol):
    """The guard's stdout into the ring; its end into the process."""

    def __init__(self, owner: EngineProcess) -> None:
        self._owner = owner

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self._owner.log.feed(data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._owner.log.flush()
        self._owner._log_ended.set()

    def process_exited(self) -> None:
        self._owner._guard_exited.set()
        self._owner._check_finished()

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner._give_back()  # for a start that was cancelled: nobody waits for it


class _Status(asyncio.Protocol):
    """The guard's status lines."""

    def __init__(self, owner: EngineProcess) -> None:
        self._owner = owner
        self._pending = b""

    def data_received(self, data: bytes) -> None:
        *lines, self._pending = (self._pending + data).split(b"\n")
        for line in lines:
            self._owner._on_status(json.loads(line))

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner._status_ended.set()
        self._owner._check_finished()


class EngineProcess:
    """One run of an engine. Made by `start`.

    `pid` and `pgid` are None when the engine was never run (the Exit says why). `log` is readable at all
    times. `stuck` lists pids that outlived SIGKILL, after `wait`.
    """

    def __init__(self, log: LogRing, record: Path, grace_s: float) -> None:
        self.log = log
        self.pid: int | None = None
        self.pgid: int | None = None
        self.stuck: tuple[int, ...] = ()
        self._record = Path(os.path.abspath(record))  # noqa: PTH100 - text only, no file access
        self._grace_s = grace_s
        self._exit: Exit | None = None
        self._clean = False
        self._stop_asked = False
        self._lifeline = -1
        self._transport: asyncio.SubprocessTransport | None = None
        self._status: asyncio.ReadTransport | None = None
        self._answered = asyncio.Event()
        self._ended = asyncio.Event()
        self._guard_exited = asyncio.Event()
        self._status_ended = asyncio.Event()
        self._finished = asyncio.Event()
        self._log_ended = asyncio.Event()
        self._tidying = asyncio.Lock()

    @classmethod
    async def start(
        cls,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        record: Path,
        grace_s: float,
        log: LogRing | None = None,
    ) -> EngineProcess:
        """Start `argv` under a new guard; returns when the engine runs or is known not to.

        `env` is the whole environment. `record`: file for the sweep of a later daemon. `grace_s`: from
        SIGTERM to SIGKILL, seconds. A command that cannot be run is no exception: `pid` is None and
        `wait` says why. Raises OSError when the guard cannot be started.
        """
        if not argv:
            raise ValueError("argv is empty")
        run = cls(log if log is not None else LogRing(), record, grace_s)
        try:
            await run._launch(list(argv), dict(env), cwd)
            await run._answered.wait()
        except BaseException:
            run.abandon()
            raise
        return run

    @property
    def guard_pid(self) -> int | None:
        """The guard's pid, for the status page and tests."""
        return None if self._transport is None else self._transport.get_pid()

    @property
    def ended(self) -> Exit | None:
        """How the engine ended, None while it runs."""
        return self._exit

    async def wait_ended(self) -> Exit:
        """Wait for the end of the engine itself; others of its run may still be dying."""
        await self._ended.wait()
        return cast(Exit, self._exit)

    async def wait(self) -> Exit:
        """Wait until nothing of the run is left and the log is complete. May be awaited by many."""
        await self._finished.wait()
        async with self._tidying:
            if not self._clean and not self.stuck:
                await asyncio.to_thread(sweep, self._record)
                self._clean = True
        try:
            async with asyncio.timeout(LOG_END_S):
                await self._log_ended.wait()
        except TimeoutError:
            self.log.flush()
        self._give_back()
        return cast(Exit, self._exit)

    async def stop(self, grace_s: float | None = None) -> Exit:
        """End the run and wait until nothing is left: at most the grace and a few seconds. `grace_s`: between SIGTERM
        and SIGKILL, seconds, and no longer than the run's; None = the run's."""
        grace_s = self._grace_s if grace_s is None else min(grace_s, self._grace_s)
        self.abandon(grace_s)
        try:
            async with asyncio.timeout(grace_s + STOP_MARGIN_S):
                await self._finished.wait()
        except TimeoutError:
            if self._transport is not None and not self._guard_exited.is_set():
                self._transport.kill()
        return await self.wait()

    def abandon(self, grace_s: float | None = None) -> None:
        """Tell the guard to end the run, without waiting; `grace_s` as for `stop`. Harmless when repeated."""
        if self._exit is None:
            self._stop_asked = True
        if self._lifeline >= 0:
            with contextlib.suppress(OSError):  # a guard that is gone reads nothing
                os.write(self._lifeline, b"s" if grace_s is None else f"{grace_s:g}".encode())  # asked to, not dead
            os.close(self._lifeline)
            self._lifeline = -1

    async def _launch(self, argv: list[str], env: dict[str, str], cwd: Path) -> None:
        loop = asyncio.get_running_loop()
        status_r, status_w = os.pipe()
        stdin_r, self._lifeline = os.pipe()
        try:
            self._status, _ = await loop.connect_read_pipe(lambda: _Status(self), os.fdopen(status_r, "rb", 0))
            guard = [sys.executable, "-I", "-S", str(GUARD), "--record", str(self._record)]
            guard += ["--status-fd", str(status_w), "--grace", str(self._grace_s), "--", *argv]
            transport, _ = await loop.subprocess_exec(
                lambda: _Output(self),
                *guard,
                stdin=stdin_r,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env=env,
                cwd=cwd,
                pass_fds=(status_w,),
                start_new_session=True,
            )
            self._transport = transport
        except BaseException:
            if self._status is not None:
                self._status.close()
            raise
        finally:
            os.close(stdin_r)
            os.close(status_w)

    def _on_status(self, line: dict[str, Any]) -> None:
        match line["event"]:
            case "started":
                self.pid, self.pgid = line["pid"], line["pgid"]
                self._answered.set()
            case "failed":
                self._end(Exit(None, None, line["stage"], line["error"], line["errno"]))
            case "exited" if self._exit is None:
                self._end(Exit(line["code"], line["signal"], killed_by_us=self._stop_asked))
            case "exited":  # after "failed": the fork that did not become an engine
                self._exit = replace(cast(Exit, self._exit), code=line["code"], signal=line["signal"])
            case "clean":
                self._clean = True
            case "stuck":
                self.stuck = tuple(line["pids"])

    def _end(self, exit_: Exit) -> None:
        self._exit = exit_
        self._ended.set()
        self._answered.set()

    def _check_finished(self) -> None:
        if not (self._guard_exited.is_set() and self._status_ended.is_set()):
            return
        if self._exit is None:
            self._end(Exit(None, None, "guard", self._guard_end(), killed_by_us=self._stop_asked))
        self._finished.set()

    def _guard_end(self) -> str:
        code = None if self._transport is None else self._transport.get_returncode()
        if code is None:
            return "unknown"
        return f"exit code {code}" if code >= 0 else signal_name(-code)

    def _give_back(self) -> None:
        self.abandon()
        if self._status is not None:
            self._status.close()
        if self._transport is not None:
            self._transport.close()
