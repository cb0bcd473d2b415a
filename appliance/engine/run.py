"""One start of the engine, from its key file to its end: process, log, health, start limits, warm-up.

Touches child processes, the engine's port or socket, its key file, /proc, and the cards through CardsWait. Reports
everything as lifecycle events.

Rules:
- Every event carries this start's id: what comes late is ignored by the lifecycle.
- `follow` says Exited exactly once, whatever happens.
- The key is new at every start, in a 0600 file of its own name, so that an old gateway never reads a new key.
- An engine that does not serve yet is ended without much ado: vLLM ignores SIGTERM for minutes while it loads.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from logging import INFO, WARNING
from pathlib import Path

from appliance.engine import boot_times_kept, residency_figures, unix_socket, warmup
from appliance.engine.adapter import Adapter, HostTier, Launch
from appliance.engine.around import Around, explained
from appliance.engine.boot_times import Boot, Estimate
from appliance.engine.failures import Exit
from appliance.engine.health import Health, Serving
from appliance.engine.host_bytes import HostBytes
from appliance.engine.launching import environ_of, key_of, launched, not_started, unreachable
from appliance.engine.lifecycle_events import (
    Event,
    Exited,
    HealthLost,
    HealthOk,
    Progress,
    Spawned,
    StartFailed,
    StartTimeout,
    WarmUpDone,
    WarmUpFailed,
)
from appliance.engine.logring import LogRing
from appliance.engine.part import Part
from appliance.engine.process import EngineProcess
from appliance.engine.promise import usual
from appliance.engine.stall import Usage
from appliance.engine.start_watch import StartWatch
from appliance.engine.tree import Tree, start_of, watch
from appliance.engine.vram_wait import CardsWait
from appliance.engine.warming import Warming
from appliance.errors import MoeError
from appliance.files import FOLDER_MODE, write_private
from appliance.residency.options import FOLDER
from gateway.logs import Log
from gateway.state import Cause, EngineAbilities, EngineProfile, ResidencyFigures

LAST_WORDS_S = 0.1
"""How long the log of an engine that ended is read before its end is told; mostly nothing is left by then."""
UNBORN_GRACE_S = 2.0
"""Between SIGTERM and SIGKILL for an engine that has no answers to finish: it was never healthy, or is a part. Source:
vLLM 0.26 ignored SIGTERM for more than 150 s while it loaded, measured."""
DYING_S = 10.0
"""How long an engine that broke off its warm-up is given to end. Source: vLLM 0.26 ended 4.9 s after its core, measured
on an H200, and answered with an error meanwhile."""
LOOK_S = 2.0
"""Between two looks at the processes of a start."""
LOOK_SERVING_S = 10.0
LINES_MAX = 1000
"""Lines of this start that its end is explained by: each process of an engine over several cards leaves a traceback."""
STOPPED = Cause(id="engine.stopped", title="The engine was stopped.", remedy="moe-appliance restart")


@dataclass(slots=True)
class EngineRun:
    """One start. `ask` takes lifecycle events; `launch` is known once `follow` has begun. `host_kv`: with the KV tier
    in host RAM that the adapter may ask for. `profile`: what the engine is taken to do, None = as the adapter says.
    `residency`: what its plugin counted last."""

    adapter: Adapter
    state_dir: Path
    runtime_dir: Path
    ring: LogRing
    ask: Callable[[Event], None]
    log: Log
    host_kv: bool = True
    cards: CardsWait | None = None
    around: Around = field(default_factory=Around)
    profile: EngineProfile | None = None
    prove: bool = False
    start_id: str = field(default_factory=lambda: secrets.token_hex(6))
    launch: Launch | None = None
    mark: str = ""
    residency: ResidencyFigures | None = None
    _key: bytes = field(default_factory=lambda: secrets.token_urlsafe(32).encode(), repr=False)
    _keyed: threading.Event = field(default_factory=threading.Event)
    _process: EngineProcess | None = None
    _spawned: asyncio.Event = field(default_factory=asyncio.Event)
    _health: Health | Part | None = None
    _watch: StartWatch | None = None
    _lines: deque[str] = field(default_factory=lambda: deque(maxlen=LINES_MAX))
    _pids: set[int] = field(default_factory=set)
    _host_bytes: HostBytes = field(default_factory=HostBytes)
    _served: bool = False
    _model: str = ""
    _context_tokens: int | None = None
    _start_ends_s: float = math.inf

    async def follow(self) -> None:
        """From Spawn to Exited."""
        cause = STOPPED
        try:
            for folder in (self.state_dir, self.runtime_dir):  # somebody may have removed them
                folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
            write_private(self._key_file, self._key)
            self._keyed.set()
            self.launch, plain = launched(self.adapter, self._key_file)
            self.mark = boot_times_kept.mark_of(plain, self._more, self._key_file)
            cause = await self._followed(self.launch)
        except OSError as error:
            cause = not_started(error)
        except MoeError as error:
            cause = Cause(id="engine.spawn", title=error.message, remedy=error.remedy)
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

    @property
    def estimate(self) -> Estimate | None:
        """How long the start still takes; None = nobody knows, or it is over."""
        return None if self._watch is None or self._served else self._watch.estimate(time.monotonic())

    @property
    def boot(self) -> Boot:
        """What the steps of the start took until now."""
        return () if self._watch is None else self._watch.ready(time.monotonic())

    async def _followed(self, launch: Launch) -> Cause:
        """The run, with its health probes and its start limit beside it."""
        cause = STOPPED
        self._health = health = self._new_health(launch) if launch.url else self._new_part(launch)
        try:
            async with asyncio.TaskGroup() as group:
                side = [group.create_task(health.run())]
                if written := launch.env.get(FOLDER):
                    figures = residency_figures.watch(Path(written), time.time(), self._counted)
                    side.append(group.create_task(figures))
                if self.adapter.supervised:
                    side.append(group.create_task(self._time_out(launch.start_timeout_s)))
                    cause = await self._run_process(launch)
                else:
                    cause = await self._attended(launch, health.healthy)
                for task in side:
                    task.cancel()
        except* OSError as errors:
            cause = not_started(errors.exceptions[0])
        return cause

    def _new_health(self, launch: Launch) -> Health:
        return Health(
            launch,
            key_of(launch),
            streams=self.around.streams,
            longest_prefill_s=self._longest_prefill_s,
            started=self._spawned.is_set,
            ok=self._healthy,
            lost=lambda cause: self.ask(HealthLost(cause, self.start_id)),
            unreachable=None if self.adapter.supervised else lambda for_s: unreachable(launch, for_s),
        )

    def _new_part(self, launch: Launch) -> Part:
        assert launch.gone is not None, "a start without a server is a part of another box"
        return Part(launch.gone, self._spawned, ok=self._healthy, lost=self._left_alone)

    def _left_alone(self, cause: Cause) -> None:
        starting = WarmUpFailed if self._is_healthy else StartFailed
        self.ask(HealthLost(cause, self.start_id) if self._served else starting(cause, self.start_id))

    def _healthy(self) -> None:
        if self._watch is not None:
            self._watch.healthy(time.monotonic())
        self.ask(HealthOk(self.start_id))

    def _longest_prefill_s(self) -> float | None:
        if self._context_tokens is None:
            return None
        profile = self.profile or self.adapter.profile
        return self.around.longest_prefill_s(profile.name, self._model, self._context_tokens)

    async def _attended(self, launch: Launch, healthy: asyncio.Event) -> Cause:
        """An engine that somebody else runs: nothing to start, and nothing to end. Returns when it does not answer
        in time; lasts until it is cancelled otherwise."""
        self._spawned.set()
        self.ask(Spawned(None, self.start_id))
        try:
            async with asyncio.timeout(launch.start_timeout_s):
                await healthy.wait()
        except TimeoutError:
            return unreachable(launch, launch.start_timeout_s)
        await asyncio.Event().wait()
        return STOPPED

    @property
    def host_tier(self) -> HostTier | None:
        """The KV tier in host RAM of this start."""
        return self.adapter.host_tier if self.host_kv else None

    @property
    def _more(self) -> tuple[str, ...]:
        return () if self.host_tier is None else self.host_tier.args

    async def _run_process(self, launch: Launch) -> Cause:
        path = unix_socket.path_of(launch.url)
        if path is not None:
            unix_socket.prepare(path)
        if self.cards is not None:
            await self.cards.before_start()
        before = {} if self.cards is None else self.cards.used_before
        last = boot_times_kept.load(self.state_dir, self.mark)
        self._watch = StartWatch(time.monotonic(), self.adapter.phase_of, launch.required, last, before)
        if launch.withheld:
            self.log.info("engine.withheld", names=", ".join(launch.withheld))
        hear = self.ring.subscribe(self._on_line)
        try:
            process = await EngineProcess.start(
                (*launch.argv, *self._more),
                env=environ_of(launch),
                cwd=self.state_dir,
                record=self.runtime_dir / "engine.record",
                grace_s=launch.grace_s,
                log=self.ring,
            )
            return await self._run_until_end(process, launch)
        finally:
            hear()
            if path is not None:
                unix_socket.remove(path)

    async def _run_until_end(self, process: EngineProcess, launch: Launch) -> Cause:
        self._process = process
        looking = self._look_at(process)
        try:
            if process.pid is not None:
                self._spawned.set()
                self.ask(Spawned(process.pid, self.start_id, self.host_tier is not None))
            kernel = await self._note_end(process, launch)
            exit_ = await process.wait()
        except asyncio.CancelledError:
            process.abandon()
            raise
        finally:
            if looking is not None:
                looking.cancel()
        if self.cards is not None:
            starts = {pid: start_of(pid) for pid in process.stuck}
            self.cards.ended({pid: start for pid, start in starts.items() if start is not None})
        return STOPPED if exit_.killed_by_us else self._explained(exit_, launch, await kernel)

    async def _note_end(self, process: EngineProcess, launch: Launch) -> asyncio.Task[tuple[str, ...]]:
        """Say it at once when the engine is gone while others of its run are still dying: nobody may wait for
        it meanwhile. Returns what the kernel says of it, being read."""
        exit_ = await process.wait_ended()
        kernel = asyncio.create_task(self._kernel_lines())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_S):
                await asyncio.gather(process.wait(), asyncio.shield(kernel))
                return kernel
        self.ask(HealthLost(self._explained(exit_, launch, ()), self.start_id, ended=True))
        return kernel

    async def _kernel_lines(self) -> tuple[str, ...]:
        return () if self.cards is None else await self.cards.kernel_lines() or ()

    def _explained(self, exit_: Exit, launch: Launch, kernel: tuple[str, ...]) -> Cause:
        context = replace(
            self.around.context(),
            command=launch.argv[0],
            runtime_dir=str(self.runtime_dir),
            served=self._served,
            context_tokens=self.adapter.context_tokens,
            streams=(self.profile or self.adapter.profile).streams,
        )
        return explained(exit_, tuple(self._lines), kernel, self._pids, context)

    def _on_line(self, line: str) -> None:
        self._lines.append(line)
        self._host_bytes.take(line)
        step = None if self._watch is None else self._watch.line(line, time.monotonic())
        if step is not None:
            self.ask(Progress(step.name, step.progress))
        if isinstance(self._health, Part) and self._missing is None:
            self._health.joined.set()

    def _look_at(self, process: EngineProcess) -> asyncio.Task[None] | None:
        """What its processes do, every few seconds, until it is cancelled."""
        if process.guard_pid is None or process.pid is None:
            return None
        return asyncio.create_task(watch(Tree(process.guard_pid), self._pause_s, self._looked))

    @property
    def _is_healthy(self) -> bool:
        return self._health is not None and self._health.healthy.is_set()

    def _pause_s(self) -> float:
        return LOOK_SERVING_S if self._is_healthy else LOOK_S

    def _looked(self, usage: Usage) -> None:
        self._pids |= usage.pids.keys()
        if self.cards is not None:
            self.cards.note(usage.pids, kept=self._is_healthy)
        cause = None if self._watch is None else self._watch.look(usage, self.around.cards(), time.monotonic())
        if cause is not None:
            self.ask(StartFailed(cause, self.start_id))
        if not self._served:
            self.around.looked()

    def _counted(self, found: ResidencyFigures) -> None:
        if found != self.residency:
            self.residency = found
            self.around.looked()

    async def _time_out(self, after_s: float) -> None:
        self._start_ends_s = time.monotonic() + after_s
        await asyncio.sleep(after_s)
        missing = self._missing if isinstance(self._health, Part) else None
        self.ask(StartTimeout(after_s, self.start_id) if missing is None else StartFailed(missing, self.start_id))

    async def warm_up(self) -> None:
        """Ask the healthy engine for what it must show; then it serves. A part of another box is asked for nothing."""
        launch, profile = self.launch, self.profile or self.adapter.profile
        assert launch is not None
        if not launch.url:
            self._served = True
            self.ask(WarmUpDone((), self.adapter.context_tokens, None, EngineAbilities(), self.start_id))
            return
        promise = launch.promise or usual(self.adapter.kind, profile, launch.hang_s)
        warming = Warming(
            self.adapter,
            launch,
            replace(promise, prove=promise.prove or self.prove),
            self.start_id,
            self.ask,
            self.log,
            host_kv=self.host_tier is not None,
            host_bytes=self._host_bytes.total,
            missing=lambda: self._missing,
            ends_s=self._start_ends_s,
        )
        done = await warming.run()
        if isinstance(done, WarmUpDone):
            self._served, self._model, self._context_tokens = True, done.models[0], done.context_tokens
            if isinstance(self._health, Health):
                self._health.serves(Serving(self.adapter.served_model or self._model, done.abilities.dialects))
        if not (isinstance(done, WarmUpFailed) and done.cause.id in warmup.DYING and await self._dies()):
            self.ask(done)

    async def _dies(self) -> bool:
        """Whether it ends by itself now: then its end says why, and its last answer was only what came of it."""
        with contextlib.suppress(TimeoutError):
            if self._process is not None:
                async with asyncio.timeout(DYING_S):
                    await self._process.wait_ended()
                    return True
        return False

    @property
    def _missing(self) -> Cause | None:
        """Why it must not serve whatever it answers: a line that must have come did not. It explains what failed then,
        too."""
        missing = None if self._watch is None else self._watch.missing
        return None if missing is None else missing.cause

    async def end(self) -> None:
        """End the engine's process, if it has one; `follow` then says Exited."""
        if self._process is not None:
            serves = self._is_healthy and isinstance(self._health, Health)
            await self._process.stop(None if serves else UNBORN_GRACE_S)
