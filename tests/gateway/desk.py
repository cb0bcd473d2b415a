"""A desk where requests arrive by seat name, numbered from 1: the admission policy by example."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.admission import Admission
from gateway.admission_types import (
    Arrive,
    Cost,
    Costs,
    Decision,
    Ended,
    Event,
    FirstToken,
    Granted,
    Lane,
    Leave,
    Limits,
    Queued,
    Rejected,
    Sent,
    Tick,
    TicketId,
    Wait,
)

FREE = Cost()
COLD = Cost(60_000, 60_000, 10.0)
WARM = Cost(60_000, 1_000, 0.5)
LIMITS = {"short_s": 0.0, "spacing": 3.0}
"""Limits of a desk that are not the policy's own: every prompt of many tokens is cold, and the spacing short."""
LEAD_S = 1.0
"""How far ahead of its pace a reply stays of which nothing else is said: enough for WARM, too little for COLD."""


class Desk:
    """One policy and its clock. What is not given to `arrive` is that of a warm turn whose run begins now. `leads_s`:
    how far ahead of its pace a reply stays; None = nothing is known to be sent."""

    def __init__(self, **limits: float) -> None:
        self.policy = Admission(Limits(**LIMITS | limits))  # type: ignore[arg-type]
        self.count = 0
        self.now_s = 0.0
        self.leads_s: dict[int, float | None] = {}
        self.sent = Replies(self)
        self.wake_at_s: float | None = None

    def send(self, event: Event) -> Decision:
        """What follows from an event, and from the call at the same time that it may ask for."""
        decision = self.policy.handle(event, self.now_s, self.sent)
        if decision.wake_at_s == self.now_s and any(isinstance(effect, Granted) for effect in decision.effects):
            after = self.policy.handle(Tick(), self.now_s, self.sent)  # behind a cold prompt (rule 4)
            decision = Decision(decision.effects + after.effects, after.wake_at_s)
        self.wake_at_s = decision.wake_at_s
        return decision

    def grants(self, event: Event) -> list[int]:
        """Who gets a ticket by it."""
        return [effect.id for effect in self.send(event).effects if isinstance(effect, Granted)]

    def arrive(
        self,
        seat: str,
        own_max: int | None = None,
        body_bytes: int = 1,
        *,
        cost: Cost = FREE,
        helper: bool = False,
        over: bool = False,
        run_s: float | None = None,
        streamed: bool = True,
    ) -> Granted | Queued | Rejected:
        self.count += 1
        id = TicketId(self.count)
        decision = self.send(Arrive(id, seat, own_max, body_bytes, helper, over, cost, run_s, streamed))
        [told] = [effect for effect in decision.effects if effect.id == id and not isinstance(effect, Ended)]
        assert isinstance(told, Granted | Queued | Rejected)
        return told

    def runs(self, *seats: str) -> None:
        """Warm replies that have begun."""
        for seat in seats:
            assert isinstance(self.arrive(seat, cost=WARM), Granted)
            self.first_token(self.count)

    def waits(self, seat: str, cost: Cost = WARM, **other: float | bool | None) -> int:
        """The id of one that must wait."""
        told = self.arrive(seat, cost=cost, **other)  # type: ignore[arg-type]
        assert isinstance(told, Queued), told
        return self.count

    def leave(self, id: int, tokens: float = 0.0) -> list[int]:
        """Who gets a ticket when `id` leaves."""
        return self.grants(Leave(TicketId(id), tokens))

    def first_token(self, id: int) -> list[int]:
        return self.grants(FirstToken(TicketId(id)))

    def reprice(self, costs: Mapping[int, Cost]) -> list[int]:
        return self.grants(Costs({TicketId(id): cost for id, cost in costs.items()}))

    def tokens(self, id: int, tokens: float) -> None:
        """It has sent so many by now."""
        self.sent[TicketId(id)] = Sent(tokens, self.now_s)

    def tick(self, now_s: float) -> Decision:
        self.now_s = now_s
        return self.send(Tick())

    def until(self, now_s: float) -> list[tuple[float, int]]:
        """Who gets a ticket, and when, if nothing but time passes and the policy is woken when it asks."""
        granted = []
        while self.wake_at_s is not None and self.wake_at_s <= now_s:
            self.now_s = max(self.now_s, self.wake_at_s)
            granted += [(self.now_s, id) for id in self.grants(Tick())]
        self.now_s = now_s
        return granted

    def why(self, id: int) -> Wait:
        return self.policy.standing(self.now_s).waits()[TicketId(id)]

    def lane(self) -> Lane:
        return self.policy.standing(self.now_s).lane()


class Replies(dict[TicketId, Sent]):
    """What each reply has sent: what `tokens` said of it, else so much that it keeps its lead."""

    def __init__(self, desk: Desk) -> None:
        super().__init__()
        self.desk = desk

    def get(self, id: object, default: object = None) -> Any:
        lead_s = self.desk.leads_s.get(id, LEAD_S) if isinstance(id, int) else None
        begun_s = next((reply.read_s for reply in self.desk.policy._books.running.values() if reply.id == id), None)
        if id in self or lead_s is None or begun_s is None:
            return super().get(id, default)  # type: ignore[call-overload]
        tokens = (self.desk.now_s - begun_s + lead_s) * self.desk.policy.limits.floor_tok_per_s
        return Sent(tokens, self.desk.now_s)
