"""What all requests of one gateway process share: limiter, budget, seats, engine, live exchanges.

Touches nothing by itself; app.py composes it and runs its sweeps.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from gateway import lastgood
from gateway.admission import Admission
from gateway.admission_types import RETRY_MIN_S, Limits, Reason
from gateway.bodies import BodyBudget, LargeBodies
from gateway.counting import Counting
from gateway.dialects import Prepared
from gateway.estimate import TokenEstimate
from gateway.keyfile import Broken, Changed, HeldFile, Unchanged
from gateway.limiter import Limiter
from gateway.logs import Log
from gateway.problem import Problem, ended, unknown_model
from gateway.runs import Runs
from gateway.seats import AdminBook, SeatBook, diff
from gateway.settings import AdmissionSettings, GatewaySettings
from gateway.splice import replace_value
from gateway.state import BoxState, EngineState, Phase
from gateway.upstream import EngineAddress

if TYPE_CHECKING:
    from gateway.exchange import Exchange
    from gateway.outcome import Outcome


SUSPECT_S = 1.0
MODEL_MAX = 256
"""No vendor's name is longer; splices replace short values only."""


def limits_of(settings: AdmissionSettings, streams: int) -> Limits:
    """Policy limits: `streams` is what the engine's profile allows, a smaller setting wins."""
    cap = min(settings.streams, streams) if settings.streams else streams
    return Limits(
        streams=max(1, cap),
        queue_max=settings.queue_max,
        queue_per_seat=settings.queue_per_seat,
        queue_bytes=settings.queue_bytes,
        queue_deadline_s=settings.queue_deadline_s,
        max_stream_s=settings.max_stream_s,
        seat_grace_s=settings.seat_grace_s,
    )


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
    """One per process."""

    settings: GatewaySettings
    seats: HeldFile[SeatBook]
    admins: HeldFile[AdminBook]
    log: Log
    limiter: Limiter
    bodies: BodyBudget
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
    _suspect: str | None = None
    _seats_at_s: float = field(default_factory=time.time)
    started_s: float = field(default_factory=time.time)
    all_done: asyncio.Event = field(default_factory=asyncio.Event)
    seen: asyncio.Event = field(default_factory=asyncio.Event)

    @classmethod
    def make(
        cls,
        settings: GatewaySettings,
        seats: HeldFile[SeatBook],
        admins: HeldFile[AdminBook],
        log: Log,
        loop: asyncio.AbstractEventLoop,
    ) -> Core:
        """A core whose engine is not there yet."""
        limiter = Limiter(Admission(limits_of(settings.admission, 4)), loop)
        limiter.close(Reason.ENGINE_NOT_READY, RETRY_MIN_S)
        return cls(settings, seats, admins, log, limiter, BodyBudget(settings.limits.body_budget_bytes))

    def engine_changed(self, box: BoxState, engine: Engine | None) -> None:
        """A new state of the box: adopt the engine's cap, open or close admission. `engine` None = not READY."""
        was = self.engine
        self.seen.set()
        self.box = box
        self.engine = engine
        if self.draining:
            return
        if engine is None or (was is not None and was.start_id != engine.start_id):  # before a cap may rise
            self.limiter.close(Reason.ENGINE_LOST if was else Reason.ENGINE_NOT_READY, RETRY_MIN_S)
        self.limiter.set_limits(limits_of(self.settings.admission, box.engine.profile.streams))
        if engine is not None and engine.start_id != self._suspect:
            self.limiter.open()

    def engine_suspect(self, engine: Engine) -> None:
        """A connection to `engine` was refused: answer the waiters now rather than send each one against a
        closed door. Admission opens again with the next start, or after a second if this one stands."""
        if self.engine is not None and self.engine.start_id == engine.start_id and not self.draining:
            self._suspect = engine.start_id
            self.limiter.close(Reason.ENGINE_LOST, RETRY_MIN_S)
            self.limiter.loop.call_later(SUSPECT_S, self._trust_again)

    def _trust_again(self) -> None:
        self._suspect = None
        if self.engine is not None and not self.draining:
            self.limiter.open()

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

    @property
    def ready(self) -> bool:
        """True when a request would be admitted or queued."""
        return not self.draining and self.engine is not None and self.box.engine.phase is Phase.READY

    def drain(self) -> None:
        """Refuse everything new from now on; running streams go on."""
        if not self.draining:
            self.draining = True
            self.limiter.close(Reason.DRAINING, RETRY_MIN_S)
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
        self._note_done()

    @staticmethod
    def now() -> float:
        """Wall-clock seconds, for key expiry and for what people read."""
        return time.time()

    def look_at_files(self, force: bool = False) -> None:
        """Take new versions of seats.toml and admins.toml; a broken one is kept out and shown."""
        now_s = self.now()
        before = self.seats.value
        match self.seats.refresh(now_s, force=force):
            case Changed(new=book):
                self.log.info("seats.loaded", path=str(self.seats.path), seats=len(book.accounts))
                lastgood.keep(self.seats.path, last_good_file(self.settings))
            case Broken(error=error):
                self.log.error("seats.broken", path=str(self.seats.path), error=error)
            case Unchanged():
                pass
        self._seats_changed(before, now_s)
        match self.admins.refresh(now_s, force=force):
            case Changed(new=admins):
                self.log.info("admins.loaded", path=str(self.admins.path), admins=len(admins.accounts))
            case Broken(error=error):
                self.log.error("admins.broken", path=str(self.admins.path), error=error)
            case Unchanged():
                pass

    def _seats_changed(self, before: SeatBook, now_s: float) -> None:
        after = self.seats.value
        changes = diff(before, after, old_s=self._seats_at_s, new_s=now_s)
        self._seats_at_s = now_s
        if changes.lost:
            self.limiter.seats_gone(frozenset(map(str, changes.lost)))
        if changes.added:
            self.limiter.seats_back(frozenset(map(str, changes.added)))
        for name in changes.limits:
            self.limiter.seat_limit(name, after.accounts[name].max_streams)

    def sweep(self, now_s: float) -> None:
        """Once a second: cut clients and engines that make no progress."""
        for exchange in tuple(self.live):
            exchange.sweep(now_s)

    def _note_done(self) -> None:
        if self.draining and not self.live:
            self.all_done.set()
