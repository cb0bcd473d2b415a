"""The two pictures of a sizing as numbers: what pods cost, and how often a stream too many is wanted. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

from appliance.sizing.sizing import Column, Sizing
from gateway.sizing.capacity import (
    CAUTIOUS_RHO,
    DEVELOPERS_MAX,
    PROMISE,
    RELAXED,
    break_even,
    chance_above,
    pods,
)

POINTS_MAX = 250
CHANCE_TOP = 0.10


@dataclass(frozen=True, slots=True)
class Curve:
    """One line: `points` (x, y), x rising. `steps`: y holds until the next x."""

    label: str
    points: tuple[tuple[float, float], ...]
    steps: bool = False


@dataclass(frozen=True, slots=True)
class Figure:
    """One picture. `marks`: horizontal lines and what they say; x goes from 0 to `x_max`, y from 0 to `y_max`, higher
    points are cut off. `percent`: y is a share."""

    title: str
    x_label: str
    curves: tuple[Curve, ...]
    x_max: float
    y_max: float
    marks: tuple[tuple[float, str], ...] = ()
    percent: bool = False


def figures(sizing: Sizing) -> tuple[Figure, Figure]:
    """Cost by developers, and the chance of a stream too many by seats of one pod."""
    return _cost(sizing), _chance(sizing)


def ticks(top: float, about: int = 5) -> list[float]:
    """Round numbers from 0 to `top`, steps of 1, 2 or 5 times a power of ten."""
    raw = top / about
    power = 10 ** floor(log10(raw))
    step = next(power * times for times in (1, 2, 5, 10) if power * times >= raw)
    return [step * at for at in range(floor(top / step * (1 + 1e-9)) + 1)]


def tick_text(value: float, *, percent: bool) -> str:
    """`2,000`, `4 %`."""
    return f"{value * 100:g} %" if percent else f"{value:,.10g}"


def _cost(sizing: Sizing) -> Figure:
    prices, duty, streams = sizing.prices, sizing.columns[0].duty_share, sizing.pace.streams
    most = max((team.developers for team in sizing.teams), default=0)
    top = min(DEVELOPERS_MAX, max(most, ceil(2 * break_even(prices.pod_eur, prices.seat_eur)), 10))
    step = ceil(top / POINTS_MAX)
    xs = range(1, top + 1, step)
    boxes = tuple((float(n), pods(n, duty, streams) * prices.pod_eur) for n in xs)
    subscriptions = ((0.0, 0.0), (float(top), top * prices.seat_eur))
    return Figure(
        "EUR a month: pods against subscriptions",
        "developers",
        (Curve("pods", boxes, steps=True), Curve("subscriptions", subscriptions)),
        top,
        max(subscriptions[1][1], boxes[-1][1], prices.pod_eur),
    )


def _chance(sizing: Sizing) -> Figure:
    streams = sizing.pace.streams
    own, half = sizing.columns
    top = min(DEVELOPERS_MAX, max(10, ceil(1.3 * (own.seats_5pct or streams))))
    drawn: list[tuple[str, Column, float]] = [(f"{own.hours_a_day:g} h a day", own, 0.0)]
    drawn.append((f"{own.hours_a_day:g} h, shared deadlines", own, CAUTIOUS_RHO))
    if half.seats_1pct is not None:
        drawn.append((f"the same work in {half.hours_a_day:g} h", half, 0.0))
    seats = range(1, top + 1, ceil(top / POINTS_MAX))
    return Figure(
        f"Chance that more than {streams} streams are wanted at once",
        "seats on one pod",
        tuple(
            Curve(label, _curve(seats, column.duty_share, streams, rho), steps=False) for label, column, rho in drawn
        ),
        top,
        CHANCE_TOP,
        tuple((share, tick_text(share, percent=True)) for share in (PROMISE, RELAXED)),
        percent=True,
    )


def _curve(seats: Sequence[int], duty: float, streams: int, rho: float) -> tuple[tuple[float, float], ...]:
    return tuple((float(n), chance_above(n, duty, streams, rho)) for n in seats)
