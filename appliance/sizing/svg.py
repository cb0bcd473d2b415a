"""Draws figures as one SVG file, readable in light and dark. Pure.

Rule: curves are told apart by their dashes and by a label at their end, not by colour alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from appliance.sizing.figures import Curve, Figure, tick_text, ticks

_WIDTH, _HEIGHT = 720, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 24, 44, 64
_DASHES = ("", "7 4", "2 4")
_STYLE = """\
svg { background: #fff; font: 13px system-ui, sans-serif }
text { fill: #222 } .title { font-size: 15px; font-weight: 600 } .axis { stroke: #777 } .grid { stroke: #ddd }
.curve { fill: none; stroke-width: 2.2 } .c0 { stroke: #1f6feb } .c1 { stroke: #c2410c } .c2 { stroke: #7c3aed }
.mark { stroke: #b91c1c; stroke-width: 1 }
@media (prefers-color-scheme: dark) {
  svg { background: #15181c } text { fill: #e6e6e6 } .axis { stroke: #999 } .grid { stroke: #30343a }
  .c0 { stroke: #6ea8fe } .c1 { stroke: #ff9d5c } .c2 { stroke: #b79bff } .mark { stroke: #ff7b7b }
}"""


def drawing(figures: Sequence[Figure]) -> str:
    """An SVG document with the figures one under the other."""
    height = _HEIGHT * len(figures)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}"'
        f' role="img"><title>{escape("; ".join(figure.title for figure in figures))}</title><style>{_STYLE}</style>'
    ]
    for at, figure in enumerate(figures):
        parts += [f'<g transform="translate(0 {at * _HEIGHT})">', *_figure(figure), "</g>"]
    return "\n".join([*parts, "</svg>\n"])


def _figure(figure: Figure) -> list[str]:
    parts = [f'<text class="title" x="{_LEFT}" y="24">{escape(figure.title)}</text>']
    for value in ticks(figure.y_max):
        y = _y(figure, value)
        parts.append(_line("grid", _LEFT, y, _WIDTH - _RIGHT, y))
        parts.append(_text(_LEFT - 8, y + 4, tick_text(value, percent=figure.percent), "end"))
    bottom = _HEIGHT - _BOTTOM
    parts.extend(
        _text(_x(figure, value), bottom + 18, tick_text(value, percent=False), "middle")
        for value in ticks(figure.x_max, 8)
    )
    parts.append(_line("axis", _LEFT, bottom, _WIDTH - _RIGHT, bottom))
    parts.append(_text(_WIDTH - _RIGHT, bottom + 36, figure.x_label, "end"))
    for value, label in figure.marks:
        y = _y(figure, value)
        parts.append(_line("mark", _LEFT, y, _WIDTH - _RIGHT, y))
        parts.append(_text(_WIDTH - _RIGHT, y - 4, label, "end"))
    for at, curve in enumerate(figure.curves):
        parts.append(f'<path class="curve c{at}" stroke-dasharray="{_DASHES[at]}" d="{_path(figure, curve)}"/>')
        x = _LEFT + at * 210
        parts.append(
            f'<path class="curve c{at}" stroke-dasharray="{_DASHES[at]}" d="M{x} {bottom + 48}h34"/>'
            + _text(x + 42, bottom + 52, curve.label, "start")
        )
    return parts


def _path(figure: Figure, curve: Curve) -> str:
    """The curve up to where it leaves the picture."""
    made = ""
    for x, y in curve.points:
        if y > figure.y_max:
            return made
        at = f"{_x(figure, x):.1f}"
        made += f"H{at}" if made and curve.steps else ""
        made += f"{'L' if made else 'M'}{at} {_y(figure, y):.1f}"
    return made + (f"H{_x(figure, figure.x_max):.1f}" if curve.steps else "")


def _x(figure: Figure, value: float) -> float:
    return _LEFT + value / figure.x_max * (_WIDTH - _LEFT - _RIGHT)


def _y(figure: Figure, value: float) -> float:
    return _HEIGHT - _BOTTOM - value / figure.y_max * (_HEIGHT - _TOP - _BOTTOM)


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, said: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(said)}</text>'
