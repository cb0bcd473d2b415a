"""The replies that are being written, all at one pace. Pure.

Every stream writes as fast as the others, so that one count of tokens serves all: a reply ends when that count has
grown by its length.
"""

from __future__ import annotations

from heapq import heappop, heappush
from math import inf

from gateway.simulation.pace import Pace
from gateway.simulation.request import Request


class Decode:
    """`reading`: a prompt is being read, which leaves replies little of their pace."""

    __slots__ = ("_ends", "_now_s", "_pace", "_tok_per_s", "_written")

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._ends: list[tuple[float, int, Request]] = []
        self._written = self._now_s = self._tok_per_s = 0.0

    @property
    def next_end_s(self) -> float:
        """When the next reply ends if nothing changes; inf = none runs."""
        if not self._ends:
            return inf
        return self._now_s + max(0.0, self._ends[0][0] - self._written) / self._tok_per_s

    def advance(self, now_s: float) -> None:
        """Time has passed."""
        self._written += self._tok_per_s * (now_s - self._now_s)
        self._now_s = now_s

    def begin(self, request: Request) -> None:
        """Its first token is there; set the pace afterwards."""
        request.ends_at = self._written + request.reply_tokens - 1
        heappush(self._ends, (request.ends_at, request.id, request))

    def finish(self) -> Request:
        """Take the reply that ends now; set the pace afterwards."""
        self._written, _, request = heappop(self._ends)
        return request

    def set_pace(self, *, reading: bool) -> None:
        """As so many streams write, beside a prompt that is read or not."""
        if self._ends:
            self._tok_per_s = self._pace.tok_per_s(len(self._ends)) * (self._pace.reading_share if reading else 1.0)

    def sent(self, request: Request) -> float:
        """Tokens that a running reply has written, its first one counted."""
        return max(1.0, request.reply_tokens - (request.ends_at - self._written))
