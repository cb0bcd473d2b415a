"""Keeps one gateway process alive behind the public socket: start, probe, kill, restart, drain.

Touches child processes, the gateway's Unix socket, the settings file that it writes for the gateway.

Rules:
1. A gateway that ends is replaced at once; from the second in a row that lived less than `YOUNG_S`, after
   `YOUNG_DELAY_S`.
2. Three probes of `PROBE_S` in a row without an answer: SIGKILL, then rule 1. Probes follow each other.
3. A gateway that does not answer its first probe within `FIRST_S` is killed as well.
4. No gateway for `ABSENT_S`: the daemon answers 503 itself, until one answers its probe.
5. The engine is not touched by any of this.
6. What a start needs of the runtime folder is made again when somebody removed it.
7. stdin of the gateway is a pipe from us: when it closes, the gateway ends by itself.
8. A gateway that is replaced by one of another version retires first (gateway/app.py), since only one at a time may
   hand out the engine's streams; the new one was asked before whether it can be started. When it ends twice without an
   answer, the daemon's own version is started again. A stop wins over a replacement.
9. When the Python that the daemon runs on is removed, a finding says so; the next gateway is of the installed version.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import time
from asyncio.subprocess import PIPE
from collections.abc import Callable
from pathlib import Path
from typing import IO

import httpx

from appliance.board import Board
from appliance.engine.leftovers import write_record
from appliance.errors import MoeError
from appliance.files import FOLDER_MODE, write_private
from appliance.installed import OWN, Program, checked, interpreter, is_gone
from appliance.listener import answer_absent
from appliance.service import Load
from gateway.logs import Log
from gateway.settings import RETIRE_MAX_S, GatewaySettings
from gateway.state import Finding, GatewayState, Severity

PROBE_S = 2.0
PROBE_PAUSE_S = 0.25
PROBES_MAX = 3
FIRST_S = 15.0
YOUNG_S = 5.0
YOUNG_DELAY_S = 0.9
ABSENT_S = 3.0
STOP_MARGIN_S = 5.0
"""The gateway's own last words take 2 s after its drain."""
LOOK_S = 1.0

UNBORN_MAX = 2

REPLACED = "replaced"
FALLBACK = "gateway.fallback"
GONE = "python.gone"
HUNG = "killed, it did not answer"


class GatewayProcess:
    """One per daemon; `write_settings`, then `run` for ever, `stop` once. `pulse` grows with every step of the
    supervision: a probe that ended, a start, a look at one that does not go. `served`: the start of the engine that
    answered a request to its end last, by any gateway so far."""

    def __init__(
        self,
        public: socket.socket,
        settings: GatewaySettings,
        runtime_dir: Path,
        board: Board,
        log: Log,
        stderr: IO[str] | None = None,
    ) -> None:
        self._stderr = stderr
        self._public = public
        self._settings = settings
        self._runtime_dir = runtime_dir
        self._settings_file = runtime_dir / "gateway.json"
        self._record = runtime_dir / "gateway.record"
        self._board = board
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._program = self._next = OWN
        self._replacing = self._hung = False
        self._unborn = 0
        self._load = Load()
        self.served = ""
        self.pulse = 0
        self._live = asyncio.Event()
        self._gone = asyncio.Event()
        self._gone.set()
        self._ended = asyncio.Event()
        self._stopping = False

    @property
    def answers(self) -> bool:
        """Whether the gateway that runs has answered its probe."""
        return self._live.is_set()

    @property
    def load(self) -> Load:
        """What the gateway said at its last probe."""
        return self._load

    def drained(self) -> Callable[[], bool]:
        """Tells whether no stream runs any more, by a probe that began after this: when nothing more is sent."""
        begun = self.pulse
        return lambda: not self.answers or (self.pulse > begun + 2 and not self.load.streams)

    async def answered(self) -> None:
        """Wait until a gateway answers."""
        await self._live.wait()

    def write_settings(self) -> None:
        """Write the file that each gateway reads at its start. Raises OSError."""
        write_private(self._settings_file, self._settings.model_dump_json().encode())

    async def run(self) -> None:
        """Keep a gateway alive until `stop`."""
        async with asyncio.TaskGroup() as group:
            stand_in = group.create_task(self._stand_in())
            young = 0
            while not self._stopping:
                started_s = time.monotonic()
                try:
                    await self._one_life()
                except OSError as error:  # no memory, no process: the engine goes on, and there may be some soon
                    self._log.error("gateway.ended", how=f"it cannot be started: {error}")
                    self._note_unborn(f"it cannot be started: {error}")
                    await self._leave_lost_python()
                young = young + 1 if time.monotonic() - started_s < YOUNG_S else 0
                if not self._stopping and young > 1:
                    await asyncio.sleep(YOUNG_DELAY_S)  # 1
            stand_in.cancel()

    async def stop(self, drain_s: float) -> None:
        """Let the gateway drain for `drain_s` and end; kill it when it does not."""
        self._stopping = True
        process = self._process
        if process is None:
            return
        self._signal(process, signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(drain_s + STOP_MARGIN_S):
                await self._gone.wait()
        self._signal(process, signal.SIGKILL)
        await self._gone.wait()

    async def replace(self, python: str) -> Program | None:
        """Rule 8; returns when the running gateway was told to retire. None: it is what would take over, and goes on.
        Raises MoeError when nothing can be replaced."""
        process = self._process
        if process is None or not self._live.is_set() or self._replacing or self._stopping:
            raise MoeError("there is no gateway that could be replaced now", "moe-appliance status; then again")
        program = await checked(python, self._settings_file)
        if process is not self._process or self._replacing or self._stopping:
            raise MoeError("the gateway ended meanwhile", "again: moe-appliance upgraded")
        if program == self._program:
            return None
        self._log.info("gateway.replacing", version=program.version, python=program.python)
        self._next, self._replacing = program, True
        self._board.update(findings=self._findings_but(FALLBACK))  # of an earlier try
        self._signal(process, signal.SIGUSR2)
        kill_after_s = min(self._settings.limits.drain_s, RETIRE_MAX_S) + STOP_MARGIN_S
        asyncio.get_running_loop().call_later(kill_after_s, self._signal, process, signal.SIGKILL)
        return program

    def hurry(self) -> None:
        """While it drains: end the running streams now."""
        if self._process is not None:
            self._signal(self._process, signal.SIGTERM)

    async def call(self, method: str, path: str) -> httpx.Response:
        """Ask the gateway over its own socket. Raises httpx.HTTPError when it does not answer."""
        async with self._client(PROBE_S * 5) as client:
            return await client.request(method, path)

    async def _one_life(self) -> None:
        process = await self._spawn()
        self._process = process
        if self._stopping:  # asked while there was nothing to stop yet
            self._signal(process, signal.SIGKILL)
        self._gone.clear()
        self._ended.clear()
        board = self._board.state.gateway
        running = {"pid": process.pid, "since_s": time.time(), "version": self._program.version}
        self._board.update(gateway=board.model_copy(update=running))
        self._log.info("gateway.spawned", pid=process.pid, version=self._program.version)
        self._hung = False
        prober = asyncio.create_task(self._probe(process))
        try:
            code = await self._ended_with(process)
        except asyncio.CancelledError:
            self._signal(process, signal.SIGKILL)
            raise
        finally:
            prober.cancel()
            lived = self._live.is_set()
            self._live.clear()
            self._process = None
            self._gone.set()
            self._ended.set()
        self._note_end(process.pid, code, lived=lived)

    async def _ended_with(self, process: asyncio.subprocess.Process) -> int:
        """The exit code. One that was killed and does not go is the kernel's matter: our supervision is not stuck."""
        ending = asyncio.ensure_future(process.wait())
        try:
            while not ending.done():
                await asyncio.wait([ending], timeout=LOOK_S)
                self.pulse += self._hung or self._stopping
                self._look_for_python()
        finally:
            ending.cancel()
        return ending.result()

    def _note_end(self, pid: int, code: int, *, lived: bool) -> None:
        before = self._board.state.gateway
        how = HUNG if self._hung else f"signal {-code}" if code < 0 else f"exit code {code}"
        asked = self._stopping or self._replacing
        self._log.log(20 if asked else 40, "gateway.ended", pid=pid, how=how, version=self._program.version)
        if self._replacing:
            how = REPLACED
            self._program, self._replacing = self._next, False
        self._board.update(gateway=GatewayState(restarts=before.restarts + (not asked), last_exit=how))
        if lived or asked:
            self._unborn = 0
        else:
            self._note_unborn(how)

    def _note_unborn(self, how: str) -> None:
        """Rule 8, its end: go back to the daemon's own version."""
        self._unborn += 1
        if self._unborn < UNBORN_MAX or self._program == OWN:
            return
        version = self._program.version
        self._log.error("gateway.fallback", version=version, how=how, to=OWN.version)
        self._program = OWN
        found = Finding(
            id=FALLBACK,
            severity=Severity.WARN,
            title="The new version's gateway does not start",
            observed=f"version {version}: {how}; the gateway of version {OWN.version} goes on",
            required=f"a gateway of version {version}",
            remedy="journalctl -u moe-appliance EVENT=gateway.ended; then: sudo moe-appliance upgraded",
        )
        self._board.update(findings=(*self._findings_but(FALLBACK), found))

    def _findings_but(self, id: str) -> tuple[Finding, ...]:
        return tuple(found for found in self._board.state.findings if found.id != id)

    def _look_for_python(self) -> None:
        """Rule 9, what is said."""
        gone, others = is_gone(OWN.python), self._findings_but(GONE)
        if gone == (others != self._board.state.findings):
            return
        found = Finding(
            id=GONE,
            severity=Severity.WARN,
            title="The Python that this service runs on was removed",
            observed=f"{OWN.python} is gone; what runs goes on, but an engine that ends cannot be started",
            required="a daemon on a Python that is installed",
            remedy="sudo systemctl restart moe-appliance",
        )
        self._board.update(findings=(*others, found) if gone else others)

    async def _leave_lost_python(self) -> None:
        """Rule 9, what is done."""
        self._look_for_python()
        if self._program != OWN or not is_gone(OWN.python):
            return
        try:
            self._program = await checked(interpreter(), self._settings_file, any_series=True)
        except MoeError as error:
            self._log.error("gateway.failed", error=error.message, remedy=error.remedy)

    async def _spawn(self) -> asyncio.subprocess.Process:
        self.pulse += 1
        self._runtime_dir.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)  # 6
        if not self._settings_file.exists():
            self.write_settings()
        process = await asyncio.create_subprocess_exec(
            self._program.python,
            "-P",
            "-m",
            "gateway",
            "--settings",
            str(self._settings_file),
            "--fd",
            str(self._public.fileno()),
            stdin=PIPE,
            stderr=self._stderr,
            pass_fds=(self._public.fileno(),),
            start_new_session=True,
        )
        try:
            write_record(self._record, process.pid)
        except OSError:
            self._signal(process, signal.SIGKILL)
            await process.wait()
            raise
        return process

    async def _probe(self, process: asyncio.subprocess.Process) -> None:
        """Rules 2 and 3."""
        first_until_s = time.monotonic() + FIRST_S
        missed = 0
        async with self._client(PROBE_S) as client:
            while True:
                self.pulse += 1
                try:
                    said = (await client.get("/live")).raise_for_status()
                except httpx.TimeoutException:
                    missed += 1
                except httpx.HTTPError:
                    missed += self._live.is_set()
                    await asyncio.sleep(PROBE_S if self._live.is_set() else 0.05)  # its socket may be made again
                else:
                    missed = 0
                    self._load = load = _load_of(said)
                    self.served = load.served or self.served
                    self._live.set()
                    await asyncio.sleep(PROBE_PAUSE_S)
                too_late = not self._live.is_set() and time.monotonic() > first_until_s
                if missed >= PROBES_MAX or too_late:
                    self._log.error("gateway.hung", pid=process.pid)
                    self._hung = True
                    self._signal(process, signal.SIGKILL)
                    return

    async def _stand_in(self) -> None:
        """Rule 4."""
        while True:
            await self._gone.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ABSENT_S):
                    await self._live.wait()
            if self._live.is_set() or self._stopping:
                await self._ended.wait()
                continue
            self._log.error("gateway.absent")
            answering = asyncio.create_task(answer_absent(self._public))
            try:
                await self._live.wait()
            finally:
                answering.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await answering

    def _client(self, timeout_s: float) -> httpx.AsyncClient:
        assert self._settings.gateway_socket is not None
        transport = httpx.AsyncHTTPTransport(uds=str(self._settings.gateway_socket))
        return httpx.AsyncClient(transport=transport, base_url="http://gateway", timeout=timeout_s)

    @staticmethod
    def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)


def _load_of(said: httpx.Response) -> Load:
    """What a probe was answered; a gateway of another version may say more, less, or nothing."""
    try:
        told = said.json()
        more = str(told.get("mode", "")), str(told.get("served", ""))
        return Load(int(told["streams"]), int(told["waiting"]), *more)
    except (ValueError, TypeError, KeyError, AttributeError):
        return Load()
