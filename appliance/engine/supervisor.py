"""Carries the lifecycle's decisions out and tells the board; run.py follows each start.

Touches the box (through `examine`), the engine's log file, and what run.py touches.

Rule: one queue of events, one loop that handles them, so that two decisions never interleave.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import assert_never

from appliance.board import Board
from appliance.engine import host_kv, host_kv_kept, lifecycle
from appliance.engine.adapter import Adapter
from appliance.engine.lifecycle import State
from appliance.engine.lifecycle_events import (
    Effect,
    Event,
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
    StartAsked,
    StopAsked,
    StopDone,
    TimerDue,
    WarmUp,
)
from appliance.engine.logring import LogRing
from appliance.engine.run import EngineRun
from appliance.errors import MoeError
from appliance.unwaited import unwaited
from gateway.logs import Log
from gateway.state import Cause, EngineProfile, EngineState, Finding, HostKv, Phase, PlanState, Severity

LOG_LINES_SHOWN = 60
GATEWAY_FINDINGS = ("gateway.", "python.")
"""Findings that begin so are of the gateway's supervision and outlive a look at the box."""
RECHECK_S = 120.0
"""A refused engine is checked again after this long: the operator may have mended it."""
EXTERNAL_AGAIN_S = 15.0
"""An engine that somebody else runs is asked again after this long, however often it failed."""


@dataclass(frozen=True, slots=True)
class Examined:
    """What a look at the box gave: everything that speaks for or against a start, the plan as it was checked, and what
    the engine is taken to do with it (None = what the adapter says)."""

    findings: tuple[Finding, ...]
    plan: PlanState | None = None
    profile: EngineProfile | None = None


@dataclass(slots=True)
class EngineSupervisor:
    """One per daemon. `examine` may block for a minute: it is called in a thread. `run()` for ever; `ask()`
    from anywhere on the loop; `stop()` once."""

    adapter: Adapter
    board: Board
    state_dir: Path
    runtime_dir: Path
    examine: Callable[[], Examined]
    log: Log
    _state: State = field(default_factory=State)
    _events: asyncio.Queue[Event] = field(default_factory=asyncio.Queue)
    _group: asyncio.TaskGroup = field(default_factory=asyncio.TaskGroup)
    _preparing: asyncio.Task[None] | None = None
    _run: EngineRun | None = None
    _following: asyncio.Task[None] | None = None
    _timer: asyncio.TimerHandle | None = None
    _profile: EngineProfile | None = None
    _spawned_s: float = 0.0
    _load_s: float | None = None
    _ring: LogRing = field(init=False)
    _stopping: bool = False
    _stopped: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._ring = LogRing(file=self.state_dir / "engine.log")
        self._ring.subscribe(self._on_line)
        self._state = State(host_kv_off=host_kv_kept.load(self.state_dir, self.adapter.host_tier))

    async def run(self) -> None:
        """Start the engine and look after it until cancelled."""
        self.ask(StartAsked())
        try:
            async with self._group:
                while True:
                    event = await self._events.get()
                    before = self._state
                    self._state, effects = lifecycle.handle(self._state, event, time.monotonic())
                    if self._state.phase is not before.phase:
                        self._phase_changed()
                    if self._state.host_kv_off != before.host_kv_off:
                        self._keep_host_kv()
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

    def keep_key(self) -> None:
        """See that the key file of the running start is there. Raises OSError."""
        if self._run is not None:
            self._run.keep_key()

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
            case Spawn(host_kv=host_kv):
                self._run = EngineRun(
                    self.adapter, self.state_dir, self.runtime_dir, self._ring, self.ask, self.log, host_kv
                )
                self._following = self._group.create_task(self._run.follow())
            case WarmUp():
                assert self._run is not None, "WarmUp follows Spawn"
                self._group.create_task(self._run.warm_up())
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
        elif not self.adapter.supervised and self._following is not None:
            self._following.cancel()
        elif self._run is not None:
            self._group.create_task(self._run.end())

    def _set_timer(self, at_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay_s = max(0.0, at_s - time.monotonic())
        self._timer = asyncio.get_running_loop().call_later(delay_s, self.ask, TimerDue())

    # Preparation

    async def _prepare(self) -> None:
        try:
            self.ask(PrepareStarted())
            examined = await unwaited(self.examine)
            findings = (*examined.findings, *self._host_kv_findings())
            self._log_findings(findings)
            self._profile = examined.profile
            others = tuple(found for found in self.board.state.findings if found.id.startswith(GATEWAY_FINDINGS))
            self.board.update(findings=(*findings, *others), plan=examined.plan)
            causes = _causes(findings)
            if causes:
                self.ask(Refused(causes))
                return
            await self.adapter.prepare(lambda step, fraction: self.ask(Progress(step, fraction)))
        except MoeError as error:
            self.ask(PrepareFailed(Cause(id="engine.prepare", title=error.message, remedy=error.remedy)))
        except asyncio.CancelledError:
            self.ask(StopDone())
            raise
        else:
            self.ask(Prepared())

    def _log_findings(self, findings: Iterable[Finding]) -> None:
        """Those that the last look did not have: a refused engine is looked at for hours."""
        known = {(finding.id, finding.severity) for finding in self.board.state.findings}
        for finding in findings:
            if (finding.id, finding.severity) not in known:
                self.log.warning("daemon.finding", id=finding.id, severity=str(finding.severity), title=finding.title)

    def _host_kv_findings(self) -> tuple[Finding, ...]:
        tier, off = self.adapter.host_tier, self._state.host_kv_off
        return () if tier is None or off is None else (host_kv.off_finding(tier, off),)

    def _keep_host_kv(self) -> None:
        tier = self.adapter.host_tier
        assert tier is not None, "no run had a tier to turn off"
        try:
            host_kv_kept.save(self.state_dir, tier, self._state.host_kv_off)
        except OSError as error:  # the next daemon finds out again
            self.log.warning("engine.host_kv", error=str(error))

    # What others see

    def _on_line(self, line: str) -> None:
        step = self.adapter.phase_of(line)
        if step is not None and self._state.phase is Phase.STARTING:
            self.ask(Progress(step.name, step.progress))
        self._publish(at_once=False)

    def _phase_changed(self) -> None:
        state = self._state
        cause = state.cause.id if state.cause else None
        self.log.info("engine.phase", phase=str(state.phase), start_id=state.start_id, pid=state.pid, cause=cause)
        if state.phase is Phase.STARTING:
            self._spawned_s = state.since_s
        if state.phase is Phase.READY:
            self._load_s = state.since_s - self._spawned_s
        loop = asyncio.get_running_loop()
        if state.phase is Phase.REFUSED:
            loop.call_later(RECHECK_S, self._again_if, Phase.REFUSED, state.since_s)
        if state.phase is Phase.FAILED and not self.adapter.supervised:
            loop.call_later(EXTERNAL_AGAIN_S, self._again_if, Phase.FAILED, state.since_s)

    def _again_if(self, phase: Phase, since_s: float) -> None:
        if self._state.phase is phase and self._state.since_s == since_s:
            self.ask(StartAsked())

    def _publish(self, *, at_once: bool = True) -> None:
        state, launch = self._state, self._run.launch if self._run is not None else None
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
                abilities=state.abilities,
                host_kv=self._host_kv(),
                profile=self._profile or self.adapter.profile,
                cause=state.cause,
                retry_at_s=wall_s + state.retry_at_s if state.retry_at_s is not None else None,
                restarts=state.restarts,
                load_s=self._load_s,
                log_tail=self._ring.tail(LOG_LINES_SHOWN),
            ),
        )

    def _host_kv(self) -> HostKv:
        tier, state = self.adapter.host_tier, self._state
        on = state.host_kv and state.phase is Phase.READY
        return HostKv() if tier is None else HostKv(bytes=tier.bytes, on=on, off=state.host_kv_off)


def _causes(findings: Iterable[Finding]) -> tuple[Cause, ...]:
    """The failures, those first that follow from no other."""
    failed = [finding for finding in findings if finding.severity is Severity.FAIL]
    ids = {finding.id for finding in failed}
    failed.sort(key=lambda finding: finding.depends_on in ids)
    return tuple(Cause(id=f.id, title=f"{f.title}: {f.observed}", remedy=f.remedy) for f in failed)
