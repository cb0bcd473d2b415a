"""How a plan and its budget are shown: stacked bars, each piece with its bytes, formula and source. Pure.

Rules:
- The same kind of line has the same number, and so the same colour, in every bar.
- A bar is as long as its capacity, or as what it must hold when that is more: a piece that sticks out stays visible.
- A total with an estimate in it is an estimate.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.state import BudgetBar, BudgetLine, Moment, PlanState
from gateway.status.figures import Figure, Tone, count, gib
from gateway.status.views import BarView, KindRow, PieceView, PlanView

_WHEN = {Moment.STEADY: "", Moment.LOAD: "while loading", Moment.ROUNDED: "if pinned in powers of two"}


def plan_view(plan: PlanState | None) -> PlanView | None:
    """The plan as it is shown; None without one."""
    if plan is None:
        return None
    return PlanView(
        plan_id=plan.plan_id,
        file=plan.file,
        name=plan.name,
        cold=count(plan.cold_experts),
        experts=count(plan.experts),
        fits=plan.fits,
        tone=Tone.OK if plan.fits else Tone.BAD,
        verdict=plan.verdict,
        made=plan.made,
        bars=(bars := bar_views(plan.bars)),
        kinds=kind_rows(bars),
    )


def bar_views(bars: Sequence[BudgetBar]) -> tuple[BarView, ...]:
    """The bars as they are shown, lines without bytes left out."""
    kinds = {line.id: number for number, line in enumerate(_first_of_each(bars))}
    return tuple(_bar(bar, kinds) for bar in bars)


def kind_rows(bars: Sequence[BarView]) -> tuple[KindRow, ...]:
    """The legend: each kind of piece and what it takes in each bar."""
    pieces = {piece.kind: piece for bar in bars for piece in bar.pieces}
    held = [{piece.kind: piece.bytes for piece in bar.pieces} for bar in bars]
    return tuple(
        KindRow(
            kind=kind,
            label=pieces[kind].label,
            when=pieces[kind].when,
            cells=tuple(of_bar.get(kind, Figure()) for of_bar in held),
        )
        for kind in sorted(pieces)
    )


def _first_of_each(bars: Sequence[BudgetBar]) -> list[BudgetLine]:
    seen: dict[str, BudgetLine] = {}
    for bar in bars:
        for line in bar.lines:
            if line.bytes > 0:
                seen.setdefault(line.id, line)
    return list(seen.values())


def _bar(bar: BudgetBar, kinds: dict[str, int]) -> BarView:
    lines = [line for line in bar.lines if line.bytes > 0]
    worst = sum(line.bytes for line in lines)
    peak = bar.total_bytes(Moment.STEADY, Moment.LOAD)
    scale = max(worst, bar.capacity_bytes or 0, 1)
    pieces, start = [], 0
    for line in lines:
        pieces.append(_piece(line, kinds[line.id], start, scale))
        start += line.bytes
    guessed = any(not line.exact for line in lines if line.moment is not Moment.ROUNDED)
    left = None if bar.capacity_bytes is None else bar.capacity_bytes - peak
    return BarView(
        id=bar.id,
        label=bar.label,
        capacity=gib(bar.capacity_bytes),
        capacity_share=None if bar.capacity_bytes is None else round(bar.capacity_bytes / scale, 4),
        used=gib(bar.total_bytes(Moment.STEADY), estimated=guessed),
        peak=gib(peak, estimated=guessed),
        left=gib(None if left is None else max(0, left), estimated=guessed),
        over=gib(None if left is None else max(0, -left), estimated=guessed),
        holds=left is None or left >= 0,
        pieces=tuple(pieces),
    )


def _piece(line: BudgetLine, kind: int, start: int, scale: int) -> PieceView:
    return PieceView(
        id=line.id,
        label=line.label,
        kind=kind,
        bytes=gib(line.bytes, estimated=not line.exact),
        when=_WHEN[line.moment],
        start=round(start / scale, 4),
        share=round(line.bytes / scale, 4),
        formula=line.formula,
        source=line.source,
    )
