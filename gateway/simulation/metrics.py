"""What came of simulated days: shares of tokens at pace, waits, collapsed days. Pure.

Rules:
- A reply is at pace when it kept the floor after its first token. A failed attempt counts with its tokens, as missed.
- Figures are of the developers; the hogs have a row of their own.
- Shares are of a day, then the mean over days; percentiles are of all turns of all days together.
Source: facts/simulation-model.md section 1 and facts/admission-search.md.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil, sqrt
from statistics import fmean, stdev

from gateway.simulation.pod import Ended

SOON_S = 30.0
"""A first token within this time counts for g30. Source: facts/admission-search.md section 1."""
COLD_TOKENS = 16_000
"""A turn with more uncached tokens is reported as cold. Source: facts/simulation-model.md section 1."""
COLLAPSED_SHARE = 0.70


@dataclass(slots=True)
class Tokens:
    """Output tokens of turns: all, at pace, and at pace with a first token within SOON_S."""

    all: int = 0
    at_pace: int = 0
    soon: int = 0

    def add(self, ended: Ended, floor_tok_per_s: float) -> None:
        """One turn or failed attempt more."""
        self.all += ended.tokens
        if not ended.failed and ended.pace_tok_per_s >= floor_tok_per_s:
            self.at_pace += ended.tokens
            self.soon += ended.tokens if ended.first_token_s <= SOON_S else 0


def _seconds() -> array[float]:
    return array("d")


@dataclass(slots=True)
class Group:
    """The developers of a day, or its hogs. `turns` ended, `failed` at the deadline. Seconds of turns that ended:
    `waits` (all before the first token but reading the own prompt), `queue` (until the ticket), `warm` and `cold`
    (until the first token). `worst_share`, `worst_wait_s`: of the seat with the least at pace, the highest p95 wait."""

    tokens: Tokens = field(default_factory=Tokens)
    turns: int = 0
    failed: int = 0
    waits: array[float] = field(default_factory=_seconds)
    queue: array[float] = field(default_factory=_seconds)
    warm: array[float] = field(default_factory=_seconds)
    cold: array[float] = field(default_factory=_seconds)
    worst_share: float = 1.0
    worst_wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Day:
    """One simulated day. `refused`: who was sent away to ask again, no deadline having passed."""

    developers: Group
    hogs: Group
    refused: int
    hours: float


@dataclass(frozen=True, slots=True)
class Figures:
    """Of all days of one policy. Shares are fractions; `_2se`: two standard errors of the mean over days, 0 with one
    day. `worst_seat`: the mean over days of that day's worst. `tokens_per_hour`: at pace."""

    seeds: int
    at_pace_share: float
    at_pace_2se: float
    g30_share: float
    g30_2se: float
    failed_share: float
    refused_share: float
    p95_wait_s: float
    p50_wait_s: float
    p95_queue_s: float
    p99_queue_s: float
    p95_first_token_warm_s: float
    p50_first_token_cold_s: float
    p95_first_token_cold_s: float
    cold_share: float
    collapses: int
    least_day_share: float
    worst_seat_share: float
    worst_seat_p95_wait_s: float
    tokens_at_pace_per_hour: float
    hog_tokens_per_hour: float
    hog_at_pace_share: float
    hog_p95_wait_s: float


def day_of(ended: Iterable[Ended], floor_tok_per_s: float, hours: float, refused: int = 0) -> Day:
    """Sum up a day."""
    groups = (Group(), Group())
    seats: defaultdict[str, Tokens] = defaultdict(Tokens)
    seat_waits: defaultdict[str, list[float]] = defaultdict(list)
    for one in ended:
        group = groups[one.hog]
        group.tokens.add(one, floor_tok_per_s)
        if one.failed:
            group.failed += 1
        else:
            group.turns += 1
            group.waits.append(one.wait_s)
            group.queue.append(one.queue_s)
            (group.cold if one.uncached_tokens > COLD_TOKENS else group.warm).append(one.first_token_s)
        if not one.hog:
            seats[one.seat].add(one, floor_tok_per_s)
            if not one.failed:
                seat_waits[one.seat].append(one.wait_s)
    groups[0].worst_share = min((share(t.at_pace, t.all) for t in seats.values()), default=1.0)
    groups[0].worst_wait_s = max((percentile(waits, 0.95) for waits in seat_waits.values()), default=0.0)
    return Day(*groups, refused, hours)


def figures(days: Sequence[Day]) -> Figures:
    """Sum up days, at least one."""
    developers = [day.developers for day in days]
    at_pace = [share(group.tokens.at_pace, group.tokens.all) for group in developers]
    soon = [share(group.tokens.soon, group.tokens.all) for group in developers]
    waits, queue = _all(g.waits for g in developers), _all(g.queue for g in developers)
    warm, cold = _all(g.warm for g in developers), _all(g.cold for g in developers)
    turns, failed = sum(g.turns for g in developers), sum(g.failed for g in developers)
    refused, hours = sum(day.refused for day in days), sum(day.hours for day in days)
    hogs = [day.hogs for day in days]
    hog_tokens = sum(g.tokens.all for g in hogs)
    return Figures(
        seeds=len(days),
        at_pace_share=fmean(at_pace),
        at_pace_2se=two_standard_errors(at_pace),
        g30_share=fmean(soon),
        g30_2se=two_standard_errors(soon),
        failed_share=failed / max(1, turns + failed),
        refused_share=refused / max(1, turns + failed + refused + sum(g.turns for g in hogs)),
        p95_wait_s=percentile(waits, 0.95),
        p50_wait_s=percentile(waits, 0.50),
        p95_queue_s=percentile(queue, 0.95),
        p99_queue_s=percentile(queue, 0.99),
        p95_first_token_warm_s=percentile(warm, 0.95),
        p50_first_token_cold_s=percentile(cold, 0.50),
        p95_first_token_cold_s=percentile(cold, 0.95),
        cold_share=len(cold) / max(1, turns),
        collapses=sum(day_share < COLLAPSED_SHARE for day_share in at_pace),
        least_day_share=min(at_pace),
        worst_seat_share=fmean(g.worst_share for g in developers),
        worst_seat_p95_wait_s=fmean(g.worst_wait_s for g in developers),
        tokens_at_pace_per_hour=sum(g.tokens.at_pace for g in developers) / hours,
        hog_tokens_per_hour=hog_tokens / hours,
        hog_at_pace_share=share(sum(g.tokens.at_pace for g in hogs), hog_tokens),
        hog_p95_wait_s=percentile(_all(g.waits for g in hogs), 0.95),
    )


def share(part: float, whole: float) -> float:
    """A fraction; of nothing, all of it."""
    return part / whole if whole else 1.0


def percentile(values: Sequence[float], at: float) -> float:
    """The least value that this share of them does not exceed; 0 of none."""
    return sorted(values)[max(0, ceil(at * len(values)) - 1)] if values else 0.0


def two_standard_errors(values: Sequence[float]) -> float:
    """Of their mean; 0 of one value."""
    return 2 * stdev(values) / sqrt(len(values)) if len(values) > 1 else 0.0


def _all(parts: Iterable[array[float]]) -> array[float]:
    whole = _seconds()
    for part in parts:
        whole.extend(part)
    return whole
