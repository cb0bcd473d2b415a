"""Carries the lifecycle's decisions out and tells the board; run.py follows each start.

Touches the box (through `examine`), the engine's log file, and what run.py touches.

Rule: one queue of events, one loop that handles them, so that two decisions never interleave.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import assert_never

from appliance.board import Board
from appliance.engine import boot_times_kept, host_kv, host_kv_kept, lifecycle
from appliance.engine.adapter import Adapter
from appliance.engine.around import Around, context_of
from appliance.engine.examined import Examined, causes_of
from appliance.engine.failures import Context
from appliance.engine.in_use import InUse
from appliance.engine.launching import not_prepared
from appliance.engine.lifecycle_events import (
    Effect,
    Event,
    Exited,
    Kill,
    MemoryHeld,
    Prepare,
    Prepared,
    PrepareFailed,
    PrepareStarted,
    Progress,
    Publish,
    Refused,
    RestartAsked,
    Served,
    SetTimer,
    Spawn,
    StartAsked,
    StopAsked,
    StopDone,
    TimerDue,
    WarmUp,
)
from appliance.engine.lifecycle_state import State
from appliance.engine.logring import LogRing
from appliance.engine.pairs import SETTLED_S
from appliance.engine.run import STOPPED, EngineRun
from appliance.engine.start_watch import watched
from appliance.engine.switch import Switch
from appliance.engine.vram_wait import CardsWait
from appliance.errors import MoeError
from appliance.unwaited import unwaited
from gateway.logs import Log
from gateway.state import Cause, EngineState, Finding, HostKv, Pair, Phase

RUNNING = frozenset({Phase.STARTING, Phase.WARMING, Phase.READY})
FELL_BACK = frozenset({Phase.REFUSED, Phase.BACKOFF, Phase.FAILED})
"""A start ended, or was refused."""
LOG_LINES_SHOWN = 60
GATEWAY_FINDINGS = ("gateway.", "python.")
"""Findings that begin so are of the gateway's supervision and outlive a look at the box."""
RECHECK_S = 120.0
"""A refused engine is checked again after this long: the operator may have mended it. So are cards that nobody is seen
to hold: they may be given back."""
EXTERNAL_AGAIN_S = 15.0
"""An engine that somebody else runs is asked again after this long, however often it failed."""


@dataclass(slots=True)
class EngineSupervisor:
    """One per daemon. `examine` may block for a minute: it is called in a thread. `around`: what runs are told of the
    box; cards, context and `looked` are seen to here. `in_use`: where adapter and look come from, None = they are as
    given. `run()` for ever; `ask()` from anywhere on the loop; `stop()` once."""

    adapter: Adapter
    board: Board
    state_dir: Path
    runtime_dir: Path
    examine: Callable[[], Examined]
    log: Log
    around: Around = field(default_factory=Around)
    cards: CardsWait | None = None
    in_use: InUse | None = None
    _state: State = field(default_factory=State)
    _events: asyncio.Queue[Event] = field(default_factory=asyncio.Queue)
    _group: asyncio.TaskGroup = field(default_factory=asyncio.TaskGroup)
    _preparing: asyncio.Task[None] | None = None
    _run: EngineRun | None = None
    _following: asyncio.Task[None] | None = None
    _timer: asyncio.TimerHandle | None = None
    _examined: Examined = field(default_factory=lambda: Examined(()))
    _spawned_s: float = 0.0
    _load_s: float | None = None
    _ring: LogRing = field(init=False)
    _switch: Switch | None = None
    _stopping: bool = False
    _stopped: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._ring = LogRing(file=self.state_dir / "engine.log")
        self._ring.subscribe(lambda line: self._publish(at_once=False))
        self._state = State(host_kv_off=host_kv_kept.load(self.state_dir, self.adapter.host_tier))
        if self.in_use is not None:
            self._switch = Switch(
                self.in_use,
                lambda: self._state.phase is Phase.READY,
                lambda: self.adapter.environment,
                self._publish,
                lambda: self.ask(RestartAsked()),
            )

    async def run(self) -> None:
        """Start the engine and look after it until cancelled."""
        self.ask(StartAsked())
        try:
            async with self._group:
                while True:
                    event = await self._events.get()
                    if self._stopping and isinstance(event, StartAsked | RestartAsked):
                        continue  # or the stop would wait for ever
                    before = self._state
                    if before.phase is Phase.READY and self.around.served() == before.start_id:
                        self._state, _ = lifecycle.handle(before, Served(), time.monotonic())
                    self._state, effects = lifecycle.handle(self._state, event, time.monotonic())
                    if self._switch is not None and isinstance(event, RestartAsked):
                        self._switch.begun()
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

    def restart(self) -> Pair | None:
        """Stop and start again; clears the counts of failures. With a pair that streams end for: at once, and once."""
        hastened = None if self._switch is None else self._switch.hasten()
        if hastened is None:
            self.ask(RestartAsked())
        return hastened

    def use(self, pair: Pair, *, prove: bool, drained: Callable[[], bool], drain_s: float) -> None:
        """Put `pair` on trial once running streams have ended, or `drain_s` have passed."""
        assert self._switch is not None, "built without pairs"
        self._switch.begin(self._group, pair, prove=prove, drained=drained, drain_s=drain_s)

    def start(self) -> None:
        """Start when it is at rest."""
        self.ask(StartAsked())

    def keep_key(self) -> None:
        """See that the key file of the running start is there. Raises OSError."""
        if self._run is not None:
            self._run.keep_key()

    def ending(self) -> None:
        """The box is about to stop: the engine goes on for streams that run, and nothing is started any more."""
        self._stopping = True
        if self._switch is not None:
            self._switch.cancel()

    async def stop(self) -> None:
        """End the engine and wait until nothing of it is left."""
        self.ending()
        if self.in_use is not None:
            self.in_use.stopped()
        self.ask(StopAsked())
        await self._stopped.wait()

    # Effects

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Prepare():
                self._preparing = self._group.create_task(self._prepare())
                self._preparing.add_done_callback(lambda _: self.ask(StopDone()))
            case Spawn(host_kv=host_kv):
                if self.in_use is not None:
                    self.in_use.began()
                self._run = self._new_run(host_kv)
                self._following = self._group.create_task(self._run.follow())
                self._following.add_done_callback(self._unfollowed)
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

    def _new_run(self, host_kv: bool) -> EngineRun:
        return EngineRun(
            self.adapter,
            self.state_dir,
            self.runtime_dir,
            self._ring,
            self.ask,
            self.log,
            host_kv,
            self.cards,
            replace(self.around, cards=lambda: watched(self.board.state), looked=self._looked, context=self._context),
            self._examined.profile,
            prove=self.in_use is not None and self.in_use.pairs.prove,
        )

    def _context(self) -> Context:
        """What explains an end beside its log."""
        holders = () if self.cards is None else self.cards.holders
        return context_of(self.adapter.environment, self._examined, holders)

    def _looked(self) -> None:
        if self._state.phase in RUNNING:
            self._publish(at_once=False)

    def _kill(self, cause: Cause) -> None:
        if self._preparing is not None and not self._preparing.done():
            self._preparing.cancel()
        elif not self.adapter.supervised and self._following is not None:
            self._following.cancel()
        elif self._run is not None:
            self._group.create_task(self._run.end())

    def _unfollowed(self, following: asyncio.Task[None]) -> None:
        """One that was cancelled before it began has not said Exited."""
        if following.cancelled():
            self.ask(Exited(STOPPED))

    def _set_timer(self, at_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay_s = max(0.0, at_s - time.monotonic())
        self._timer = asyncio.get_running_loop().call_later(delay_s, self.ask, TimerDue())

    # Preparation

    async def _prepare(self) -> None:
        try:
            self.ask(PrepareStarted())
            self._take_pair()
            held = None if self.cards is None else await self.cards.free(self._progress)
            if held is not None:
                self.ask(MemoryHeld(held))
                return
            self._examined = examined = await unwaited(self.examine)
            findings = (*examined.findings, *self._own_findings())
            self._log_findings(findings)
            others = tuple(found for found in self.board.state.findings if found.id.startswith(GATEWAY_FINDINGS))
            self.board.update(findings=(*findings, *others), plan=examined.plan)
            causes = causes_of(findings)
            if causes:
                self.ask(Refused(causes))
                return
            await self.adapter.prepare(self._progress)
        except (MoeError, OSError) as error:
            self.ask(PrepareFailed(not_prepared(error)))
        else:
            self.ask(Prepared())

    def _progress(self, step: str, fraction: float | None) -> None:
        self.ask(Progress(step, fraction))

    def _log_findings(self, findings: Iterable[Finding]) -> None:
        """Those that the last look did not have: a refused engine is looked at for hours."""
        known = {(finding.id, finding.severity) for finding in self.board.state.findings}
        for finding in findings:
            if (finding.id, finding.severity) not in known:
                self.log.warning("daemon.finding", id=finding.id, severity=str(finding.severity), title=finding.title)

    def _take_pair(self) -> None:
        """Adapter and look of the pair in use. Raises ConfigError."""
        if self.in_use is None:
            return
        composed, before = self.in_use.composed(), self.adapter.host_tier
        self.adapter, self.examine = composed.adapter, composed.examine
        if self.adapter.host_tier != before:
            off = host_kv_kept.load(self.state_dir, self.adapter.host_tier)
            self._state = replace(self._state, host_kv_off=off)

    def _own_findings(self) -> tuple[Finding, ...]:
        tier, off = self.adapter.host_tier, self._state.host_kv_off
        of_tier = () if tier is None or off is None else (host_kv.off_finding(tier, off),)
        return of_tier + (() if self.in_use is None else self.in_use.findings())

    def _keep_host_kv(self) -> None:
        tier = self.adapter.host_tier
        assert tier is not None, "no run had a tier to turn off"
        try:
            host_kv_kept.save(self.state_dir, tier, self._state.host_kv_off)
        except OSError as error:  # the next daemon finds out again
            self.log.warning("engine.host_kv", error=str(error))

    # What others see

    def _phase_changed(self) -> None:
        state = self._state
        cause = state.cause.id if state.cause else None
        self.log.info("engine.phase", phase=str(state.phase), start_id=state.start_id, pid=state.pid, cause=cause)
        if state.phase is Phase.STARTING:
            self._spawned_s = state.since_s
        if state.phase is Phase.READY:
            self._load_s = state.since_s - self._spawned_s
            self._keep_boot()
        loop = asyncio.get_running_loop()
        self._judge_pair(loop)
        may_pass = state.phase is Phase.NEEDS_REBOOT and state.cause is not None and state.cause.retry
        if state.phase is Phase.REFUSED or may_pass:
            loop.call_later(RECHECK_S, self._again_if, state.phase, state.since_s)
        if state.phase is Phase.FAILED and not self.adapter.supervised:
            loop.call_later(EXTERNAL_AGAIN_S, self._again_if, Phase.FAILED, state.since_s)

    def _judge_pair(self, loop: asyncio.AbstractEventLoop) -> None:
        """A trial is good once it was READY for long enough; one that does not come so far leads back."""
        state, in_use = self._state, self.in_use
        if in_use is not None and state.phase is Phase.READY:
            in_use.served(self.adapter.environment)
            loop.call_later(SETTLED_S, self._settle_if, state.since_s)
        elif in_use is not None and state.phase in FELL_BACK and state.cause is not None and in_use.ended(state.cause):
            self.restart()

    def _settle_if(self, since_s: float) -> None:
        if self.in_use is not None and self._state.phase is Phase.READY and self._state.since_s == since_s:
            self.in_use.settled()
            self._publish()

    def _keep_boot(self) -> None:
        if self._run is None or not self._run.boot:
            return
        try:
            boot_times_kept.save(self.state_dir, self._run.mark, self._run.boot)
        except OSError as error:  # the next start has no estimate
            self.log.warning("engine.boot_times", error=str(error))

    def _again_if(self, phase: Phase, since_s: float) -> None:
        if self._state.phase is phase and self._state.since_s == since_s:
            self.ask(StartAsked())

    def _publish(self, *, at_once: bool = True) -> None:
        state, wall_s = self._state, time.time() - time.monotonic()
        run = self._run if state.phase in RUNNING else None
        launch, estimate = (None, None) if run is None else (run.launch, run.estimate)
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
                url=launch.url or None if launch else None,
                key_file=str(launch.key_file) if launch and launch.key_file else None,
                models=state.models,
                context_tokens=state.context_tokens,
                warm_tok_per_s=state.warm_tok_per_s,
                abilities=state.abilities,
                host_kv=self._host_kv(),
                profile=self._examined.profile or self.adapter.profile,
                cause=state.cause,
                retry_at_s=wall_s + state.retry_at_s if state.retry_at_s is not None else None,
                restarts=state.restarts,
                load_s=self._load_s,
                left_s=None if estimate is None else estimate.left_s,
                start_progress=None if estimate is None else estimate.share,
                probes=state.probes,
                leaving=self._switch is not None and self._switch.wanted is not None,
                environment=self.adapter.environment,
                trial=self._trial(),
                reverted=None if self.in_use is None else self.in_use.pairs.reverted,
                residency=None if run is None else run.residency,
                log_tail=self._ring.tail(LOG_LINES_SHOWN),
            ),
        )

    def _trial(self) -> Pair | None:
        if self.in_use is None or self._switch is None:
            return None
        return self._switch.wanted or self.in_use.pairs.trial

    def _host_kv(self) -> HostKv:
        tier, state = self.adapter.host_tier, self._state
        on = state.host_kv and state.phase is Phase.READY
        return HostKv() if tier is None else HostKv(bytes=tier.bytes, on=on, off=state.host_kv_off)
