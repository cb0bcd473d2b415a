"""What admission knows of each request, waiting and running. Pure; no decisions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from gateway.admission_types import Cost, Limits, Sent, TicketId
from gateway.shares import Shares

BURST_S = 0.25
"""A stream that was silent for so long is not late yet: tokens come in bursts."""
UNSERVED_S = 600.0
"""How long it is known that a seat with nothing here has asked in vain."""
ASSUMED_READ, READ_LATE_S = 2.0, 10.0
"""A prompt counts as read, first token or not, after so many times its predicted end and so many seconds: an engine may
keep a tool call back until it is whole."""
UNSTREAMED_READ = 1.3
"""The same for what is not streamed, of which nobody tells a first token."""
LOST_S = 4.0
"""A reply so far behind its pace is lost and holds nobody back. Source: facts/admission-search.md section 4."""


@dataclass(slots=True)
class Waiting:
    """One request in line. `turn_from_s`: until then it stands behind turns, `equal_from_s`: behind seats within their
    budget. `position`: where it stood when it arrived. `could_go_s`: when it, being cold, could first have gone; None =
    not yet."""

    id: TicketId
    seat: str
    body_bytes: int
    arrived_s: float
    run_started_s: float
    cost: Cost
    streamed: bool
    turn_from_s: float
    equal_from_s: float
    position: int = 0
    could_go_s: float | None = None

    def is_equal(self, now_s: float) -> bool:
        """Whether it stands behind nobody for what it is."""
        return now_s >= self.turn_from_s and now_s >= self.equal_from_s


@dataclass(slots=True)
class Running:
    """One ticket. `cold`: as it was when it got it. `read_s`: when its first token came, None = not yet; from
    `assumed_read_s` on its prompt counts as read without."""

    id: TicketId
    seat: str
    since_s: float
    cost: Cost
    cold: bool
    streamed: bool
    assumed_read_s: float
    end_at_s: float | None
    read_s: float | None = None
    gone_at_s: float | None = None
    told: bool = False

    def is_read(self, now_s: float) -> bool:
        """Whether the engine has read its prompt, as far as can be known."""
        return self.read_s is not None or now_s >= self.assumed_read_s


@dataclass(slots=True)
class Books:
    """All requests that are here. `unserved_s`: since when a seat has asked in vain: since its last ticket, or since it
    first asked; kept while its agents come back after a refusal."""

    waiting: dict[TicketId, Waiting] = field(default_factory=dict)
    running: dict[TicketId, Running] = field(default_factory=dict)
    seat_max: dict[str, int | None] = field(default_factory=dict)
    unserved_s: dict[str, float] = field(default_factory=dict)
    shares: Shares = field(default_factory=Shares)

    def wait(self, waiting: Waiting, now_s: float) -> None:
        """A request joins the line."""
        here = any(other.seat == waiting.seat for other in self.waiting.values())
        if not here and now_s - self.unserved_s.get(waiting.seat, now_s) >= UNSERVED_S:
            del self.unserved_s[waiting.seat]
        self.unserved_s.setdefault(waiting.seat, now_s)
        self.waiting[waiting.id] = waiting

    def run(self, waiting: Waiting, limits: Limits, now_s: float, *, cold: bool) -> None:
        """One of those in line gets a ticket."""
        before_s, read_s = self.unread_s(now_s), waiting.cost.prefill_s
        assumed_s = ASSUMED_READ * (before_s + read_s) + READ_LATE_S
        if not waiting.streamed:
            assumed_s = before_s + UNSTREAMED_READ * read_s
        self.running[waiting.id] = Running(
            waiting.id,
            waiting.seat,
            now_s,
            waiting.cost,
            cold,
            waiting.streamed,
            assumed_read_s=now_s + assumed_s,
            end_at_s=now_s + limits.max_stream_s if limits.max_stream_s else None,
        )
        del self.waiting[waiting.id], self.unserved_s[waiting.seat]
        if any(other.seat == waiting.seat for other in self.waiting.values()):
            self.unserved_s[waiting.seat] = now_s

    def held(self) -> defaultdict[str, int]:
        """Tickets by seat."""
        held: defaultdict[str, int] = defaultdict(int)
        for running in self.running.values():
            held[running.seat] += 1
        return held

    def below_own_max(self, seat: str, held: Mapping[str, int]) -> bool:
        """Whether `seat` may hold another one."""
        own = self.seat_max.get(seat)
        return own is None or held[seat] < own

    def waiting_bytes(self) -> int:
        """Bodies of those who wait."""
        return sum(waiting.body_bytes for waiting in self.waiting.values())

    def of_seats(self, seats: Collection[str]) -> list[Running]:
        """The tickets of some seats."""
        return [running for running in self.running.values() if running.seat in seats]

    def seats(self) -> frozenset[str]:
        """Those that have work."""
        waiting = {waiting.seat for waiting in self.waiting.values()}
        return frozenset(waiting.union(running.seat for running in self.running.values()))

    def forget_idle_seats(self, now_s: float) -> None:
        """A seat with nothing here needs no record, but for what it asked in vain."""
        if len(self.seat_max) > len(self.waiting) + len(self.running):
            here = self.seats()
            self.seat_max = {seat: own for seat, own in self.seat_max.items() if seat in here}
            kept = {seat: at_s for seat, at_s in self.unserved_s.items() if seat in here or now_s - at_s < UNSERVED_S}
            self.unserved_s = kept

    def unread_s(self, now_s: float) -> float:
        """Predicted seconds of reading that the engine still has before it. What it has done of it is not taken off: a
        prompt may have come to it later than its ticket, and a reply that falls behind is worse than one that waits."""
        return sum(running.cost.prefill_s for running in self.running.values() if not running.is_read(now_s))

    def most_behind_s(self, sent: Mapping[TicketId, Sent], floor_tok_per_s: float, now_s: float) -> float | None:
        """Of the running replies that are not lost, how far the last one is behind its pace; None = nobody has one."""
        replies: Iterable[Running] = self.running.values()
        behind = (behind_s(reply, sent.get(reply.id), floor_tok_per_s, now_s) for reply in replies)
        return max((value for value in behind if value is not None and value <= LOST_S), default=None)


def behind_s(running: Running, sent: Sent | None, floor_tok_per_s: float, now_s: float) -> float | None:
    """How far a reply is behind the pace that was promised to it, seconds; below 0 = ahead. None = it has none: it is
    not streamed, or has not begun.

    Source: facts/admission-search.md section 2: seconds since its first token, less its tokens over the floor.
    """
    if running.read_s is None or not running.streamed:
        return None
    tokens, at_s = (sent.tokens, max(sent.at_s, now_s - BURST_S)) if sent is not None else (0.0, now_s)
    return at_s - running.read_s - tokens / floor_tok_per_s
