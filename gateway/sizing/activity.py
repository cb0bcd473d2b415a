"""How often a team wanted more streams than there are, from the requests that it made. Pure.

What is measured: the share of working time in which exactly k streams were wanted. A request wants one from its arrival
for as long as it then ran, as if it had not had to wait; so the figures compare with the binomial of capacity.py, and
what people felt is `waited_share`.

- A day begins where the team is quietest (day_offset_s): cut at a midnight that is not the team's, one working day
  would count as two, and the night between them as work.
- Working time of a day with requests is WORKING_DAY_S, or the time from its first request to its last where that is
  longer. Hours picked by their activity would make every team look busy.
- Each request counts: a seat with two subagents wants two streams. `duty_share` is the streams that one seat wants on
  average and may be above 1.
- Not seen is what was refused or left the line before its turn, and the turns that somebody who waits does not make:
  where those are many, the true demand is higher.
- A reply is faster than the floor while the box has streams to spare. The same team holds them for longer when the box
  is full; sizing therefore also counts the team's tokens at the floor.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import atan2, cos, inf, isfinite, pi, sin

from gateway.ledger.rows import Activity, Served

WORKING_DAY_S = 8 * 3600.0
"""Source: study.txt, "an 8-hour window on each of the 5 active days"."""
WAITED_S = 1.0
"""A shorter wait is none that anybody sees."""
ENOUGH_DAYS = 5
"""One working week."""
ENOUGH_HOURS = 40.0
ENOUGH_REQUESTS = 500
"""Half a week of the study's developer. Source: admission-and-bench.md section 2, about 970 turns a week."""
_DAY_S = 86_400


def measure(
    served: Iterable[Served], since_s: float, until_s: float, streams: int, offset_s: int = 0
) -> Activity | None:
    """What requests say of the time from `since_s` to `until_s`; None when no stream was wanted in it.

    `served`: in the order of arrival, taken one by one, so that whoever yields them may pause; memory is for those that
    overlap, and a few numbers a day. What lies outside that time is cut off. One that ends before it begins (the clock
    was set) is left out; one out of order begins where the sweep is. `offset_s`: how long before midnight UTC
    the days begin.
    """
    sweep = _Sweep(since_s, until_s, offset_s)
    for request in served:
        sweep.take(request)
    return sweep.activity(streams)


def day_offset_s(turns: Sequence[int]) -> int:
    """Where the days of a team begin, as `measure` takes it: twelve hours from the middle of its work. `turns`: how
    many came in each hour of the day, UTC. The box's own zone says nothing: most servers have none."""
    hour = 2 * pi / len(turns)
    middle = atan2(*(sum(n * part((h + 0.5) * hour) for h, n in enumerate(turns)) for part in (sin, cos)))
    return round((0.5 - middle / (2 * pi)) * _DAY_S)


@dataclass(slots=True)
class _Sweep:
    """Goes through time once. `held_s[k]`: seconds in which exactly k were wanted; `days`: first and last second wanted
    of each day; `ends`: a heap."""

    since_s: float
    until_s: float
    offset_s: int
    held_s: list[float] = field(default_factory=lambda: [0.0])
    days: dict[int, tuple[float, float]] = field(default_factory=dict)
    seats: set[str] = field(default_factory=set)
    requests: int = 0
    waited: int = 0
    ends: list[float] = field(default_factory=list)
    at_s: float = -inf

    def take(self, request: Served) -> None:
        """Count one more request."""
        wanted_until_s = request.end_s - max(0.0, request.wait_s)
        start, end = max(request.arrived_s, self.since_s), min(wanted_until_s, self.until_s)
        if not (start < end and isfinite(start) and isfinite(end)):
            return
        self.requests += 1
        self.waited += request.wait_s > WAITED_S
        self.seats.add(request.seat)
        self._mark_days(start, end)
        self._forward(start)
        if end > self.at_s:
            heappush(self.ends, end)

    def activity(self, streams: int) -> Activity | None:
        """What was counted."""
        self._forward(self.until_s)
        working_s = sum(self._working_s(day) for day in self.days)
        if not self.requests:
            return None
        self.held_s[0] = max(0.0, working_s - sum(self.held_s[1:]))
        shares = tuple(time_s / working_s for time_s in self.held_s)
        days, hours = len(self.days), working_s / 3600
        return Activity(
            since_s=self.since_s,
            until_s=self.until_s,
            days=days,
            hours=hours,
            seats=len(self.seats),
            requests=self.requests,
            streams=streams,
            duty_share=sum(k * share for k, share in enumerate(shares)) / len(self.seats),
            at_once=shares,
            above_share=sum(shares[streams + 1 :]),
            waited_share=self.waited / self.requests,
            enough=days >= ENOUGH_DAYS and hours >= ENOUGH_HOURS and self.requests >= ENOUGH_REQUESTS,
        )

    def _forward(self, to_s: float) -> None:
        while self.ends and self.ends[0] <= to_s:
            self._hold(self.ends[0])
            heappop(self.ends)
        if self.ends:
            self._hold(to_s)
        self.at_s = max(self.at_s, to_s)

    def _hold(self, until_s: float) -> None:
        wanted = len(self.ends)
        while wanted >= len(self.held_s):
            self.held_s.append(0.0)
        self.held_s[wanted] += max(0.0, until_s - self.at_s)
        self.at_s = max(self.at_s, until_s)

    def _mark_days(self, start: float, end: float) -> None:
        day = int((start + self.offset_s) // _DAY_S)
        while start < end:
            stop = min(end, (day + 1) * _DAY_S - self.offset_s)
            first, last = self.days.get(day, (start, stop))
            self.days[day] = (min(first, start), max(last, stop))
            start, day = stop, day + 1

    def _working_s(self, day: int) -> float:
        """A day that is only partly looked at has no more working time than that part."""
        begins_s = day * _DAY_S - self.offset_s
        there_s = min(begins_s + _DAY_S, self.until_s) - max(begins_s, self.since_s)
        first, last = self.days[day]
        return max(last - first, min(WORKING_DAY_S, there_s))
