"""The pace of a box as its own gateway has measured it. Pure.

Rules:
- Reading: the curve that the gateway predicts with. Writing: milliseconds of a token with 1, 2, 3 .. streams; between
  two numbers of streams that were measured on a straight line, beyond them in the study's proportion.
- What nobody measures is the study's: how far replies slow down beside a prompt, and what comes back from host RAM.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gateway.learning.paces import Paces
from gateway.learning.prefill_curve import PrefillCurve
from gateway.simulation.pace import STUDY, Pace


def measured_pace(curve: PrefillCurve, paces: Paces, engine: str) -> Pace:
    """What was learned of `engine`, its name for people, as a pace. What was not measured is named in `source`."""
    table = paces.table()
    a, b = curve.coefficients
    lacking = [what for what, there in (("reading", curve.measured), ("writing", table)) if not there]
    source = f"what this box measured of {engine}"
    if lacking:
        source += f" ({' and '.join(lacking)}: nothing yet, so the study's)"
    return replace(STUDY, ms_per_token=_filled(table), a=a, b=b, source=source)


def _filled(table: Sequence[float | None]) -> tuple[float, ...]:
    known = {streams: ms for streams, ms in enumerate(table, start=1) if ms is not None}
    most = max(len(table), len(STUDY.ms_per_token))
    return tuple(_ms(known, streams) for streams in range(1, most + 1)) if known else STUDY.ms_per_token


def _ms(known: dict[int, float], streams: int) -> float:
    below = max((other for other in known if other <= streams), default=None)
    above = min((other for other in known if other >= streams), default=None)
    if below is None or above is None:
        nearest = above if below is None else below
        assert nearest is not None
        return known[nearest] * STUDY.tok_per_s(nearest) / STUDY.tok_per_s(streams)
    if below == above:
        return known[below]
    part = (streams - below) / (above - below)
    return known[below] * (1 - part) + known[above] * part
