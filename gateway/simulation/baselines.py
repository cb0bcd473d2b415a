"""The policies that the shipped one is compared with. Pure.

Rules:
- All wait in one line, which `order` sorts; the first who may go goes, as long as a ticket is free. Who has no room in
  the cache holds up everybody behind.
- A turn that waited for `deadline_s` fails.
"""

from __future__ import annotations

from collections import Counter
from math import exp, inf
from typing import ClassVar

from gateway.simulation.pod import Parts
from gateway.simulation.request import RETRY_S, Admit, Move, Refuse, Request

COLD_TOKENS = 12_000
"""Source: facts/simulation-model.md section 1."""
_SHARE_S = 300.0
_OVER_SHARE = 2.0
_AGED_S = 120.0
_SPACING = 3.0
_OUTPUT_WEIGHT = 2.0
"""What a written token costs in tokens read. Source: VTC, arXiv 2401.00588."""


class Line:
    """First come, first served. `cap`: tickets, None = no bound; `deadline_s`: None = nobody fails."""

    about: ClassVar[str] = "first come, first served"

    def __init__(self, parts: Parts, cap: int | None, deadline_s: float | None) -> None:
        self._kv, self._pace = parts.kv, parts.pace
        self._cap = inf if cap is None else cap
        self._deadline_s = inf if deadline_s is None else deadline_s
        self._waiting: list[Request] = []
        self._running: Counter[str] = Counter()
        self._in_flight = 0

    @property
    def wake_at_s(self) -> float:
        """The oldest one's deadline: the line is kept in order of arrival."""
        return self._waiting[0].arrived_s + self._deadline_s if self._waiting else inf

    def arrived(self, request: Request, now_s: float) -> None:
        """It stands at the end."""
        self._waiting.append(request)

    def recosted(self, request: Request, now_s: float) -> None:
        """What the cache has is looked up when it matters."""

    def read(self, request: Request, now_s: float) -> None:
        """Its ticket is held until its reply ends."""

    def left(self, request: Request, now_s: float) -> None:
        """Its ticket is free."""
        self._in_flight -= 1
        self._running[request.agent.seat] -= 1
        if not self._running[request.agent.seat]:
            del self._running[request.agent.seat]

    def move(self, now_s: float) -> Move | None:
        """Who failed, then who goes."""
        if not self._waiting:
            return None
        oldest = self._waiting[0]
        if now_s >= oldest.arrived_s + self._deadline_s:
            self._waiting.pop(0)
            return Refuse(oldest, RETRY_S, failed=True)
        if self._in_flight >= self._cap:
            return None
        for request in self._order(now_s):
            if not self._may_go(request, now_s):
                continue
            if not self._kv.fits(request.agent):
                return None
            self._waiting.remove(request)
            self._in_flight += 1
            self._running[request.agent.seat] += 1
            self._goes(request, now_s)
            return Admit(request)
        return None

    def _order(self, now_s: float) -> list[Request]:
        return self._waiting

    def _may_go(self, request: Request, now_s: float) -> bool:
        return True

    def _goes(self, request: Request, now_s: float) -> None:
        """It was given a ticket."""

    def _present(self) -> set[str]:
        """The seats with a request waiting or in flight."""
        return {request.agent.seat for request in self._waiting} | set(self._running)


class RoundRobin(Line):
    """The seat whose last ticket is the oldest, then arrival."""

    about = "the seat that was served longest ago"

    def __init__(self, parts: Parts, cap: int | None, deadline_s: float | None) -> None:
        super().__init__(parts, cap, deadline_s)
        self._served: dict[str, float] = {}

    def _order(self, now_s: float) -> list[Request]:
        return sorted(self._waiting, key=lambda request: self._served.get(request.agent.seat, -1.0))

    def _goes(self, request: Request, now_s: float) -> None:
        self._served[request.agent.seat] = now_s


class Vtc(Line):
    """A counter of tokens for each seat, the lowest first. One that comes back is lifted to the lowest present, and
    only what is read anew is charged. Source: VTC, arXiv 2401.00588."""

    about = "the seat that used the fewest tokens (virtual token counter)"

    def __init__(self, parts: Parts, cap: int | None, deadline_s: float | None) -> None:
        super().__init__(parts, cap, deadline_s)
        self._used: dict[str, float] = {}

    def arrived(self, request: Request, now_s: float) -> None:
        seat, present = request.agent.seat, self._present()
        if seat not in present:
            least = min((self._used[other] for other in present), default=0.0)
            self._used[seat] = max(self._used.get(seat, 0.0), least)
        super().arrived(request, now_s)

    def left(self, request: Request, now_s: float) -> None:
        super().left(request, now_s)
        self._used[request.agent.seat] += _OUTPUT_WEIGHT * request.reply_tokens

    def _order(self, now_s: float) -> list[Request]:
        return sorted(self._waiting, key=lambda request: self._used[request.agent.seat])

    def _goes(self, request: Request, now_s: float) -> None:
        self._used[request.agent.seat] += self._kv.reading(request.agent).uncached_tokens


class Recommended(Line):
    """The older policy of the study: oldest run first, one cold prompt at a time, with spacing from one to the next.
    Source: facts/simulation-model.md section 1."""

    about = "oldest run first, one cold prompt at a time, spaced (the policy before)"

    def __init__(self, parts: Parts, cap: int | None, deadline_s: float | None) -> None:
        super().__init__(parts, cap, deadline_s)
        self._cold: Request | None = None
        self._spaced_at_s = 0.0
        self._use: dict[str, tuple[float, float]] = {}

    @property
    def wake_at_s(self) -> float:
        deadline_s = super().wake_at_s
        spaced = self._waiting and self._spaced_at_s > self._now_s
        return min(deadline_s, self._spaced_at_s) if spaced else deadline_s

    _now_s = 0.0

    def read(self, request: Request, now_s: float) -> None:
        if request is self._cold:
            self._cold = None

    def left(self, request: Request, now_s: float) -> None:
        super().left(request, now_s)
        self._add(request.agent.seat, request.reply_tokens, now_s)

    def move(self, now_s: float) -> Move | None:
        self._now_s = now_s
        return super().move(now_s)

    def _order(self, now_s: float) -> list[Request]:
        present = self._present()
        use = {seat: self._decayed(seat, now_s) for seat in present}
        bar = _OVER_SHARE * sum(use.values()) / max(1, len(present))

        def key(request: Request) -> tuple[bool, float, bool, int, float, int]:
            seat = request.agent.seat
            if now_s - request.arrived_s >= _AGED_S:
                return False, request.arrived_s, False, 0, 0.0, 0
            return True, 0.0, use[seat] > bar, self._running[seat], request.run_started_s, request.agent.index

        return sorted(self._waiting, key=key)

    def _may_go(self, request: Request, now_s: float) -> bool:
        if self._kv.reading(request.agent).uncached_tokens <= COLD_TOKENS:
            return True
        return self._cold is None and (now_s >= self._spaced_at_s or not self._in_flight)

    def _goes(self, request: Request, now_s: float) -> None:
        prompt, uncached = request.agent.prompt_tokens, self._kv.reading(request.agent).uncached_tokens
        self._add(request.agent.seat, uncached / 10, now_s)
        if uncached > COLD_TOKENS:
            self._cold = request
            self._spaced_at_s = now_s + _SPACING * self._pace.prefill_s(prompt, uncached)

    def _add(self, seat: str, use: float, now_s: float) -> None:
        self._use[seat] = (self._decayed(seat, now_s) + use, now_s)

    def _decayed(self, seat: str, now_s: float) -> float:
        use, at_s = self._use.get(seat, (0.0, now_s))
        return use * exp((at_s - now_s) / _SHARE_S)
