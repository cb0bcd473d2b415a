"""What each seat used in the current calendar month, kept in memory. Pure.

Rules:
- Months begin at midnight UTC. A request belongs to the month in which it arrived, also when it ends in the next.
- A month that is over is forgotten here; the ledger's file has it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

from gateway.ledger.rows import Row, SeatMonth

NOTHING = SeatMonth(0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Month:
    """One calendar month, UTC: `name` is YYYY-MM, `end_s` the first second of the next."""

    name: str
    start_s: float
    end_s: float

    @classmethod
    def of(cls, at_s: float) -> Month:
        """The month of a wall-clock time."""
        at = datetime.fromtimestamp(at_s, UTC)
        start = datetime(at.year, at.month, 1, tzinfo=UTC)
        end = datetime(at.year + at.month // 12, at.month % 12 + 1, 1, tzinfo=UTC)
        return cls(start.strftime("%Y-%m"), start.timestamp(), end.timestamp())


@dataclass(slots=True)
class Months:
    """The running sums. Not locked: whoever shares it between threads locks it."""

    month: Month
    seats: dict[str, SeatMonth] = field(default_factory=dict)

    def add(self, row: Row) -> None:
        """Count one request; one of a month before this is left to the file."""
        if row.at_s >= self.month.end_s:
            self.month, self.seats = Month.of(row.at_s), {}
        if row.at_s >= self.month.start_s:
            was = self.seats.get(row.seat, NOTHING)
            self.seats[row.seat] = SeatMonth(
                was.prompt_tokens + (row.prompt_tokens or 0),
                was.cached_tokens + (row.cached_tokens or 0),
                was.completion_tokens + row.completion_tokens,
                was.requests + 1,
            )

    def of(self, seat: str, now_s: float) -> SeatMonth:
        """One seat's sums of the month of `now_s`: nothing once a new month has begun."""
        return self.seats.get(seat, NOTHING) if self.month.start_s <= now_s < self.month.end_s else NOTHING
