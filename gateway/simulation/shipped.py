"""The shipped policy in the simulation: gateway.admission.Admission itself, told what happens in the pod. Pure.

Rule: nothing is decided here. What the gateway has to estimate (the cache, seconds of reading, tokens sent) is exact.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from math import inf
from typing import ClassVar

from gateway.admission import Admission
from gateway.admission_types import (
    Arrive,
    Cost,
    Costs,
    Decision,
    Event,
    FirstToken,
    Granted,
    Leave,
    Limits,
    Reason,
    Rejected,
    Sent,
    Tick,
    TicketId,
)
from gateway.simulation.pod import Parts
from gateway.simulation.request import RETRY_S, Admit, Move, Refuse, Request


class Shipped:
    """Admission, with the limits given."""

    about: ClassVar[str] = "what this box ships"

    def __init__(self, parts: Parts, limits: Limits) -> None:
        self.admission = Admission(limits)
        self._parts = parts
        self._requests: dict[TicketId, Request] = {}
        self._sent = _SentNow(parts)
        self._moves: deque[Move] = deque()
        self.wake_at_s = inf

    def arrived(self, request: Request, now_s: float) -> None:
        """Its cost is told with it."""
        id = TicketId(request.id)
        self._requests[id] = request
        cost, run_s = self._cost(request), request.run_started_s
        self._tell(Arrive(id, request.agent.seat, None, 0, cost=cost, run_started_s=run_s), now_s)

    def recosted(self, request: Request, now_s: float) -> None:
        """Its cost is told anew."""
        self._tell(Costs({TicketId(request.id): self._cost(request)}), now_s)

    def read(self, request: Request, now_s: float) -> None:
        """Its reply counts from here on."""
        id = TicketId(request.id)
        self._sent.running[id] = request
        self._tell(FirstToken(id), now_s)

    def left(self, request: Request, now_s: float) -> None:
        """Its ticket comes back."""
        id = TicketId(request.id)
        del self._sent.running[id], self._requests[id]
        self._tell(Leave(id, request.reply_tokens), now_s)

    def move(self, now_s: float) -> Move | None:
        """What it has decided."""
        if not self._moves and now_s >= self.wake_at_s:
            self._tell(Tick(), now_s)
        return self._moves.popleft() if self._moves else None

    def _tell(self, event: Event, now_s: float) -> None:
        self._sent.now_s = now_s
        self._take(self.admission.handle(event, now_s, self._sent), now_s)

    def _take(self, decision: Decision, now_s: float) -> None:
        self.wake_at_s = inf if decision.wake_at_s is None else decision.wake_at_s
        for effect in decision.effects:
            if isinstance(effect, Granted):
                self._moves.append(Admit(self._requests[effect.id]))
            elif isinstance(effect, Rejected):
                failed = effect.reason is Reason.DEADLINE
                retry_s = RETRY_S if failed else float(effect.retry_after_s)
                self._moves.append(Refuse(self._requests.pop(effect.id), retry_s, failed))

    def _cost(self, request: Request) -> Cost:
        prompt, uncached = request.agent.prompt_tokens, self._parts.kv.reading(request.agent).uncached_tokens
        return Cost(prompt, uncached, self._parts.pace.prefill_s(prompt, uncached))


class _SentNow(Mapping[TicketId, Sent]):
    """What each running reply has sent, looked up when it is asked for."""

    def __init__(self, parts: Parts) -> None:
        self.now_s = 0.0
        self.running: dict[TicketId, Request] = {}
        self._decode = parts.decode

    def __getitem__(self, id: TicketId) -> Sent:
        return Sent(self._decode.sent(self.running[id]), self.now_s)

    def __iter__(self) -> Iterator[TicketId]:
        return iter(self.running)

    def __len__(self) -> int:
        return len(self.running)
