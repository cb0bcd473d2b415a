"""The whole answer of `seats size`, from a profile and what a box can do. Pure.

Rules:
- Every figure here is an estimate: people are shown it with a `~`.
- `duty_share` belongs to the profile's own hours; a column with fewer hours has the same work in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from appliance.errors import MoeError
from gateway.ledger.rows import Activity
from gateway.sizing.capacity import (
    CAUTIOUS_RHO,
    POD_EUR_A_MONTH,
    PROMISE,
    RELAXED,
    SEAT_EUR_A_MONTH,
    Cost,
    Pace,
    break_even,
    chance_above,
    cost,
    duty_share,
    pods,
    pods_apart,
    seats,
    seats_by_volume,
)
from gateway.sizing.finite_source import Wait, turn_s, wait
from gateway.sizing.profile import Profile


@dataclass(frozen=True, slots=True)
class Prices:
    """EUR a month: one pod, one subscription."""

    pod_eur: float = POD_EUR_A_MONTH
    seat_eur: float = SEAT_EUR_A_MONTH


@dataclass(frozen=True, slots=True)
class Column:
    """The seats of one box when the day's work is done in `hours_a_day`. `cautious_*`: for a team that shares
    deadlines (rho CAUTIOUS_RHO). `waits`: of turns with that many seats, at the promise and relaxed. All but
    `duty_share` are None when one stream at the floor cannot do the work in those hours."""

    hours_a_day: float
    duty_share: float
    seats_1pct: int | None = None
    seats_5pct: int | None = None
    cautious_1pct: int | None = None
    cautious_5pct: int | None = None
    waits: tuple[Wait, Wait] | None = None


@dataclass(frozen=True, slots=True)
class Team:
    """`developers` of one kind: the chance that one pod is too small, pods, and what those cost. `pods_apart`: when
    nobody is moved from the pod that he is on."""

    developers: int
    above_share: float
    pods_apart: int
    cost: Cost


@dataclass(frozen=True, slots=True)
class Sizing:
    """The answer. `columns`: the profile's hours first, then half of them. `activity`: what the ledger showed, and
    `floor_duty_share`: what its tokens would take at the floor; the larger of the two is `columns[0].duty_share`."""

    profile: Profile
    pace: Pace
    prices: Prices
    seats_by_volume: int
    seats_by_volume_half: int
    columns: tuple[Column, Column]
    teams: tuple[Team, ...]
    floor_duty_share: float
    activity: Activity | None = None

    @property
    def seats(self) -> int:
        """Seats of one pod at the promise."""
        return seats(self.columns[0].duty_share, self.pace.streams)

    def to_json(self) -> dict[str, Any]:
        """The answer for programs; shares 0..1, money in EUR a month, times in seconds."""
        first = self.columns[0]
        return {
            "duty_share": first.duty_share,
            "seats_1pct": first.seats_1pct,
            "seats_5pct": first.seats_5pct,
            "seats_by_volume": self.seats_by_volume,
            "seats_by_volume_half": self.seats_by_volume_half,
            "pods": {str(team.developers): team.cost.pods for team in self.teams},
            "pods_apart": {str(team.developers): team.pods_apart for team in self.teams},
            "hours": [asdict(column) for column in self.columns],
            "cost": {
                **{name: round(value, 2) for name, value in asdict(self.prices).items()},
                "break_even_seats": break_even(self.prices.pod_eur, self.prices.seat_eur),
                "teams": [_cost_json(team.cost) for team in self.teams],
            },
            "profile": asdict(self.profile),
            "pace": asdict(self.pace),
            "floor_duty_share": self.floor_duty_share,
            "activity": None if self.activity is None else asdict(self.activity),
        }


def size(
    profile: Profile,
    pace: Pace,
    developers: Sequence[int],
    prices: Prices,
    activity: Activity | None = None,
) -> Sizing:
    """Work everything out. Raises MoeError when one stream at the floor cannot do the profile's work in its hours."""
    floor_duty = duty_share(profile, pace)
    duty = floor_duty if activity is None else max(floor_duty, activity.duty_share)
    if duty >= 1:
        raise MoeError(
            f"{profile.source}: a developer needs a stream for {duty * profile.hours_a_day:.1f} h of a day that has "
            f"{profile.hours_a_day:g}; seats are sized for developers who use less than one stream",
            "moe-appliance usage   shows which seat it is"
            if activity is not None
            else "moe-appliance seats size --hours 12   spreads the work over a longer day",
        )
    a_turn_s = turn_s(
        profile.reply_tokens,
        profile.generating_s(pace.floor_tok_per_s, pace.prefill_tok_per_s) * duty / floor_duty,
        profile.output_tokens,
    )
    hours = profile.hours_a_day
    own, half = (_column(each, duty * hours / each, pace.streams, a_turn_s) for each in (hours, hours / 2))
    return Sizing(
        profile=profile,
        pace=pace,
        prices=prices,
        seats_by_volume=seats_by_volume(profile, pace),
        seats_by_volume_half=seats_by_volume(profile, pace, 0.5),
        columns=(own, half),
        teams=tuple(_team(each, duty, pace.streams, prices) for each in developers),
        floor_duty_share=floor_duty,
        activity=activity,
    )


def _column(hours_a_day: float, duty: float, streams: int, a_turn_s: float) -> Column:
    if duty >= 1:
        return Column(hours_a_day, duty)
    promised, relaxed = seats(duty, streams, PROMISE), seats(duty, streams, RELAXED)
    return Column(
        hours_a_day,
        duty,
        promised,
        relaxed,
        seats(duty, streams, PROMISE, CAUTIOUS_RHO),
        seats(duty, streams, RELAXED, CAUTIOUS_RHO),
        (wait(promised, duty, streams, a_turn_s), wait(relaxed, duty, streams, a_turn_s)),
    )


def _team(developers: int, duty: float, streams: int, prices: Prices) -> Team:
    boxes = pods(developers, duty, streams)
    return Team(
        developers,
        chance_above(developers, duty, streams),
        pods_apart(developers, seats(duty, streams)),
        cost(developers, boxes, prices.pod_eur, prices.seat_eur),
    )


def _cost_json(made: Cost) -> dict[str, float]:
    money = {"pods_eur": made.pods_eur, "seats_eur": made.seats_eur, "more_eur": made.more_eur}
    return {
        "developers": made.developers,
        "pods": made.pods,
        **{name: round(value, 2) for name, value in money.items()},
        "saved_share": made.saved_share,
    }
