"""Draws a budget for a terminal: stacked bars and the legend with their figures. Makes renderables, prints nothing.

Rules:
- A piece is told by its letter as well as by its colour: terminals without colours, and eyes, differ.
- The capacity is a mark in the bar; what lies behind it does not fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_uppercase

from rich.console import Group, RenderableType
from rich.text import Text

from appliance.cli.terminal import table
from gateway.status.plan import kind_rows
from gateway.status.views import BarView, PieceView

_COLOURS = ("cyan", "blue", "magenta", "green", "yellow", "red")


def bars(shown: Sequence[BarView], width: int, *, ascii_only: bool = False) -> RenderableType:
    """The bars, one under the other, `width` columns at most."""
    labels = max((len(bar.label) for bar in shown), default=0)
    room = max(20, width - labels - 4)
    return Group(*(_lines(bar, labels, room, ascii_only) for bar in shown))


def legend(shown: Sequence[BarView]) -> RenderableType:
    """Which letter is what, and its bytes in each bar."""
    made = table()
    made.add_column("")
    made.add_column("what", overflow="fold")
    for bar in shown:
        made.add_column(bar.id, justify="right", no_wrap=True)
    for row in kind_rows(shown):
        label = f"{row.label} {row.when}".rstrip()
        cells = (Text(str(cell), style="" if cell.value is not None else "dim") for cell in row.cells)
        made.add_row(Text(_letter(row.kind), style=f"bold {_colour(row.kind)}"), Text(label), *cells)
    return made


def explained(shown: Sequence[BarView]) -> RenderableType:
    """How each figure comes about."""
    lines: list[Text] = []
    for bar in shown:
        lines.append(Text(bar.label, style="bold"))
        for piece in bar.pieces:
            lines.append(Text(f"  {piece.label} {piece.bytes}".rstrip()))
            lines.append(Text(f"    {piece.formula}   source: {piece.source}", style="dim"))
    return Group(*lines)


def _lines(bar: BarView, labels: int, room: int, ascii_only: bool) -> RenderableType:
    drawn = Text(f"{bar.label:<{labels}}  ")
    drawn.append_text(_drawn(bar, room, ascii_only))
    said = Text(" " * (labels + 2))
    said.append(f"{bar.peak} of {bar.capacity}, ")
    said.append(f"{bar.left} left" if bar.holds else f"{bar.over} over", style="green" if bar.holds else "bold red")
    return Group(drawn, said)


def _drawn(bar: BarView, room: int, ascii_only: bool) -> Text:
    drawn = Text()
    for at in range(room):
        piece = _at(bar.pieces, (at + 0.5) / room)
        if piece is None:
            drawn.append("." if ascii_only else "·", style="dim")
        else:
            drawn.append(_letter(piece.kind).lower() if piece.when else _letter(piece.kind), style=_style(piece))
    if bar.capacity_share is not None:
        mark = min(room - 1, round(bar.capacity_share * room))
        tail = drawn[mark:]
        drawn = drawn[:mark]
        drawn.append("|" if ascii_only else "│", style="bold" if bar.holds else "bold red")
        drawn.append_text(tail[1:] if len(tail) > 1 else Text())
    return drawn


def _at(pieces: Sequence[PieceView], share: float) -> PieceView | None:
    return next((piece for piece in pieces if piece.start <= share < piece.start + piece.share), None)


def _style(piece: PieceView) -> str:
    return f"dim {_colour(piece.kind)}" if piece.when else f"reverse {_colour(piece.kind)}"


def _letter(kind: int) -> str:
    return ascii_uppercase[kind % len(ascii_uppercase)]


def _colour(kind: int) -> str:
    return _COLOURS[kind % len(_COLOURS)]
