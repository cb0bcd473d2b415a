"""What is told of requests besides counts: prompt and cached tokens, waits for a ticket and a first token. Pure.

Rules:
- Tokens count only where the engine told both, so that their ratio is a hit rate and not a guess.
- Waits are those of the latest WAITS_KEPT requests that got a ticket; what was refused never had one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict, deque
from dataclasses import dataclass, field
from math import ceil

from gateway.outcome import Outcome

WAITS_KEPT = 200
"""A 95th percentile of fewer than twenty says little, of more than a day's requests nothing of today."""

BOUNDS_S = (0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 240.0)
"""From at once to the longest that a stream may wait for its first token."""


@dataclass(slots=True)
class Histogram:
    """Times since the gateway started, seconds. `counts[k]`: those up to BOUNDS_S[k] and above the one before; the last
    are those above all."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))
    sum_s: float = 0.0

    def add(self, time_s: float) -> None:
        """One more."""
        self.counts[bisect_left(BOUNDS_S, time_s)] += 1
        self.sum_s += time_s


@dataclass(slots=True)
class Tally:
    """Of one seat, since the gateway started. `waits`: seconds, the latest last."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    waits: deque[float] = field(default_factory=lambda: deque(maxlen=WAITS_KEPT))

    @property
    def hit_share(self) -> float | None:
        """Cached of prompt tokens, 0..1; None = the engine never told."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens > 0 else None

    @property
    def wait_p95_s(self) -> float | None:
        """The wait that 95 of 100 requests did not exceed; None without one."""
        ranked = sorted(self.waits)
        return ranked[ceil(0.95 * len(ranked)) - 1] if ranked else None


class Tallies:
    """All seats."""

    def __init__(self) -> None:
        self._seats: defaultdict[str, Tally] = defaultdict(Tally)
        self.total = Tally()
        self.waits = Histogram()
        self.first_tokens = Histogram()

    def add(self, outcome: Outcome) -> None:
        """A request is over."""
        seat = self._seats[outcome.seat] if outcome.seat else Tally()
        for tally in (seat, self.total):
            if outcome.prompt_tokens is not None and outcome.cached_tokens is not None:
                tally.prompt_tokens += outcome.prompt_tokens
                tally.cached_tokens += outcome.cached_tokens
            if outcome.queue_s is not None:
                tally.waits.append(outcome.queue_s)
        if outcome.queue_s is not None:
            self.waits.add(outcome.queue_s)
        if outcome.ttft_s is not None:
            self.first_tokens.add(outcome.ttft_s)

    def of(self, seat: str) -> Tally:
        """Of one seat; an empty one when nothing of it is known."""
        return self._seats.get(seat, Tally())
