"""The profile of a team's seats, from what its ledger kept. Pure.

Rule: too little is refused rather than shown: a day with the box half empty is no base for buying a machine.
"""

from __future__ import annotations

from collections.abc import Sequence

from appliance.errors import MoeError
from appliance.units import count
from gateway.ledger.rows import Activity, Usage
from gateway.settings import LOOK_BACK_DAYS
from gateway.sizing.activity import ENOUGH_DAYS, ENOUGH_HOURS, ENOUGH_REQUESTS
from gateway.sizing.profile import Profile


def measured_profile(activity: Activity | None, usage: Sequence[Usage], first_s: float) -> Profile:
    """An average week of one active seat. `usage`: of each seat, in the time that `activity` looked at; `first_s`: the
    first request in it, wall clock. The hours of a day are those that the team works. Raises MoeError when there is
    too little."""
    if activity is None or not activity.enough:
        there = "nothing" if activity is None else _there(activity)
        raise MoeError(
            f"the ledger has too little to size seats from: {there} in the last {LOOK_BACK_DAYS} days; enough are "
            f"{ENOUGH_REQUESTS:,} requests on {ENOUGH_DAYS} days with {ENOUGH_HOURS:g} working hours",
            "moe-appliance seats size   goes by the study's developer until then",
        )
    output, served = sum(seat.completion_tokens for seat in usage), sum(seat.served for seat in usage)
    prompt = sum(seat.prompt_tokens for seat in usage)
    if output < 1 or served < 1:
        raise MoeError(
            f"no request of the last {LOOK_BACK_DAYS} days was answered", "moe-appliance status   says what is wrong"
        )
    weeks = max(7.0, (activity.until_s - first_s) / 86_400) / 7
    each = 1 / (activity.seats * weeks)
    return Profile(
        source="an active seat of this box",
        output_tokens=output * each,
        new_input_tokens=max(0, prompt - sum(seat.cached_tokens for seat in usage)) * each,
        total_tokens=(output + prompt) * each,
        active_days=min(7.0, activity.days / weeks),
        hours_a_day=activity.hours / activity.days,
        reply_tokens=output / served,
    )


def _there(activity: Activity) -> str:
    requests, days = count(activity.requests, "request"), count(activity.days, "day")
    return f"{requests} on {days} with {activity.hours:.0f} working hours"
