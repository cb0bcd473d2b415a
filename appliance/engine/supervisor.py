"""Carries the lifecycle's decisions out: prepares, spawns, probes, warms up, stops; tells the board.

Touches child processes, the engine's HTTP port, its key file and its log file.

Rules:
- One queue of events, one loop that handles them: two decisions never interleave.
- What runs for one start carries its start id; what comes late from a former start is ignored by the lifecycle.
- The key is new at every start, in a 0600 file of its own name, so that an old gateway never reads a new key.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import assert_never

import httpx

from appliance.board import Board
from appliance.box.facts import Facts
from appliance.engine import lifecycle
from appliance.engine.adapter import Adapter, Launch
from appliance.engine.failures import Context, diagnose
from appliance.engine.lifecycle import State
from appliance.engine.lifecycle_events import (
    Effect,
    Event,
    Exited,
    HealthLost,
    HealthOk,
    Kill,
    Prepare,
    Prepared,
    PrepareFailed,
    PrepareStarted,
    Progress,
    Publish,
    Refused,
    RestartAsked,
    SetTimer,
    Spawn,
    Spawned,
    StartAsked,
    StartTimeout,
    StopAsked,
    StopDone,
    TimerDue,
    WarmUp,
    WarmUpDone,
    WarmUpFailed,
)
from appliance.engine.logring import LogRing
from appliance.engine.process import EngineProcess
from appliance.engine.warmup import WarmUpFailed as WarmUpError
from appliance.engine.warmup import warm_up
from appliance.errors import MoeError
from appliance.files import write_private
from gateway.logs import Log
from gateway.state import Cause, EngineState, Finding, Phase, Severity

HEALTH_S = 2.0
"""Time limit of one health probe, and the pause between two while the engine is READY."""
HEALTH_STARTING_S = 0.2
HEALTH_MISSES_MAX = 5
LAST_WORDS_S = 0.1
"""How long the log of an engine that ended is read before its end is told; mostly nothing is left by then."""
LOG_LINES_SHOWN = 60
RECHECK_S = 120.0
"""A refused engine is checked again after this long: the operator may have mended it."""
EXTERNAL_AGAIN_S = 15.0
"""An engine that somebody else runs is asked again after this long, however often it failed."""


@dataclass(slots=True)
class EngineSupervisor:
    """One per daemon. `run()` for ever; `ask()` from anywhere on the loop; `stop()` once."""

    adapter: Adapter
    board: Board
    state_dir: Path
    runtime_dir: Path
    facts: Callable[[], Facts]
    box_findings: Callable[[Facts], tuple[Finding, ...]]
    log: Log
    _state: State = field(default_factory=State)
    _events: asyncio.Queue[Event] = field(default_factory=asyncio.Queue)
    _group: asyncio.TaskGroup = field(default_factory=asyncio.TaskGroup)
    _preparing: asyncio.Task[None] | None = None
    _process: EngineProcess | None = None
    _run: asyncio.Task[None] | None = None
    _launch: Launch | None = None
    _timer: asyncio.TimerHandle | None = None
    _ring: LogRing = field(init=False)
    _stopping: bool = False
    _stopped: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._ring = LogRing(file=self.state_dir / "engine.log")
        self._ring.subscribe(self._on_line)

    async def run(self) -> None:
        """Start the engine and look after it until cancelled."""
        self.ask(StartAsked())
        try:
            async with self._group:
                while True:
                    event = await self._events.get()
                    before = self._state.phase
                    self._state, effects = lifecycle.handle(self._state, event, time.monotonic())
                    if self._state.phase is not before:
                        self._phase_changed()
                    for effect in effects:
                        self._carry_out(effect)
                    if self._stopping and self._state.phase is Phase.OFF:
                        self._stopped.set()
        finally:
            self._ring.close()

    def ask(self, event: Event) -> None:
        """Tell the lifecycle of an event."""
        self._events.put_nowait(event)

    def restart(self) -> None:
        """Stop and start again; clears the counts of failures."""
        self.ask(RestartAsked())

    def start(self) -> None:
        """Start when it is at rest."""
        self.ask(StartAsked())

    async def stop(self) -> None:
        """End the engine and wait until nothing of it is left."""
        self.ask(StopAsked())
        self._stopping = True
        await self._stopped.wait()

    # Effects

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Prepare():
                self._preparing = self._group.create_task(self._prepare())
            case Spawn():
                self._run = self._group.create_task(self._one_run())
            case WarmUp():
                self._group.create_task(self._warm_up(self._state.start_id))
            case Kill(cause=cause):
                self._kill(cause)
            case SetTimer(at_s=at_s):
                self._set_timer(at_s)
            case Publish():
                self._publish()
            case _:
                assert_never(effect)

    def _kill(self, cause: Cause) -> None:
        if self._preparing is not None and not self._preparing.done():
            self._preparing.cancel()
        elif not self.adapter.supervised and self._run is not None:
            self._run.cancel()
        elif self._process is not None:
            self._group.create_task(self._stop_process(self._process))

    @staticmethod
    async def _stop_process(process: EngineProcess) -> None:
        await process.stop()

    def _set_timer(self, at_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay_s = max(0.0, at_s - time.monotonic())
        self._timer = asyncio.get_running_loop().call_later(delay_s, self.ask, TimerDue())

    # Preparation

    async def _prepare(self) -> None:
        try:
            self.ask(PrepareStarted())
            facts = await asyncio.to_thread(self.facts)
            findings = self.box_findings(facts) + self.adapter.findings(facts)
            self.board.update(findings=findings)
            for finding in findings:
                self.log.warning("daemon.finding", id=finding.id, severity=str(finding.severity), title=finding.title)
            causes = [
                Cause(id=f.id, title=f"{f.title}: {f.observed}", remedy=f.remedy)
                for f in findings
                if f.severity is Severity.FAIL
            ]
            if causes:
                self.ask(Refused(tuple(causes)))
                return
            await self.adapter.prepare(lambda step, fraction: self.ask(Progress(step, fraction)))
        except MoeError as error:
            self.ask(PrepareFailed(Cause(id="engine.prepare", title=error.message, remedy=error.remedy)))
        except asyncio.CancelledError:
            self.ask(StopDone())
            raise
        else:
            self.ask(Prepared())

    # A run

    async def _one_run(self) -> None:
        """From Spawn to Exited; Exited is said exactly once, whatever happens."""
        start_id = secrets.token_hex(6)
        key_file = self.runtime_dir / f"engine-{start_id}.key"
        cause = Cause(id="engine.stopped", title="The engine was stopped.", remedy="moe-appliance restart")
        try:
            write_private(key_file, secrets.token_urlsafe(32).encode())
            launch = self.adapter.launch(free_port(), key_file)
            self._launch = launch
            async with asyncio.TaskGroup() as group:
                side = [
                    group.create_task(self._probe_health(launch, start_id)),
                    group.create_task(self._time_out(launch.start_timeout_s, start_id)),
                ]
                if self.adapter.supervised:
                    cause = await self._run_process(launch, start_id)
                else:
                    self.ask(Spawned(None, start_id))
                    await asyncio.Event().wait()
                for task in side:
                    task.cancel()
        except OSError as error:
            cause = Cause(
                id="engine.spawn", title=f"The engine cannot be started: {error}", remedy="moe-appliance status"
            )
        except asyncio.CancelledError:
            if self.adapter.supervised:
                raise
        finally:
            self._process = None
            key_file.unlink(missing_ok=True)
            self.log.warning("engine.ended", cause=cause.id, title=cause.title)
            self.ask(Exited(cause))

    async def _run_process(self, launch: Launch, start_id: str) -> Cause:
        process = await EngineProcess.start(
            launch.argv,
            env={**os.environ, **launch.env},
            cwd=self.state_dir,
            record=self.runtime_dir / "engine.record",
            grace_s=launch.grace_s,
            log=self._ring,
        )
        self._process = process
        try:
            if process.pid is not None:
                self.ask(Spawned(process.pid, start_id))
            await self._note_end(process, launch, start_id)
            exit_ = await process.wait()
        except asyncio.CancelledError:
            process.abandon()
            raise
        return diagnose(exit_, self._ring.tail(200), Context(command=launch.argv[0]))

    async def _note_end(self, process: EngineProcess, launch: Launch, start_id: str) -> None:
        """Say it at once when the engine is gone while others of its run are still dying: nobody may wait for
        it meanwhile."""
        exit_ = await process.wait_ended()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_S):
                await process.wait()
                return
        self.ask(HealthLost(diagnose(exit_, self._ring.tail(200), Context(command=launch.argv[0])), start_id))

    async def _time_out(self, after_s: float, start_id: str) -> None:
        await asyncio.sleep(after_s)
        self.ask(StartTimeout(after_s, start_id))

    async def _probe_health(self, launch: Launch, start_id: str) -> None:
        """HealthOk once; afterwards HealthLost after five misses in a row."""
        misses, healthy = 0, False
        async with httpx.AsyncClient(timeout=HEALTH_S, headers=_bearer(launch), trust_env=False) as client:
            while True:
                pause_s = HEALTH_S if healthy else HEALTH_STARTING_S
                try:
                    (await client.get(launch.url + launch.health_path)).raise_for_status()
                except httpx.HTTPError as error:
                    misses += healthy
                    if isinstance(error, httpx.TimeoutException):  # it took HEALTH_S already
                        pause_s = 0.0
                    if misses == HEALTH_MISSES_MAX:
                        self.ask(HealthLost(_unhealthy(error), start_id))
                        return
                else:
                    misses = 0
                    if not healthy and self._state.start_id == start_id:
                        healthy = True
                        self.ask(HealthOk(start_id))
                await asyncio.sleep(pause_s)

    async def _warm_up(self, start_id: str) -> None:
        launch = self._launch
        assert launch is not None
        key = launch.key_file.read_text().strip() if launch.key_file is not None else None
        try:
            warm = await warm_up(
                launch.url, key, self.adapter.served_model, lambda step, part: self.ask(Progress(step, part))
            )
        except WarmUpError as error:
            self.ask(WarmUpFailed(error.cause, start_id))
            return
        context_tokens = self.adapter.context_tokens or warm.context_tokens
        self.ask(WarmUpDone(warm.models, context_tokens, warm.tok_per_s, start_id))

    # What others see

    def _on_line(self, line: str) -> None:
        step = self.adapter.phase_of(line)
        if step is not None and self._state.phase is Phase.STARTING:
            self.ask(Progress(*step))
        self._publish(at_once=False)

    def _phase_changed(self) -> None:
        state = self._state
        cause = state.cause.id if state.cause else None
        self.log.info("engine.phase", phase=str(state.phase), start_id=state.start_id, pid=state.pid, cause=cause)
        loop = asyncio.get_running_loop()
        if state.phase is Phase.REFUSED:
            loop.call_later(RECHECK_S, self._again_if, Phase.REFUSED, state.since_s)
        if state.phase is Phase.FAILED and not self.adapter.supervised:
            loop.call_later(EXTERNAL_AGAIN_S, self._again_if, Phase.FAILED, state.since_s)

    def _again_if(self, phase: Phase, since_s: float) -> None:
        if self._state.phase is phase and self._state.since_s == since_s:
            self.ask(StartAsked())

    def _publish(self, *, at_once: bool = True) -> None:
        state, launch = self._state, self._launch
        wall_s = time.time() - time.monotonic()
        running = state.phase in (Phase.STARTING, Phase.WARMING, Phase.READY) and launch is not None
        self.board.update(
            at_once=at_once and state.progress is None,
            engine=EngineState(
                phase=state.phase,
                kind=self.adapter.kind,
                start_id=state.start_id,
                step=state.step,
                progress=state.progress,
                since_s=wall_s + state.since_s,
                pid=state.pid,
                url=launch.url if running and launch else None,
                key_file=str(launch.key_file) if running and launch and launch.key_file else None,
                models=state.models,
                context_tokens=state.context_tokens,
                warm_tok_per_s=state.warm_tok_per_s,
                profile=self.adapter.profile,
                cause=state.cause,
                retry_at_s=wall_s + state.retry_at_s if state.retry_at_s is not None else None,
                restarts=state.restarts,
                log_tail=self._ring.tail(LOG_LINES_SHOWN),
            ),
        )


def free_port() -> int:
    """A loopback port that was free a moment ago."""
    with contextlib.closing(socket.socket()) as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def _bearer(launch: Launch) -> Mapping[str, str]:
    if launch.key_file is None:
        return {}
    return {"authorization": f"Bearer {launch.key_file.read_text().strip()}"}


def _unhealthy(error: httpx.HTTPError) -> Cause:
    missed_s = HEALTH_MISSES_MAX * HEALTH_S
    why = str(error) or type(error).__name__
    return Cause(
        id="engine.hung",
        title=f"The engine did not answer its health probe for {missed_s:g} s ({why}).",
        remedy="moe-appliance status (shows its last log lines)",
    )
