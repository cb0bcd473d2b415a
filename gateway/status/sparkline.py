"""Points as the data of an SVG path, in a picture of 1000 by 100. Pure.

Points are 0..1 of the height, None = a gap; a point alone between two gaps is drawn as a dot.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

WIDTH, HEIGHT = 1000.0, 100.0
_DOT = 0.01

_Points = Sequence[float | None]
_Run = list[tuple[float, float]]


def line(points: _Points) -> str:
    """The line, broken at gaps."""
    return "".join(_drawn(run) for run in _runs(points))


def area(points: _Points) -> str:
    """What is below the line."""
    return "".join(f"{_drawn(run)}V{HEIGHT:g}H{run[0][0]:g}Z" for run in _runs(points) if len(run) > 1)


def _drawn(run: _Run) -> str:
    first, *others = run
    if not others:
        return f"M{first[0]:g} {first[1]:g}h{_DOT}"
    return f"M{first[0]:g} {first[1]:g}" + "".join(f"L{x:g} {y:g}" for x, y in others)


def _runs(points: _Points) -> Iterator[_Run]:
    step = WIDTH / max(1, len(points) - 1)
    run: _Run = []
    for number, point in enumerate(points):
        if point is not None:
            run.append((round(number * step, 1), round((1 - min(1.0, max(0.0, point))) * HEIGHT, 1)))
        elif run:
            yield run
            run = []
    if run:
        yield run
