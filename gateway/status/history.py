"""Sparklines of the last hour, the chance of a fifth stream, the ledger's own state. Pure.

Rules:
- A line is thinned to POINTS: of each piece what an operator must not miss is kept, the most streams and the slowest
  pace, the most time of reading.
- What was not measured is a gap. A chance is told with the hours that it rests on, and not judged where they are few.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

from gateway.ledger.rows import Activity, LedgerState
from gateway.seats import counted
from gateway.sizing.capacity import PROMISE
from gateway.snapshot import GatewaySnapshot, HistoryView
from gateway.state import EngineState
from gateway.status.figures import (
    Figure,
    Tone,
    compact,
    count,
    fine_percent,
    gib,
    hours,
    pace,
    percent,
    seconds,
    seconds_a_minute,
    size,
)
from gateway.status.live import FifthView, HistoryRow, LedgerRow, SparkView

POINTS = 180
_MIB_ONLY = 1 << 30

_Values = Sequence[float | None]


def history_row(engine: EngineState, gateway: GatewaySnapshot | None) -> HistoryRow | None:
    """The sparklines; None without a history."""
    history = gateway.history if gateway else None
    if gateway is None or history is None or not history.streams:
        return None
    span = seconds(history.step_s * len(history.streams))
    return HistoryRow(
        span=span,
        sparks=(
            _streams(history, gateway.streams_max, span),
            _slowest(history, engine.profile.floor_tok_per_s, span),
            _cached(history, span),
            *((_reading(history, span),) if history.reading_share else ()),
        ),
    )


def _streams(history: HistoryView, most: int, span: Figure) -> SparkView:
    top = max([most, *(value for value in history.streams if value is not None)])
    full = sum(value is not None and value >= most for value in history.streams)
    known = sum(value is not None for value in history.streams)
    share = percent(full / known if known else None)
    return SparkView(
        id="streams",
        label="streams",
        now=count(history.streams[-1]),
        points=_thinned(history.streams, top, max),
        mark=most / top if top else None,
        mark_label=f"cap {most}",
        top=count(top),
        said=f"Streams over the last {span}: now {count(history.streams[-1])}, all {most} busy {share} of the time.",
    )


def _slowest(history: HistoryView, floor: float, span: Figure) -> SparkView:
    values = history.slowest_tok_per_s
    known = [value for value in values if value is not None]
    top = max([2 * floor, *known]) or 1.0
    least = pace(min(known, default=None), estimated=True)
    now = pace(values[-1], estimated=True)
    below = sum(value < floor for value in known)
    under = f", below the floor in {percent(below / len(known))} of it" if below else ", never below the floor"
    said = f"Slowest stream over the last {span}: now {now}, at the least {least}{under if known and floor else ''}."
    return SparkView(
        id="slowest",
        label="slowest stream",
        now=now,
        points=_thinned(values, top, min),
        mark=floor / top if floor > 0 else None,
        mark_label=f"floor {pace(floor)}" if floor > 0 else "",
        top=pace(top),
        said=said,
    )


def _cached(history: HistoryView, span: Figure) -> SparkView:
    values = history.cached_share
    known = [value for value in values if value is not None]
    latest = percent(known[-1] if known else None)
    return SparkView(
        id="cached",
        label="prompt from cache",
        now=latest,
        points=_thinned(values, 1.0, fmean),
        mark=None,
        mark_label="",
        top=percent(1.0),
        said=f"Share of prompt tokens from the cache over the last {span}: latest {latest}, "
        f"mean {percent(fmean(known) if known else None)}.",
    )


def _reading(history: HistoryView, span: Figure) -> SparkView:
    """Each point is the mean of the minute before it, since reading comes in pieces of some ten seconds. Of the first
    minute there is none."""
    values = history.reading_share
    width = min(max(1, round(60 / history.step_s)), len(values))
    minutes = [None] * (width - 1) + [_mean(values[end - width : end]) for end in range(width, len(values) + 1)]
    known = [value for value in minutes if value is not None]
    now = seconds_a_minute(minutes[-1], estimated=True)
    said = f"Time in which long prompts are read over the last {span}: now {now}, "
    said += f"mean {seconds_a_minute(_mean(values), estimated=True)}, "
    said += f"at the most {seconds_a_minute(max(known, default=None), estimated=True)}."
    return SparkView(
        id="reading",
        label="long prompts read",
        now=now,
        points=_thinned(minutes, 1.0, max),
        mark=None,
        mark_label="",
        top=seconds_a_minute(1.0),
        said=said,
    )


def _mean(values: _Values) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _thinned(values: _Values, top: float, keep: Callable[[list[float]], float]) -> tuple[float | None, ...]:
    """At most POINTS points on a scale that ends at `top`. Pieces are counted from the end, so that a line moves as a
    whole and does not flicker."""
    width = max(1, -(-len(values) // POINTS))
    first = len(values) % width
    starts = [0, *range(first, len(values), width)] if first else list(range(0, len(values), width))
    points: list[float | None] = []
    for start, end in zip(starts, [*starts[1:], len(values)], strict=True):
        known = [value for value in values[start:end] if value is not None]
        points.append(round(keep(known) / top, 3) if known else None)
    return tuple(points)


def fifth_view(ledger: LedgerState | None) -> FifthView | None:
    """How the measured chance stands against the promise; None while nothing was measured."""
    busy = ledger.busy if ledger else None
    if busy is None or busy.hours <= 0:
        return None
    kept = busy.above_share <= PROMISE
    return FifthView(
        chance=fine_percent(busy.above_share),
        promise=percent(PROMISE),
        enough=busy.enough,
        tone=Tone.OK if kept or not busy.enough else Tone.WARN,
        days=busy.days,
        hours=hours(busy.hours),
        requests=compact(busy.requests),
        seats=busy.seats,
        streams=busy.streams,
        duty=fine_percent(busy.duty_share),
        waited=fine_percent(busy.waited_share),
        at_once=tuple(fine_percent(share) for share in busy.at_once),
        sentence=_said(busy, kept),
    )


def _said(busy: Activity, kept: bool) -> str:
    days = counted(busy.days, "day")
    if not busy.enough:  # a day's hours count whole: of a first one they would say too much
        requests = f"{count(busy.requests)} {'request' if busy.requests == 1 else 'requests'}"
        return f"Too little to say yet: {requests} on {days} so far."
    chance, promise = fine_percent(busy.above_share), percent(PROMISE)
    more = f"More than {busy.streams} streams were wanted in {chance} of working time"
    rests = f"{hours(busy.hours)} of work on {days}"
    return f"{more}, measured over {rests}: the {promise} promise is {'kept' if kept else 'not kept'}."


def ledger_row(ledger: LedgerState | None, now_s: float) -> LedgerRow | None:
    """How the ledger is; None when none is kept."""
    if ledger is None:
        return None
    return LedgerRow(
        ok=not ledger.error and not ledger.lost,
        rows=count(ledger.rows),
        lost=count(ledger.lost),
        waiting=count(ledger.waiting),
        size=size(ledger.size_bytes) if ledger.size_bytes < _MIB_ONLY else gib(ledger.size_bytes),
        kept_for=seconds(None if ledger.oldest_s is None else now_s - ledger.oldest_s),
        error=ledger.error,
        aside=ledger.aside,
    )
