"""One start of the engine, from its key file to its end: process, health probes, start limit, warm-up.

Touches child processes, the engine's HTTP port and its key file. Reports everything as lifecycle events.

Rules:
- Every event carries this start's id: what comes late is ignored by the lifecycle.
- `follow` says Exited exactly once, whatever happens.
- The key is new at every start, in a 0600 file of its own name, so that an old gateway never reads a new key.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from logging import INFO, WARNING
from pathlib import Path

import httpx

from appliance.engine import probes
from appliance.engine.adapter import Adapter, HostTier, Launch
from appliance.engine.connect import engine_client
from appliance.engine.failures import Context, diagnose
from appliance.engine.lifecycle_events import (
    Event,
    Exited,
    HealthLost,
    HealthOk,
    HostKvUnproven,
    Progress,
    Spawned,
    StartTimeout,
    WarmUpDone,
    WarmUpFailed,
)
from appliance.engine.logring import LogRing
from appliance.engine.process import EngineProcess
from appliance.engine.warmup import WarmUpFailed as WarmUpError
from appliance.engine.warmup import warm_up
from appliance.files import FOLDER_MODE, write_private
from gateway.logs import Log
from gateway.state import Cause

HEALTH_S = 2.0
"""Time limit of one health probe, and the pause between two while the engine is READY."""
HEALTH_STARTING_S = 0.2
HEALTH_MISSES_MAX = 5
LAST_WORDS_S = 0.1
"""How long the log of an engine that ended is read before its end is told; mostly nothing is left by then."""
PROBES_END_S = 2.0
"""The probes of the warm-up end this long before the start limit."""
NOT_INHERITED = frozenset({"CREDENTIALS_DIRECTORY", "INVOCATION_ID", "JOURNAL_STREAM"})
"""What the service manager tells the daemon alone; what it listens on for words of ours is gone already (notify.py)."""
STOPPED = Cause(id="engine.stopped", title="The engine was stopped.", remedy="moe-appliance restart")


@dataclass(slots=True)
class EngineRun:
    """One start. `ask` takes lifecycle events; `launch` is known once `follow` has begun. `host_kv`: with the KV tier
    in host RAM that the adapter may ask for."""

    adapter: Adapter
    state_dir: Path
    runtime_dir: Path
    ring: LogRing
    ask: Callable[[Event], None]
    log: Log
    host_kv: bool = True
    start_id: str = field(default_factory=lambda: secrets.token_hex(6))
    launch: Launch | None = None
    _key: bytes = field(default_factory=lambda: secrets.token_urlsafe(32).encode(), repr=False)
    _keyed: threading.Event = field(default_factory=threading.Event)
    _process: EngineProcess | None = None
    _spawned: bool = False
    _healthy: asyncio.Event = field(default_factory=asyncio.Event)
    _start_ends_s: float = math.inf

    async def follow(self) -> None:
        """From Spawn to Exited."""
        cause = STOPPED
        try:
            for folder in (self.state_dir, self.runtime_dir):  # somebody may have removed them
                folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
            write_private(self._key_file, self._key)
            self._keyed.set()
            self.launch = self.adapter.launch(free_port(), self._key_file)
            cause = await self._followed(self.launch)
        except OSError as error:
            cause = _not_started(error)
        except asyncio.CancelledError:
            if self.adapter.supervised:
                raise
        finally:
            self._keyed.clear()
            with contextlib.suppress(OSError):
                self._key_file.unlink(missing_ok=True)
            self.log.log(INFO if cause is STOPPED else WARNING, "engine.ended", cause=cause.id, title=cause.title)
            self.ask(Exited(cause))

    @property
    def _key_file(self) -> Path:
        return self.runtime_dir / f"engine-{self.start_id}.key"

    def keep_key(self) -> None:
        """Write the key file of a running start again when somebody removed it: the next gateway needs it. Raises
        OSError."""
        if self._keyed.is_set() and not self._key_file.exists():
            write_private(self._key_file, self._key)
            if not self._keyed.is_set():  # it ended meanwhile: this may be called in a thread
                self._key_file.unlink(missing_ok=True)

    async def _followed(self, launch: Launch) -> Cause:
        """The run, with its health probes and its start limit beside it."""
        cause = STOPPED
        try:
            async with asyncio.TaskGroup() as group:
                side = [group.create_task(self._probe_health(launch))]
                if self.adapter.supervised:
                    side.append(group.create_task(self._time_out(launch.start_timeout_s)))
                    cause = await self._run_process(launch)
                else:
                    cause = await self._attended(launch)
                for task in side:
                    task.cancel()
        except* OSError as errors:
            cause = _not_started(errors.exceptions[0])
        return cause

    async def _attended(self, launch: Launch) -> Cause:
        """An engine that somebody else runs: nothing to start, and nothing to end. Returns when it does not answer
        in time; lasts until it is cancelled otherwise."""
        self._spawned = True
        self.ask(Spawned(None, self.start_id))
        try:
            async with asyncio.timeout(launch.start_timeout_s):
                await self._healthy.wait()
        except TimeoutError:
            return _unreachable(launch, launch.start_timeout_s)
        await asyncio.Event().wait()
        return STOPPED

    @property
    def host_tier(self) -> HostTier | None:
        """The KV tier in host RAM of this start."""
        return self.adapter.host_tier if self.host_kv else None

    async def _run_process(self, launch: Launch) -> Cause:
        tier = self.host_tier
        process = await EngineProcess.start(
            launch.argv if tier is None else (*launch.argv, *tier.args),
            env={**_inherited(), **launch.env},
            cwd=self.state_dir,
            record=self.runtime_dir / "engine.record",
            grace_s=launch.grace_s,
            log=self.ring,
        )
        self._process = process
        try:
            if process.pid is not None:
                self._spawned = True
                self.ask(Spawned(process.pid, self.start_id, tier is not None))
            await self._note_end(process, launch)
            exit_ = await process.wait()
        except asyncio.CancelledError:
            process.abandon()
            raise
        if exit_.killed_by_us:
            return STOPPED
        return diagnose(exit_, self.ring.tail(200), Context(command=launch.argv[0]))

    async def _note_end(self, process: EngineProcess, launch: Launch) -> None:
        """Say it at once when the engine is gone while others of its run are still dying: nobody may wait for
        it meanwhile."""
        exit_ = await process.wait_ended()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_S):
                await process.wait()
                return
        self.ask(HealthLost(diagnose(exit_, self.ring.tail(200), Context(command=launch.argv[0])), self.start_id))

    async def _time_out(self, after_s: float) -> None:
        self._start_ends_s = time.monotonic() + after_s
        await asyncio.sleep(after_s)
        self.ask(StartTimeout(after_s, self.start_id))

    async def _probe_health(self, launch: Launch) -> None:
        """HealthOk once; afterwards HealthLost after five misses in a row."""
        misses = 0
        async with engine_client(launch.url, _key_of(launch), HEALTH_S) as client:
            while True:
                pause_s = HEALTH_S if self._healthy.is_set() else HEALTH_STARTING_S
                try:
                    (await client.get(launch.health_path)).raise_for_status()
                except httpx.HTTPError as error:
                    misses += self._healthy.is_set()
                    if isinstance(error, httpx.TimeoutException):  # it took HEALTH_S already
                        pause_s = 0.0
                    if misses == HEALTH_MISSES_MAX:
                        lost_s = HEALTH_MISSES_MAX * HEALTH_S
                        hung = _unhealthy(error) if self.adapter.supervised else _unreachable(launch, lost_s)
                        self.ask(HealthLost(hung, self.start_id))
                        return
                else:
                    misses = 0
                    if self._spawned and not self._healthy.is_set():
                        self._healthy.set()
                        self.ask(HealthOk(self.start_id))
                await asyncio.sleep(pause_s)

    async def warm_up(self) -> None:
        launch = self.launch
        assert launch is not None
        key = _key_of(launch)
        try:
            warm = await warm_up(
                launch.url,
                key,
                self.adapter.served_model,
                lambda step, part: self.ask(Progress(step, part)),
                probe_limit_s=self._probe_limit_s,
                host_kv=self.host_tier is not None,
                sequence_folder=launch.sequence_folder,
            )
        except WarmUpError as error:
            self.ask(WarmUpFailed(error.cause, self.start_id))
            return
        if isinstance(warm.host_kv, Cause):
            self.log.warning("engine.host_kv", start_id=self.start_id, off=warm.host_kv.title)
            self.ask(HostKvUnproven(warm.host_kv, self.start_id))
            return
        if warm.host_kv is not None:
            self.log.info("engine.host_kv", start_id=self.start_id, **asdict(warm.host_kv))
        shown = warm.abilities
        self.log.log(
            WARNING if warm.notes else INFO,
            "engine.abilities",
            start_id=self.start_id,
            dialects=shown.dialects,
            counters=shown.counters,
            continuation=shown.continuation,
            images=shown.images,
            notes=warm.notes,
        )
        context_tokens = self.adapter.context_tokens or warm.context_tokens
        self.ask(WarmUpDone(warm.models, context_tokens, warm.tok_per_s, shown, self.start_id))

    def _probe_limit_s(self) -> float:
        """So that an engine that serves is not ended by the start limit while it is asked for more."""
        return min(probes.LIMIT_S, self._start_ends_s - PROBES_END_S - time.monotonic())

    async def end(self) -> None:
        """End the engine's process, if it has one; `follow` then says Exited."""
        if self._process is not None:
            await self._process.stop()


def _not_started(error: BaseException) -> Cause:
    title = f"The engine cannot be started: {error}"
    return Cause(id="engine.spawn", title=title, remedy="moe-appliance status (shows its last log lines)")


def _inherited() -> Mapping[str, str]:
    return {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}


def free_port() -> int:
    """A loopback port that was free a moment ago."""
    with contextlib.closing(socket.socket()) as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def _key_of(launch: Launch) -> str | None:
    return None if launch.key_file is None else launch.key_file.read_text().strip()


def _unreachable(launch: Launch, for_s: float) -> Cause:
    address = launch.url + launch.health_path
    return Cause(
        id="engine.unreachable",
        title=f"The engine at {launch.url} did not answer for {for_s:g} s.",
        remedy=f"curl {address}  (somebody else runs it: see that it is up, or correct [engine] url)",
    )


def _unhealthy(error: httpx.HTTPError) -> Cause:
    missed_s = HEALTH_MISSES_MAX * HEALTH_S
    why = str(error) or type(error).__name__
    return Cause(
        id="engine.hung",
        title=f"The engine did not answer its health probe for {missed_s:g} s ({why}).",
        remedy="moe-appliance status (shows its last log lines)",
    )
