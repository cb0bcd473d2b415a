"""The pictures of a simulation: tokens at pace, with a first token soon, and waits, over seats. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from appliance.sizing.figures import Curve, Figure
from gateway.simulation.cells import Trial
from gateway.simulation.metrics import SOON_S, Figures

CURVES_MAX = 3
"""So many dashes and colours a drawing has."""
_LEAST_WAIT_S = 10.0


def pictures(trials: Sequence[Trial], found: Sequence[Figures]) -> tuple[Figure, Figure, Figure]:
    """One curve a policy, `CURVES_MAX` at most."""
    floor = trials[0].scenario.limits.floor_tok_per_s
    most = float(max(trial.scenario.seats for trial in trials))
    wait_s = max(_LEAST_WAIT_S, *(one.p95_wait_s for one in found))

    def picture(title: str, top: float, value: Callable[[Figures], float], *, percent: bool) -> Figure:
        curves = tuple(
            _curve(policy, trials, found, value) for policy in dict.fromkeys(trial.policy for trial in trials)
        )
        return Figure(title, "seats on one pod", curves, most, top, percent=percent)

    return (
        picture(f"Tokens written at {floor:g} tok/s or faster", 1.0, lambda one: one.at_pace_share, percent=True),
        picture(
            f"... in turns whose first token also came within {SOON_S:g} s",
            1.0,
            lambda one: one.g30_share,
            percent=True,
        ),
        picture(
            "Seconds that 19 of 20 turns wait at most, beside their own reading",
            wait_s,
            lambda one: one.p95_wait_s,
            percent=False,
        ),
    )


def _curve(policy: str, trials: Sequence[Trial], found: Sequence[Figures], value: Callable[[Figures], float]) -> Curve:
    points = [
        (float(trial.scenario.seats), value(one))
        for trial, one in zip(trials, found, strict=True)
        if trial.policy == policy
    ]
    return Curve(policy, tuple(sorted(points)))
