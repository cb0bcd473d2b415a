"""What all requests of one gateway process share: limiter, budget, seats, engine, live exchanges.

Touches nothing by itself; app.py composes it and runs its sweeps.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from gateway import lastgood
from gateway.admission import Admission
from gateway.admission_types import RETRY_MAX_S, RETRY_MIN_S, Reason
from gateway.bodies import BodyBudget, LargeBodies
from gateway.care import Care
from gateway.connections import Connections
from gateway.counting import Counting
from gateway.dialects import Prepared
from gateway.estimate import TokenEstimate
from gateway.events import Events, Refusals
from gateway.history import History
from gateway.keyfile import Broken, Changed, HeldFile, Unchanged
from gateway.learning.floor_guard import Terms
from gateway.learning.learned import Learned
from gateway.limiter import Limiter
from gateway.limits import cap_of, limits_of
from gateway.logs import Log
from gateway.overlay import Mode, Overlay
from gateway.overlayfile import KEEP_EVERY_S, OverlayFile
from gateway.prefix.kept import NAME as KEPT_NAME
from gateway.prefix.kept import Keeper, keeping, read_kept
from gateway.prewarm.reader import Reader
from gateway.problem import Problem, ended, engine_not_ready, maintenance, unknown_model
from gateway.runs import Runs
from gateway.seats import AdminBook, SeatBook, counted, diff
from gateway.settings import GatewaySettings
from gateway.splice import replace_value
from gateway.state import BoxState, EngineState, Phase, Severity
from gateway.tallies import Tallies
from gateway.upstream import EngineAddress

if TYPE_CHECKING:
    from gateway.exchange import Exchange
    from gateway.ledger.writing import Ledger
    from gateway.outcome import Outcome


SUSPECT_S = 1.0
TOLD_REFUSALS = frozenset(Reason) | {"bodies_full"}
"""Codes of refusals that are the box's doing and become events; a stranger's or a client's mistakes do not."""
MODEL_MAX = 256
"""No vendor's name is longer; splices replace short values only."""


def last_good_file(settings: GatewaySettings) -> Path:
    """Where the copy of the last good seat file is kept."""
    return settings.state_dir / "seats.last-good.toml"


@dataclass(frozen=True, slots=True)
class Engine:
    """How to reach the engine that is READY: address, key, and the id of this start of it."""

    address: EngineAddress
    key: str | None
    start_id: str


@dataclass(slots=True)
class Core:
    """One per process. `served`: id of the engine's start that answered a request to its end last, "" = none did."""

    settings: GatewaySettings
    seats: HeldFile[SeatBook]
    admins: HeldFile[AdminBook]
    log: Log
    limiter: Limiter
    bodies: BodyBudget
    overlay: OverlayFile
    care: Care
    events: Events = field(default_factory=Events)
    refusals: Refusals = field(init=False)
    prewarm: Reader = field(init=False)
    large_bodies: LargeBodies = field(default_factory=LargeBodies)
    counting: Counting = field(default_factory=Counting)
    estimate: TokenEstimate = field(default_factory=TokenEstimate)
    runs: Runs = field(default_factory=Runs)
    box: BoxState = field(default_factory=BoxState)
    engine: Engine | None = None
    live: set[Exchange] = field(default_factory=set)
    draining: bool = False
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    tokens_out: Counter[str] = field(default_factory=Counter)
    tallies: Tallies = field(default_factory=Tallies)
    served: str = ""
    history: History = field(default_factory=History)
    ledger: Ledger | None = None
    connections: Connections = field(default_factory=Connections)
    _suspect: str | None = None
    _seats_at_s: float = field(default_factory=time.time)
    started_s: float = field(default_factory=time.time)
    all_done: asyncio.Event = field(default_factory=asyncio.Event)
    seen: asyncio.Event = field(default_factory=asyncio.Event)
    _one_change: asyncio.Lock = field(default_factory=asyncio.Lock)
    _looked: bool = False
    _had_engine: bool = False

    def __post_init__(self) -> None:
        self.refusals = Refusals(self.events)
        self.prewarm = Reader(self)

    @classmethod
    def make(
        cls,
        settings: GatewaySettings,
        seats: HeldFile[SeatBook],
        admins: HeldFile[AdminBook],
        overlay: OverlayFile,
        log: Log,
        loop: asyncio.AbstractEventLoop,
    ) -> Core:
        """A core whose engine is not there yet."""
        care = Care(Learned.load(settings.state_dir), loop.time)
        limiter = Limiter(Admission(limits_of(settings.admission, EngineState().profile, 4)), loop, care.sent_now)
        core = cls(settings, seats, admins, log, limiter, BodyBudget(settings.limits.body_budget_bytes), overlay, care)
        if settings.gateway_socket is not None:
            care.keeper = Keeper(settings.gateway_socket.with_name(KEPT_NAME), core._what_is_warm)
        core._take_mode()
        return core

    def box_changed(self, box: BoxState) -> None:
        """A new state of the box with the engine as it was."""
        self.seen.set()
        self.events.merge(box.events)
        self.box = box

    def engine_changed(self, box: BoxState, engine: Engine | None) -> None:
        """A new state of the box: adopt the engine's cap, open or close admission. `engine` None = not READY."""
        was = self.engine
        self.box_changed(box)
        self.engine = engine
        if self.draining:
            return
        if was is not None and (engine is None or was.start_id != engine.start_id):  # before a cap may rise
            self.limiter.close(Reason.ENGINE_LOST, RETRY_MIN_S)
        self._had_engine = self._had_engine or engine is not None
        if engine is not None and (was is None or was.start_id != engine.start_id):
            self._engine_started(engine)
        self._guard(self.limiter.loop.time())
        self._gate()
        self.prewarm.engine_changed(engine)

    def _engine_started(self, engine: Engine) -> None:
        """Another start, or the first that this process sees: a gateway before it may have told what is warm."""
        self.care.engine_started(self.box.engine)
        if self.care.keeper is None:
            return
        kept = read_kept(self.care.keeper.path, engine.start_id)
        if isinstance(kept, str):
            self.log.info("prefix.not_taken", path=str(self.care.keeper.path), error=kept)
        elif kept is not None:
            self.care.index = kept.index
            self.runs.load(kept.more, self.limiter.loop.time())
            self.log.info(
                "prefix.taken", tokens=kept.index.held_tokens, runs=self.runs.active(self.limiter.loop.time())
            )
        self.care.changed(dear=False)

    def _what_is_warm(self) -> Generator[None, None, bytes] | None:
        return keeping(self.engine.start_id, self.care.index, self.runs.dump()) if self.engine is not None else None

    def _guard(self, now_s: float) -> None:
        """Take the cap that the floor guard leaves, and tell of its changes."""
        settings, profile = self.settings.admission, self.box.engine.profile
        terms = Terms(
            self.box.engine.start_id, profile.floor_tok_per_s, cap_of(settings, profile), settings.floor_guard_s
        )
        change = self.care.guarded(now_s, terms)
        self.care.cold_tokens, self.care.short_s = profile.cold_tokens, settings.short_s
        self.limiter.set_limits(limits_of(settings, profile, self.care.cap))
        if change is not None:
            self.log.warning("admission.cap", before=change.before, cap=change.cap, why=str(change.why))
            severity = Severity.INFO if change.cap > change.before else Severity.WARN
            self.events.note("admission.cap", severity, change.text)

    def engine_suspect(self, engine: Engine) -> None:
        """A connection to `engine` was refused: answer the waiters now rather than send each one against a
        closed door. Admission opens again with the next start, or after a second if this one stands."""
        if self.engine is not None and self.engine.start_id == engine.start_id and not self.draining:
            self._suspect = engine.start_id
            self._gate()
            self.limiter.loop.call_later(SUSPECT_S, self._trust_again)

    def _trust_again(self) -> None:
        self._suspect = None
        self._gate()

    def _gate(self) -> None:
        """Open or close admission, by what is so now; the first that applies decides."""
        reason, retry_after_s = Reason.ENGINE_LOST, RETRY_MIN_S
        if self.draining:
            reason = Reason.DRAINING
        elif self.mode is Mode.DRAINED:
            reason, retry_after_s = Reason.MAINTENANCE, RETRY_MAX_S
        elif self.engine is None:
            reason = Reason.ENGINE_LOST if self._had_engine else Reason.ENGINE_NOT_READY
        elif self.engine_state.leaving:
            reason, retry_after_s = Reason.ENGINE_NOT_READY, RETRY_MAX_S
        elif self.engine.start_id != self._suspect:
            self.limiter.open()
            return
        closed = self.limiter.policy.closed
        if closed is None or closed.reason is not reason:
            self.limiter.close(reason, retry_after_s)

    @property
    def mode(self) -> Mode:
        """What the operator set."""
        return self.overlay.value.mode

    async def set_overlay(self, change: Callable[[Overlay], Overlay]) -> str:
        """Act on what the operator changes, then keep it. Why it could not be kept, "" when it is: see `unkept`."""
        self.overlay.value = change(self.overlay.value)
        self._take_overlay()
        return await self._keep_overlay()

    async def keep_overlay(self) -> None:
        """Try again for ever to write what could not be kept."""
        while True:
            await asyncio.sleep(KEEP_EVERY_S)
            if self.overlay.unkept:
                await self._keep_overlay()

    async def _keep_overlay(self) -> str:
        """A disk may be slow: it is waited for in a thread, and written by one at a time."""
        async with self._one_change:
            before, why = self.overlay.unkept, await asyncio.to_thread(self.overlay.keep)
        if why != before:
            if why:
                self.log.error("overlay.unkept", error=why)
            else:
                self.log.info("overlay.kept", path=str(self.overlay.path))
        return why

    def _take_overlay(self) -> None:
        before = self.seats.value
        self.seats.value = before.switched_off(self.overlay.value.off)
        self._seats_changed(before, self.now())
        self._take_mode()

    def _take_mode(self) -> None:
        if self.mode is Mode.PAUSED:
            self.limiter.hold(True)
            self._gate()
        else:  # closed first: nobody gets a ticket on the way from paused to drained
            self._gate()
            self.limiter.hold(False)

    def named(self, prepared: Prepared) -> Prepared | Problem:
        """The request under the engine's own name of its model. Agents that were told nothing but an address ask for
        their vendor's (`model_aliases`)."""
        models, asked = self.engine_state.models, prepared.model
        if asked is None or not models or asked in models:
            return prepared
        if len(asked) > MODEL_MAX or not any(fnmatchcase(asked, alias) for alias in self.settings.model_aliases):
            return unknown_model(asked, models)
        body = replace_value(prepared.body, "model", orjson.dumps(models[0]))
        return replace(prepared, body=body, model=models[0])

    @property
    def engine_state(self) -> EngineState:
        """The engine as last seen."""
        return self.box.engine

    def why_not(self) -> Problem | None:
        """Why nobody is served now, None when a request would be admitted or queued."""
        if self.draining:
            return ended(Reason.DRAINING, 0)
        if self.mode is Mode.DRAINED:
            return maintenance()
        if self.engine is None or self.engine_state.phase is not Phase.READY:
            return engine_not_ready(self.engine_state, self.now())
        return None

    def drain(self) -> None:
        """Refuse everything new from now on; running streams go on."""
        if not self.draining:
            self.draining = True
            self._gate()
        self._note_done()

    def end_all(self) -> None:
        """End every running exchange with an honest error."""
        for exchange in tuple(self.live):
            exchange.end(ended(Reason.DRAINING, 0))

    def enter(self, exchange: Exchange) -> None:
        """An exchange begins."""
        self.live.add(exchange)

    def leave(self, exchange: Exchange, outcome: Outcome) -> None:
        """An exchange is over: count it."""
        self.live.discard(exchange)
        self.outcomes[outcome.seat, outcome.word] += 1
        self.tokens_out[outcome.seat] += outcome.completion_tokens
        self.tallies.add(outcome)
        if outcome.word == "refused" and outcome.code in TOLD_REFUSALS:
            self.refusals.count(outcome.code, self.limiter.loop.time())
        self._note_done()

    @staticmethod
    def now() -> float:
        """Wall-clock seconds, for key expiry and for what people read."""
        return time.time()

    def look_at_files(self, force: bool = False, who: str = "") -> None:
        """Take new versions of seats.toml and admins.toml; a broken one is kept out and shown. `who`: asked for it."""
        now_s = self.now()
        self._look_at_seats(now_s, force, who)
        self._look_at_admins(now_s, force, who)
        if force:
            self.prewarm.reload()
        self._looked = True

    def broken_files(self) -> list[str]:
        """What is wrong with both files as they are on disk."""
        broken = (self.seats.broken, self.admins.broken)
        return [found.error for found in broken if found is not None]

    def _look_at_seats(self, now_s: float, force: bool, who: str) -> None:
        before = self.seats.value
        match self.seats.refresh(now_s, force=force):
            case Changed(old=old, new=book):
                self.log.info("seats.loaded", path=str(self.seats.path), seats=len(book.accounts))
                if self._looked and old != book:  # every gateway reads it at its start
                    said = f"seats.toml was changed: {counted(len(book.accounts), 'seat')}"
                    self.events.note("files.seats", Severity.INFO, said, who)
                lastgood.keep(self.seats.path, last_good_file(self.settings))
            case Broken(error=error):
                self.log.error("seats.broken", path=str(self.seats.path), error=error)
                self.events.note("files.seats", Severity.WARN, f"the seat file is broken, the old one goes on: {error}")
            case Unchanged():
                pass
        self._seats_changed(before, now_s)

    def _look_at_admins(self, now_s: float, force: bool, who: str) -> None:
        match self.admins.refresh(now_s, force=force):
            case Changed(old=old, new=admins):
                self.log.info("admins.loaded", path=str(self.admins.path), admins=len(admins.accounts))
                if self._looked and old != admins:
                    said = f"admins.toml was changed: {counted(len(admins.accounts), 'admin')}"
                    self.events.note("files.admins", Severity.INFO, said, who)
            case Broken(error=error):
                self.log.error("admins.broken", path=str(self.admins.path), error=error)
                self.events.note(
                    "files.admins", Severity.WARN, f"the admin file is broken, the old one goes on: {error}"
                )
            case Unchanged():
                pass

    def _seats_changed(self, before: SeatBook, now_s: float) -> None:
        after = self.seats.value
        changes = diff(before, after, old_s=self._seats_at_s, new_s=now_s)
        self._seats_at_s = now_s
        if changes.lost:
            lost = frozenset(map(str, changes.lost))
            self.limiter.seats_gone(lost)
            self.prewarm.seats_gone(lost)
            self.care.watch.seats_gone(lost)
        if changes.added:
            self.limiter.seats_back(frozenset(map(str, changes.added)))
        for name in changes.limits:
            self.limiter.seat_limit(name, after.accounts[name].max_streams)

    def sweep(self, now_s: float) -> None:
        """Once a second: tell of refusals and of the floor guard."""
        self.refusals.tell(now_s)
        self._tell_of_connections(now_s)
        if self.engine is not None:
            self._guard(now_s)

    def _tell_of_connections(self, now_s: float) -> None:
        if (news := self.connections.news(now_s)) is not None:
            self.log.warning("connections.full", **asdict(news))
            said = f"{news.refused} connections refused, {news.given_up} idle ones closed for others; {news.open} open"
            self.events.note("connections.full", Severity.WARN, said)

    def _note_done(self) -> None:
        if self.draining and not self.live:
            self.all_done.set()
