"""What all requests of a gateway know of the engine's cache and of its speed. Touches the loop's clock.

Every request has a `Prompt` here. What it asks of the engine is its `price`, by the index of what is cached and by the
curve of how fast the engine reads; what it was found to take teaches both.

Rules:
- A prompt begins in the index in the call that grants its ticket and ends there before the ticket comes back, so that
  the next decision is taken on the cache as it is then.
- Prompts reach the engine in the order of their tickets where it matters: a long one before those after it. Long is by
  tokens alone, however fast the engine is: others stand still while it is read. Admission's cold is also by seconds.
- The curve learns only from prompts that the engine read alone, from sending to the first token.
- An engine that sends nothing of one stream while others move keeps it back (tool calls, above all): the stream goes on
  at its own pace until it is heard of again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gateway.admission_books import BURST_S
from gateway.admission_types import Cost, Sent, TicketId
from gateway.learning.floor_guard import CapChange, FloorGuard, Terms
from gateway.learning.learned import Known, Learned
from gateway.learning.paces import Pace, Together, Written
from gateway.learning.reads import Reads
from gateway.learning.sent import SentEstimate
from gateway.learning.watch import PrefixWatch, Turn
from gateway.meter import Meter
from gateway.prefix.fingerprint import Fingerprint
from gateway.prefix.index import Estimate, PrefixIndex, Reading
from gateway.prefix.kept import Keeper
from gateway.state import EngineState
from gateway.taps import Tap

if TYPE_CHECKING:
    from gateway.limiter import Place

LEAD_S = 1.0
"""A long body takes longer to send, and an engine longer to take it in, than a short one: so long, or as long as it is
read if that is less, a long prompt is ahead of what gets its ticket after it. Else the engine would read the short one
first, and keep its reply waiting while it reads the long one. Costs nothing: nothing else is read meanwhile."""


@dataclass(slots=True, eq=False)
class Prompt:
    """One request's prompt, from its arrival until its ticket is back. `tap()`: of its reply, once there is one.
    `turn`: what the prefix watch found, None for a helper. `place`: its place in line. `uncached_tokens`: what it was
    taken for when it got its ticket. `clean_s`: how long it was read, if alone."""

    care: Care
    print_: Fingerprint
    seat: str
    path: str
    streamed: bool
    tap: Callable[[], Tap | None]
    turn: Turn | None = None
    place: Place | None = None
    ticket: TicketId | None = None
    uncached_tokens: int | None = None
    read: bool = False
    long: bool = False
    clean_s: float | None = None
    _reading: Reading | None = None
    _ahead: tuple[Prompt, ...] = ()
    _lead_until_s: float = 0.0
    _lead_over: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def meter(self) -> Meter | None:
        """Figures of its reply so far."""
        tap = self.tap()
        return tap.meter if tap is not None else None

    def price(self) -> Cost:
        """What it asks of the engine, as the cache is believed to be now. As long as no reading was measured, a long
        prompt is not taken for a short one: the curve is another box's. So long prompts go one by one, which gives the
        first measurement."""
        return self._cost(self.care.index.estimate(self.print_, self.seat))

    def is_cold(self) -> bool:
        """Whether it is long by what the cache is believed not to hold."""
        return self.price().uncached_tokens > self.care.cold_tokens

    def _cost(self, estimate: Estimate) -> Cost:
        curve = self.care.known.curve
        whole, cached = estimate.prompt_tokens, estimate.cached_tokens
        seconds = curve.predict_s(whole, cached)
        if whole - cached > self.care.cold_tokens and not curve.measured:
            seconds = max(seconds, self.care.short_s)
        return Cost(whole, whole - cached, seconds)

    def granted(self, ticket: TicketId) -> None:
        """It goes to the engine."""
        now_s = self.care.now()
        self._reading = self.care.index.begin(self.print_, self.seat, now_s)
        price = self._cost(self._reading.expected)
        self.ticket, self.uncached_tokens = ticket, price.uncached_tokens
        self.long = price.uncached_tokens > self.care.cold_tokens
        self._ahead = self.care.leading()
        self._lead_until_s = now_s + min(LEAD_S, price.prefill_s) if self.long else 0.0
        self.care.granted(ticket, self)

    async def in_turn(self) -> None:
        """Wait until the long prompts that got their tickets before are at the engine, or have left."""
        ahead, self._ahead = self._ahead, ()
        for prompt in ahead:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(prompt._lead_until_s):
                    await prompt._lead_over.wait()

    def first_token(self) -> None:
        """The engine has read it."""
        if self.ticket is not None and not self.read:
            self.read = True
            self._lead_over.set()
            self.clean_s = self.care.was_read(self.ticket, self)
            if self.place is not None:
                self.place.first_token()

    def over(self) -> None:
        """The engine is done with it, or it never came to that: the ticket goes back, with the cache as it is now. Does
        nothing the second time."""
        tap, tokens = self.tap(), 0.0
        self._lead_over.set()
        try:
            if self._reading is not None and self.ticket is not None:
                reading, self._reading = self._reading, None
                usage = tap.meter.usage if tap is not None else None
                tokens = float(tap.meter.tokens) if tap is not None else 0.0
                self.care.index.end(reading, usage, read=self.read, now_s=self.care.now())
                self.care.ended(self.ticket, self, tap.meter if tap is not None and tap.whole else None)
        finally:  # whatever could not be learned, nobody waits for a ticket that is never given back
            if self.place is not None:
                self.place.leave(tokens)


class _SentNow(Mapping[TicketId, Sent]):
    """Output tokens of the running replies, looked at when asked for."""

    def __init__(self, care: Care) -> None:
        self._care = care

    def __getitem__(self, ticket: TicketId) -> Sent:
        sent = self._care.sent(ticket)
        if sent is None:
            raise KeyError(ticket)
        return sent

    def __iter__(self) -> Iterator[TicketId]:
        return iter(self._care.running)

    def __len__(self) -> int:
        return len(self._care.running)


@dataclass(slots=True)
class Care:
    """One per gateway. `now`: the loop's clock. `known`: what was learned of the engine that serves now; `cold_tokens`:
    of its profile; with more that is not cached a prompt is long. `short_s`: see admission_lane.is_cold."""

    learned: Learned
    now: Callable[[], float]
    cold_tokens: int = 12_000
    short_s: float = 0.0
    index: PrefixIndex = field(default_factory=PrefixIndex)
    known: Known = field(default_factory=Known)
    running: dict[TicketId, Prompt] = field(default_factory=dict)
    sent_now: Mapping[TicketId, Sent] = field(init=False)
    guard: FloorGuard | None = None
    keeper: Keeper | None = None
    watch: PrefixWatch = field(default_factory=PrefixWatch)
    _sent: SentEstimate = field(default_factory=SentEstimate)
    _together: Together = field(default_factory=Together)
    _reads: Reads = field(default_factory=Reads)

    def __post_init__(self) -> None:
        self.sent_now = _SentNow(self)

    def engine_started(self, state: EngineState) -> None:
        """Another start of the engine: its cache is empty, its speed is what it was."""
        told = state.profile.kv_tokens or state.abilities.kv_tokens
        if state.host_kv.on:  # nobody says how many tokens its bytes are: what is lost will tell
            self.index.capacity_tokens = None
        elif told:
            self.index.capacity_tokens = told
        elif self.index.capacity_tokens is None and state.context_tokens:
            self.index.capacity_tokens = state.context_tokens * state.profile.streams
        self.index.clear()
        self.known = self.learned.of(state.profile.name, state.models[0] if state.models else "")
        self.known.paces.forget_rolling(self.now())
        self._sent.engine_started(state.start_id)
        self.watch.engine_started()
        self._together, self._reads = Together(), Reads()

    def changed(self, *, dear: bool) -> None:
        """The cache is another one; `dear`: what it holds now took long to read."""
        if self.keeper is not None:
            self.keeper.note(soon=dear)

    async def keep(self) -> None:
        """Write what is to be kept, once more at the end."""
        if self.keeper is not None:
            await self.keeper.keep()
        await asyncio.to_thread(self.learned.keep)

    def granted(self, ticket: TicketId, prompt: Prompt) -> None:
        """One more is read."""
        self.running[ticket] = prompt
        self._reads.sent(ticket, self.now())
        if prompt.long:
            self._together.reading(ticket)

    def was_read(self, ticket: TicketId, prompt: Prompt) -> float | None:
        """Its first token is here; how long it was read, None when that was not its time alone."""
        now_s = self.now()
        self._together.decoding(ticket, now_s)
        self.changed(dear=prompt.long)
        return self._reads.read(ticket, now_s)

    def ended(self, ticket: TicketId, prompt: Prompt, meter: Meter | None) -> None:
        """It is over. `meter`: of a whole reply, which teaches something; else None."""
        now_s = self.now()
        self.changed(dear=False)
        self.running.pop(ticket, None)
        self._reads.gone(ticket)
        beside = self._together.ended(ticket, now_s)
        usage = meter.usage if meter is not None else None
        if meter is None or usage is None:
            return
        curve = self.known.curve
        self._sent.learn(prompt.path, meter)
        if prompt.clean_s is not None and usage.cached_tokens is not None and not meter.kept_back:
            curve.learn(usage.prompt_tokens, usage.cached_tokens, prompt.clean_s)
        if beside is not None and meter.tok_per_s is not None and meter.first_token_s is not None:
            written = Written(beside[0], meter.tok_per_s, meter.tokens, beside[1], meter.first_token_s)
            self.known.paces.note(written, now_s)
        if prompt.turn is not None:
            self.watch.ended(prompt.turn, usage.prompt_tokens, usage.cached_tokens, curve.predict_s, now_s)

    def sent(self, ticket: TicketId) -> Sent | None:
        """Output tokens of a running reply; None before its first one."""
        prompt = self.running.get(ticket)
        meter = prompt.meter if prompt is not None else None
        if prompt is None or meter is None:
            return None
        sent = self._sent.of(prompt.path, meter)
        if sent is None or meter.first_token_s is None:
            return None
        heard_s = self._heard_s()
        spent_s = sent.at_s - meter.first_token_s
        if (
            heard_s - sent.at_s > BURST_S
            and spent_s > 0
            and all(other.read or not other.streamed for other in self.running.values())
        ):
            return Sent(sent.tokens + sent.tokens / spent_s * (heard_s - sent.at_s), heard_s)
        return sent

    def leading(self) -> tuple[Prompt, ...]:
        """The long prompts that are on their way to the engine."""
        now_s = self.now()
        return tuple(prompt for prompt in self.running.values() if not prompt.read and prompt._lead_until_s > now_s)

    @property
    def cap(self) -> int:
        """Streams that may run at once."""
        return self.guard.cap if self.guard is not None else 1

    def guarded(self, now_s: float, terms: Terms) -> CapChange | None:
        """Let the floor guard look at the pace; its change of the cap, if there is one."""
        if self.guard is None:
            self.guard = FloorGuard(terms)
        change = self.guard.handle(now_s, self.pace(now_s), terms)
        if change is not None:
            self.known.paces.forget_rolling(now_s)
        return change

    def pace(self, now_s: float) -> Pace:
        """The median pace of the last minutes, of replies without a cold neighbour, running ones too."""
        return self.known.paces.rolling(now_s, self._written(now_s))

    def _written(self, now_s: float) -> Iterator[Written]:
        for ticket in tuple(self.running):
            sent, meter = self.sent(ticket), self.running[ticket].meter
            beside = self._together.so_far(ticket, now_s)
            if sent is None or meter is None or meter.first_token_s is None or beside is None:
                continue
            spent_s = sent.at_s - meter.first_token_s
            if spent_s > 0:
                pace = (sent.tokens - 1) / spent_s
                yield Written(beside[0], pace, sent.tokens, beside[1], meter.first_token_s)

    def _heard_s(self) -> float:
        """When any stream was last heard of."""
        meters = [prompt.meter for prompt in self.running.values()]
        return max((meter.last_token_s or 0.0 for meter in meters if meter is not None), default=0.0)
