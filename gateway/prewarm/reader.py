"""Reads prefixes and the heads of runs into the engine while nobody uses it, and stops the moment somebody comes.

Touches the engine beside admission, the files of `[[prefix]]`, and the loop's clock. Rules:
- Nothing is read while a request of anybody is here, waits or runs, while admission is closed or held, or within
  `IDLE_S` of that: an agent's next turn often follows its last one at once.
- A request that passed key, body and dialect is an `arrival()`: what is refused before that asks nothing of the engine.
  It ends what is being read before the loop does anything else; the engine is told by the closed connection.
  Engines keep what they have read by then, and it goes on from there.
- What an engine holds is not read again: by the books, and by what it says of cached tokens itself.
- Log lines and state name prefixes and seats, never what is read.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from gateway.meter import Usage
from gateway.prefix.fingerprint import Fingerprint
from gateway.prewarm.ask import ReadFailed, have_read
from gateway.prewarm.books import Books, IndexBooks, print_of
from gateway.prewarm.files import finding_of
from gateway.prewarm.heads import ACTIVE_S, Heads
from gateway.prewarm.named import named_items
from gateway.prewarm.placing import Placing
from gateway.prewarm.queue import NO_SEQUENCE, Item, Kind, PrewarmState, Queue
from gateway.prewarm.sequences import tidy
from gateway.splice import replace_value
from gateway.state import Finding

if TYPE_CHECKING:
    from gateway.core import Core, Engine

LOOK_S = 0.1
IDLE_S = 1.0
FULL_S = 30.0
"""Quiet time before another look when no sequence could be spared."""
ARRIVALS_KEPT = 256
"""Engines have fewer sequences than that."""
READ_S = 600.0
"""For one read: the longest prompt takes some 100 s. Source: facts/simulation-model.md."""
THERE_SHARE = 0.9
"""A prefix of which so much was cached when it was first read was there already: it is not copied again."""


class Reader:
    """One per gateway. `run()` for ever; everything else is synchronous and called from the loop."""

    def __init__(self, core: Core, books: Books | None = None) -> None:
        settings = core.settings
        self._core = core
        self._books: Books = books or IndexBooks(lambda: core.care.index, self._now)
        self._prefixes = settings.prefixes
        seats = [prefix.seat for prefix in self._prefixes if prefix.seat is not None]
        self.heads = Heads(settings.prewarm.bodies_bytes if settings.prewarm.enabled else 0, seats)
        self._queue = Queue()
        self._placing: Placing | None = None
        self._start_id = ""
        self._lost_s: float | None = None
        self._begin = self._look_again = False
        self._broken: dict[str, str] = {}
        self._refused: dict[str, str] = {}
        self._arrivals: deque[float] = deque(maxlen=ARRIVALS_KEPT)
        self._patience_s = IDLE_S
        self._reading: asyncio.Timeout | None = None
        self._was_cut = False
        self._wanted = asyncio.Event()

    # From outside

    @property
    def state(self) -> PrewarmState:
        """What was read since the engine's last start."""
        return self._queue.state

    def findings(self) -> tuple[Finding, ...]:
        """What keeps named prefixes from being read."""
        return finding_of(self._broken | self._refused, self._prefixes)

    def keep(self, run: str, seat: str, path: str, body: bytes) -> None:
        """The engine has taken a turn of `run`; `body` is what it got. That of a seat that is gone by now is not
        kept."""
        if self._core.seats.value.is_active(seat, self._core.now()):
            self.heads.keep(run, seat, path, body, self._now())
        self._queue.served(run)

    def seats_gone(self, seats: Collection[str]) -> None:
        """Seats that may not come in any more lose what was kept of them."""
        self.heads.seats_gone(seats)

    def sweep(self, now_s: float) -> None:
        """Once a second: let go what is too old to be read again."""
        if self._lost_s is None:
            self.heads.forget(now_s)

    def arrival(self) -> None:
        """Somebody is about to ask something of the engine: end what is being read, now."""
        self._arrivals.append(self._now())
        self._cut()

    def engine_changed(self, engine: Engine | None) -> None:
        """The engine is another one, which holds nothing, or it is gone."""
        now_s = self._now()
        if engine is None or engine.start_id != self._start_id:
            self._cut()
            self._lost_s = now_s if self._lost_s is None and self._start_id else self._lost_s
        if engine is None:
            return
        if self._lost_s is not None:
            self.heads.stood_still(now_s - self._lost_s)
            self._lost_s = None
        if engine.start_id != self._start_id:
            self._start_id = engine.start_id
            self._arrivals.clear()
            self._queue, self._placing, self._begin = Queue(), None, True
            self._wanted.set()

    def reload(self) -> None:
        """Look at the files of the prefixes again; what is new or has changed is read."""
        self._look_again = True
        self._wanted.set()

    def _now(self) -> float:
        return self._core.limiter.loop.time()

    def _cut(self) -> None:
        if self._reading is not None and not self._was_cut and not self._reading.expired():
            self._reading.reschedule(self._now())
        self._was_cut = True

    def _served(self) -> int:
        """Requests of the last minutes, as far as the engine that runs took them."""
        since_s = self._now() - ACTIVE_S
        return sum(at_s > since_s for at_s in self._arrivals)

    # The run

    async def run(self) -> None:
        """Read for ever what is to be read."""
        while self._core.settings.prewarm.enabled:
            await self._wanted.wait()
            if self._begin or self._look_again:
                await self._prepare()
            elif (item := self._queue.next()) is None:
                self._wanted.clear()
            else:
                body = self._body(item)
                print_ = await asyncio.to_thread(print_of, body) if body else Fingerprint()
                if await self._idle() and item is self._queue.next():
                    await self._one(item, print_)

    async def _idle(self) -> bool:
        """Wait until nobody was here for a while; False when there is something new to be prepared. Polled: of several
        reasons nothing tells when the last is gone."""
        quiet_s = 0.0
        while quiet_s < self._patience_s and not self._begin and not self._look_again:
            self._was_cut = False
            await asyncio.sleep(LOOK_S)
            quiet_s = quiet_s + LOOK_S if self._nobody_here() and not self._was_cut else 0.0
        self._patience_s = IDLE_S
        return not self._begin and not self._look_again

    def _nobody_here(self) -> bool:
        core, policy = self._core, self._core.limiter.policy
        serves = core.engine is not None and core.engine.start_id == self._start_id
        return serves and not core.live and policy.closed is None and not policy.held

    async def _prepare(self) -> None:
        """Make the queue of an engine that has started, or add what a reload brought."""
        begin, self._begin, self._look_again = self._begin, False, False
        items, broken = await named_items(self._prefixes, self.heads)
        for name, why in broken.items():
            if self._broken.get(name) != why:
                self._core.log.warning("prewarm.failed", kind=str(Kind.PREFIX), name=name, error=why)
        self._broken, self._refused = broken, {}
        if self._begin:  # it has started again meanwhile
            return
        if begin:
            self._queue = self._fresh_queue()
            active = self.heads.active(self._now())
            runs = [Item(Kind.RUN, head.run, head.seat, head.path, len(head.body)) for head in active]
            left_out = self._queue.begin(runs, items)
        else:
            left_out = self._queue.add(items)
        for item in left_out:
            self._core.log.warning("prewarm.failed", **_told(item), error=NO_SEQUENCE, again=False)

    def _fresh_queue(self) -> Queue:
        state, engine = self._core.engine_state, self._core.engine
        abilities = state.abilities
        if engine is not None and state.url and abilities.sequence_copies and abilities.sequence_folder:
            folder = Path(abilities.sequence_folder)
            try:
                tidy(folder)
            except OSError as error:
                self._core.log.error("prewarm.failed", kind="file", name=abilities.sequence_folder, error=str(error))
            else:
                self._placing = Placing(state.url, engine.key, folder, self._served, lambda: not self._was_cut)
                return Queue(sequences=abilities.sequence_copies)
        return Queue(room_tokens=self._books.capacity_tokens() or state.context_tokens)

    # One read

    def _body(self, item: Item) -> bytes:
        """What the engine is to read; b"" = it is not kept any more."""
        head = self.heads.get(item.key) if item.kind is Kind.RUN else None
        return head.body if head is not None else item.body

    async def _one(self, item: Item, print_: Fingerprint) -> None:
        core, queue, body = self._core, self._queue, self._body(item)
        if not body or core.engine is None or self._books.is_cached(item.seat, print_):
            queue.not_needed(item)
            return
        models = core.engine_state.models
        body = replace_value(body, "model", orjson.dumps(models[0])) if models else body
        began_s = self._now()
        new = queue.is_new(item)
        queue.begins(item)
        try:
            async with asyncio.timeout(READ_S) as self._reading:
                place = await self._placing.place(item.key) if self._placing is not None else None
                if self._placing is not None and place is None:
                    queue.no_place()
                    self._patience_s = FULL_S
                    return
                usage = await self._noted(item, print_, body, core.engine, place)
        except TimeoutError:
            if self._was_cut:
                self._tell_cut(queue, item, began_s)
            else:
                self._tell_failed(queue, item, f"not read within {READ_S:g} s", for_good=True)
        except ReadFailed as failure:
            self._tell_failed(queue, item, str(failure), for_good=failure.for_good)
        else:
            await self._was_read(queue, item, usage, self._now() - began_s, new)
        finally:
            self._reading = None

    async def _noted(
        self, item: Item, print_: Fingerprint, body: bytes, engine: Engine, place: int | None
    ) -> Usage | None:
        """Have it read, with the books kept."""
        end = self._books.begins(item.seat, print_)
        usage: Usage | None = None
        fresh = 0
        try:
            if self._placing is not None and place is not None:
                fresh = await self._placing.approach(item.key, item.path, body, place)
            usage = await have_read(engine.address, engine.key, item.path, body, place)
            if usage is not None and usage.cached_tokens is not None:
                usage = replace(usage, cached_tokens=max(0, usage.cached_tokens - fresh))
        finally:
            end(usage)
        return usage

    # What came of it

    async def _was_read(self, queue: Queue, item: Item, usage: Usage | None, seconds: float, new: bool) -> None:
        self._reading = None  # copying is not cut: it ends by itself between two steps
        tokens = usage.prompt_tokens if usage is not None else 0
        cached = (usage.cached_tokens or 0) if usage is not None else 0
        copies = 0
        if self._placing is not None:
            copied = item.kind is Kind.PREFIX and not (new and cached >= THERE_SHARE * tokens)
            try:
                copies = await self._placing.was_read(copied=copied, prefixes_left=queue.prefixes_left - copied)
            except OSError as error:
                self._core.log.error("prewarm.failed", **_told(item), error=str(error), again=False)
        queue.read(item, tokens - cached, seconds, copies)
        seconds = round(seconds, 3)
        self._core.log.info(
            "prewarm.read", **_told(item), tokens=tokens, cached_tokens=cached, seconds=seconds, copies=copies
        )

    def _tell_cut(self, queue: Queue, item: Item, began_s: float) -> None:
        again = queue.cut(item)
        seconds = round(self._now() - began_s, 3)
        self._core.log.info("prewarm.aborted", **_told(item), seconds=seconds, again=again)

    def _tell_failed(self, queue: Queue, item: Item, why: str, *, for_good: bool) -> None:
        again = queue.failed(item, why, for_good=for_good)
        if not again and item.kind is Kind.PREFIX:
            self._refused[item.key] = why
        self._core.log.warning("prewarm.failed", **_told(item), error=why, again=again)


def _told(item: Item) -> dict[str, str]:
    """How log lines name it."""
    return {"kind": str(item.kind), "name": item.key, "seat": item.seat}
