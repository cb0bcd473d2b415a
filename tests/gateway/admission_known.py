"""What the witness of the admission policy knows of one request, and what must have been put to the test."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import inf

from gateway.admission_types import Cost, Reason, TicketId, WaitKind

UNSURE = 1e-6
TESTED = (
    *("helpers", "over", "unheld", "paused", "cold refused", "starved first", "over last", "aged first", "inherited"),
    *("last wait over", "lost", "spacing waived", "quiet ran out", "gate drained", "cut", "assumed", "fourth on pace"),
    *("turned warm", "turned cold", "ungated", "short", "went by lead", "withheld while read", "withheld for a lead"),
    *("margin", "whole unread", "nothing known", "read despite lead", "spaced despite lead", "behind despite lead"),
    *("looked again", *(kind.value for kind in WaitKind if kind is not WaitKind.ORDER)),
)
"""What must have happened at least once."""


def untested(counts: Counter[str]) -> list[str]:
    """What has not happened yet."""
    return [name for name in TESTED if not counts[name]]


@dataclass(eq=False)
class Known:
    """One request. `lead_s`: how far its reply is before its pace line; None = nobody says."""

    id: TicketId
    seat: str
    body_bytes: int
    arrived_s: float
    helper: bool = False
    over: bool = False
    over_until_s: float = 0.0
    cost: Cost = field(default_factory=Cost)
    run_s: float = 0.0
    streamed: bool = True
    could_go_s: float | None = None
    shut_s: float = 0.0
    granted_s: float | None = None
    cold: bool = False
    first_s: float | None = None
    assumed_s: float = inf
    lead_s: float | None = None
    ended: list[Reason] = field(default_factory=list)
