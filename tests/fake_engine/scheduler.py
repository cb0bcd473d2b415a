"""The asyncio shell of pace and cache: prefills one at a time, sequences that decode together. Touches the loop.

Rules: whoever waits here can be cancelled at any moment and leaves nothing behind. Every change of what runs is
followed by `retime`, which wakes all who wait for a token.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from math import ceil, inf

from tests.fake_engine.cache import BLOCK_TOKENS, PrefixCache, block_chain
from tests.fake_engine.knobs import Knobs
from tests.fake_engine.pace import DecodeClock, decode_tok_per_s, prefill_s


class Scheduler:
    """When each prefill is done and each token is due. `now` is the clock, in seconds."""

    def __init__(self, knobs: Knobs, now: Callable[[], float]) -> None:
        self._knobs = knobs
        self._now = now
        self._clock = DecodeClock(now())
        self._prefill_turn = asyncio.Lock()
        self._prefilling = False
        self._decoding = 0
        self._checks = 0
        self._waiters: set[asyncio.Future[None]] = set()
        self.cache = PrefixCache(knobs.cache_tokens)
        self.host = PrefixCache(knobs.host_cache_tokens)

    @property
    def decoding(self) -> int:
        """Sequences that decode now."""
        return self._decoding

    @property
    def _time_scale(self) -> float:
        return self._knobs.time_scale * (self._knobs.check_scale if self._checks else 1.0)

    @contextmanager
    def check(self) -> Iterator[None]:
        """Inside, the appliance itself asks."""
        self._checks += 1
        self.retime()
        try:
            yield
        finally:
            self._checks -= 1
            self.retime()

    def apply(self, knobs: Knobs) -> None:
        """Go on with other knobs, from now."""
        self._knobs = knobs
        self.cache.resize(knobs.cache_tokens)
        self.host.resize(knobs.host_cache_tokens)
        self.retime()

    def retime(self) -> None:
        """Set the decode pace by what runs now, and let all who wait look again."""
        knobs = self._knobs
        slowdown = knobs.prefill_decode_factor if self._prefilling else 1.0
        rate = decode_tok_per_s(knobs.ms_per_token, self._decoding, slowdown=slowdown, time_scale=self._time_scale)
        self._clock.set_rate(self._now(), rate)
        for waiter in self._waiters:
            _wake(waiter)

    def cached_tokens(self, prompt: bytes) -> int:
        """How many tokens of `prompt` are cached now; by its prefill there may be more or fewer."""
        return self._hit_tokens(block_chain(prompt))

    def from_host(self, prompt: bytes) -> int:
        """How many of them are in the host's tier only."""
        chain = block_chain(prompt)
        return self._hit_tokens(chain) - self.cache.hit_tokens(chain)

    def _hit_tokens(self, chain: Sequence[bytes]) -> int:
        tiers = (self.cache,) if self._knobs.host_fault == "miss" else (self.cache, self.host)
        held = takewhile(lambda name: any(tier.holds(name) for tier in tiers), chain)
        return sum(BLOCK_TOKENS for _ in held)

    async def prefill(self, prompt: bytes, prompt_tokens: int) -> int:
        """Wait for the turn and for the prefill itself; the prompt is then cached.

        Returns how many tokens were cached when its turn came.
        """
        chain = block_chain(prompt)
        async with self._prefill_turn:
            knobs = self._knobs
            cached = self._hit_tokens(chain)
            duration = prefill_s(prompt_tokens, cached, knobs.prefill_tok_per_s) + knobs.overhead_s
            done_at = self._now() + duration * self._time_scale
            self._prefilling = True
            self.retime()
            try:
                await self._until(lambda: done_at)
            finally:
                self._prefilling = False
                self.retime()
            self._insert(chain)
        return cached

    def remember(self, prompt_and_reply: bytes) -> None:
        """A sequence is complete: its reply is cached too, as in vLLM."""
        self._insert(block_chain(prompt_and_reply))

    def _insert(self, chain: Sequence[bytes]) -> None:
        self.cache.insert(chain)
        self.host.insert(chain)

    @contextmanager
    def sequence(self) -> Iterator[float]:
        """A sequence decodes inside; yields the clock position of its first token."""
        self._decoding += 1
        self.retime()
        try:
            yield self._clock.position(self._now())
        finally:
            self._decoding -= 1
            self.retime()

    async def reached(self, position: float) -> None:
        """Wait until the decode clock is at `position`."""
        await self._until(lambda: self._clock.when(position))

    async def _until(self, due: Callable[[], float]) -> None:
        # One pass through the loop even when late: a fast stream must not keep the others from being cancelled.
        await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        while (missing_s := due() - self._now()) > 0:
            waiter: asyncio.Future[None] = loop.create_future()
            self._waiters.add(waiter)
            # uvloop rounds to whole milliseconds; rounding up keeps it from waking early and spinning.
            timer = None if missing_s == inf else loop.call_later(ceil(missing_s * 1000) / 1000, _wake, waiter)
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)
                if timer is not None:
                    timer.cancel()


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
