"""Draws a figure with characters, for a terminal. Pure.

Rule: plain ASCII, a letter for each curve, so that it survives any terminal, mail and ticket.
"""

from __future__ import annotations

from bisect import bisect_right
from string import ascii_lowercase

from appliance.sizing.figures import Curve, Figure, tick_text, ticks

_ROWS = 12
_COLUMNS_MIN, _COLUMNS_MAX = 40, 72


def lines(figure: Figure, width: int) -> list[str]:
    """The figure, about `width` columns wide."""
    steps = ticks(figure.y_max, 4)
    margin = max(len(tick_text(value, percent=figure.percent)) for value in steps) + 1
    columns = max(_COLUMNS_MIN, min(_COLUMNS_MAX, width)) - margin - 2
    field = [[" "] * columns for _ in range(_ROWS)]
    for value, _ in figure.marks:
        field[_row(figure, value)] = ["-"] * columns
    for letter, curve in zip(ascii_lowercase, figure.curves, strict=False):
        for column in range(columns):
            y = _at(curve, (column + 0.5) / columns * figure.x_max)
            if y is not None and y <= figure.y_max:
                field[_row(figure, y)][column] = letter
    named = {_row(figure, value): tick_text(value, percent=figure.percent) for value in reversed(steps)}
    drawn = [f"{named.get(at, ''):>{margin}}|{''.join(row).rstrip()}" for at, row in enumerate(field)]
    drawn.append(" " * margin + "+" + "-" * columns)
    drawn.append(_below(figure, margin, columns))
    legend = "   ".join(
        f"{letter} {curve.label}" for letter, curve in zip(ascii_lowercase, figure.curves, strict=False)
    )
    return [figure.title, *drawn, " " * (margin + 1) + legend]


def _row(figure: Figure, value: float) -> int:
    return _ROWS - 1 - min(_ROWS - 1, int(value / figure.y_max * _ROWS))


def _at(curve: Curve, x: float) -> float | None:
    """The curve's y at x; None outside it."""
    after = bisect_right(curve.points, (x, float("inf")))
    if after == 0:
        return None
    x0, y0 = curve.points[after - 1]
    if curve.steps:
        return y0
    if after == len(curve.points):
        return y0 if x == x0 else None
    x1, y1 = curve.points[after]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


def _below(figure: Figure, margin: int, columns: int) -> str:
    line = [" "] * (margin + 1 + columns)
    for value in ticks(figure.x_max, 6):
        said = tick_text(value, percent=False)
        start = margin + 1 + min(columns - len(said), int(value / figure.x_max * columns))
        line[start : start + len(said)] = said
    return "".join(line).rstrip() + f"  {figure.x_label}"
