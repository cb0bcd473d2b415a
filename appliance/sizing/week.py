"""Adds up days of one developer's tokens and makes the average week of them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date

from gateway.sizing.profile import STUDY, Profile


@dataclass(slots=True)
class Day:
    """Tokens of one day. `new_input`: read anew, what is written to a cache among them; `cached`: read from a cache;
    `replies`: 0 = not known; `sessions`: of the day, 0 = not known."""

    output: int = 0
    new_input: int = 0
    cached: int = 0
    replies: int = 0
    sessions: int = 0


def average_week(days: Mapping[date, Day], source: str, hours_a_day: float = STUDY.hours_a_day) -> Profile | None:
    """The average week from the first day with output to the last, a whole week at least; None when no day has any.
    Days without output are no active days."""
    active = {day: made for day, made in days.items() if made.output > 0}
    if not active:
        return None
    weeks = max(7, (max(active) - min(active)).days + 1) / 7
    output, new, cached, replies, sessions = (
        sum(column)
        for column in zip(
            *((d.output, d.new_input, d.cached, d.replies, d.sessions) for d in active.values()), strict=True
        )
    )
    return Profile(
        source=source,
        output_tokens=output / weeks,
        new_input_tokens=new / weeks,
        total_tokens=(output + new + cached) / weeks,
        active_days=len(active) / weeks,
        hours_a_day=hours_a_day,
        sessions=sessions / weeks if sessions else None,
        reply_tokens=output / replies if replies else STUDY.reply_tokens,
    )
