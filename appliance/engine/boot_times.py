"""Estimate how long a start still takes, from what its steps took the last time. Pure.

Rules:
- A boot is the list of its steps in order, each with its seconds, from the spawn to READY. A step that comes back later
  (a second model, a second kind of graph) is another one.
- Steps to come are taken from the last boot, times what this boot's finished steps took over what they took then,
  within `SCALE_MAX`. The present step is judged by its own percent once that has moved, else by the last boot.
- Without a last boot, or when nothing of it is recognised, nobody knows. An estimate is never negative.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

SCALE_MAX = 4.0
STEPS_MAX = 64
"""Steps that are told apart; what comes later belongs to the last."""
TRUSTED = 0.05
"""How far a step must have come, 0..1, before its own pace is believed."""

Boot: TypeAlias = tuple[tuple[str, float], ...]
"""The steps of a boot: name, seconds."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """`left_s`: about how long the start still takes; `share`: how much of the whole is behind it, 0..1."""

    left_s: float
    share: float


@dataclass(frozen=True, slots=True)
class Course:
    """A start so far, all times on one clock. `done`: steps that are over, with their seconds; `name`: the present one,
    since `since_s`. `moved`: (time, progress) when the present step first said how far it is; `progress`: what it said
    last."""

    began_s: float
    since_s: float
    name: str = ""
    done: Boot = ()
    moved: tuple[float, float] | None = field(default=None)
    progress: float | None = None


def began(now_s: float) -> Course:
    """A start at its spawn."""
    return Course(began_s=now_s, since_s=now_s)


def stepped(course: Course, name: str, progress: float | None, now_s: float) -> Course:
    """The start after it said what it does."""
    moved = None if progress is None else (now_s, progress)
    if name == course.name:
        first = course.moved if course.moved and progress is not None and progress >= course.moved[1] else moved
        return Course(course.began_s, course.since_s, name, course.done, first, progress)
    if len(course.done) >= STEPS_MAX - 1:
        return course
    done = (*course.done, (course.name, now_s - course.since_s))
    return Course(course.began_s, now_s, name, done, moved, progress)


def whole(course: Course, now_s: float) -> Boot:
    """The boot, when it has come to its end."""
    return (*course.done, (course.name, now_s - course.since_s))


def estimate(last: Boot, course: Course, now_s: float) -> Estimate | None:
    """How long it still takes; None = nobody knows."""
    places = _places(last, [*(name for name, _ in course.done), course.name])
    here = places[-1]
    if here is None:
        return None
    took_s = sum(seconds for (_, seconds), place in zip(course.done, places, strict=False) if place is not None)
    then_s = sum(last[place][1] for place in places[:-1] if place is not None)
    scale = min(SCALE_MAX, max(1 / SCALE_MAX, took_s / then_s)) if took_s > 0 and then_s > 0 else 1.0
    to_come_s = scale * sum(seconds for _, seconds in last[here + 1 :])
    left_s = to_come_s + _present_left_s(course, scale * last[here][1], now_s)
    spent_s = max(0.0, now_s - course.began_s)
    return Estimate(left_s, spent_s / (spent_s + left_s) if spent_s + left_s > 0 else 1.0)


def _present_left_s(course: Course, expected_s: float, now_s: float) -> float:
    if course.moved is not None and course.progress is not None:
        first_s, gained = course.moved[0], course.progress - course.moved[1]
        if gained >= TRUSTED and now_s > first_s:
            return max(0.0, (now_s - first_s) * (1.0 - course.progress) / gained)
    return max(0.0, expected_s - (now_s - course.since_s))


def _places(last: Boot, names: Sequence[str]) -> list[int | None]:
    """Where each of this boot's steps stands in the last one, in order; None = it was not there."""
    places: list[int | None] = []
    after = 0
    for name in names:
        place = next((index for index in range(after, len(last)) if last[index][0] == name), None)
        places.append(place)
        after = after if place is None else place + 1
    return places
