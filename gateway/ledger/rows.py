"""What the ledger keeps of a request, and what is read from it. Pure.

Rules:
- Never text of a prompt or an answer, never a key. A request that no seat made is not kept: strangers would fill the
  disk.
- Times: `at_s` are wall-clock seconds, the others durations in seconds. None = not known, which is not 0.
- `estimated`: the engine did not say how many tokens it made (it was cut, or it failed); they were counted otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One request that is over; the fields are those of gateway/outcome.py."""

    at_s: float
    request_id: str
    seat: str
    route: str
    word: str
    status: int
    code: str
    queue_s: float
    ttft_s: float | None
    duration_s: float
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int
    tok_per_s: float | None
    estimated: bool
    stream: bool
    body_bytes: int
    run: str
    turn: int | None
    helper: bool


@dataclass(frozen=True, slots=True)
class Usage:
    """One seat, or all (`seat` ""), over a time. `hit_share`: cached of prompt tokens where the engine told both, 0..1.
    `estimated`: requests whose output tokens are estimates. `wait_p50_s`, `wait_p95_s`: of what got a ticket."""

    seat: str
    requests: int = 0
    served: int = 0
    refused: int = 0
    failed: int = 0
    left: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    estimated: int = 0
    hit_share: float | None = None
    wait_p50_s: float | None = None
    wait_p95_s: float | None = None
    ttft_p50_s: float | None = None
    tok_per_s_p50: float | None = None


@dataclass(frozen=True, slots=True)
class SeatMonth:
    """Tokens of one seat in the current calendar month, UTC, and its soft budget (None = none)."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    requests: int
    budget_tokens: int | None = None

    @property
    def counted(self) -> int:
        """What counts against a budget: output tokens and uncached prompt tokens."""
        return self.completion_tokens + self.prompt_tokens - self.cached_tokens

    @property
    def over(self) -> bool:
        """Above the budget."""
        return self.budget_tokens is not None and self.counted > self.budget_tokens


@dataclass(frozen=True, slots=True)
class LedgerState:
    """How the ledger itself is. `lost`: rows that were not kept since the process started; `error`: why it cannot be
    written now, "" while all is well; `upkeep_error`: why old rows are not folded, or nobody looks how busy the team
    was; `waiting`: rows in memory until it can be written; `aside`: a damaged file that was moved away and is still
    there, "" = none; `busy`: how often a fifth stream was wanted, see activity.py; None before the first look."""

    rows: int = 0
    lost: int = 0
    error: str = ""
    size_bytes: int = 0
    oldest_s: float | None = None
    busy: Activity | None = None
    waiting: int = 0
    aside: str = ""
    upkeep_error: str = ""


@dataclass(frozen=True, slots=True)
class Served:
    """One request that got a ticket: when it came, how long it waited for the ticket, when it was over."""

    arrived_s: float
    wait_s: float
    end_s: float
    seat: str


@dataclass(frozen=True, slots=True)
class Activity:
    """How busy the team is, from what it did; what it rests on and what it leaves out is said in activity.py.

    `hours`: working hours looked at, on `days` days; `seats`: those active in them; `duty_share`: share of working time
    in which one of these wants a stream; `at_once[k]`: share of working time in which exactly k streams were wanted, as
    if none had waited; `above_share`: more than `streams`; `waited_share`: of all turns, those that waited over a
    second. `enough` False: too little to say yet."""

    since_s: float
    until_s: float
    days: int
    hours: float
    seats: int
    requests: int
    streams: int
    duty_share: float
    at_once: tuple[float, ...]
    above_share: float
    waited_share: float
    enough: bool
