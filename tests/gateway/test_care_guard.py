"""gateway.care and its floor guard: a change of the cap is judged by what came after it, however short the window."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.learning.floor_guard import CapChange, Terms, Why
from gateway.meter import Usage
from tests.gateway.test_care import Desk

WINDOW_S = 60.0
TERMS = Terms("one", 40.0, 4, WINDOW_S)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def written(desk: Desk, tok_per_s: float, seconds: float) -> list[CapChange]:
    """Replies of 5 s, one after the other, at that pace; what the guard changes meanwhile, looking after each."""
    changes = []
    end_s = desk.now_s + seconds
    while desk.now_s < end_s:
        prompt, tap = desk.prompt("hi", str(desk.count))
        desk.reply(prompt, tap, tokens=round(5 * tok_per_s), seconds=5.0)
        changes.append(desk.care.guarded(desk.now_s, TERMS))
    return [change for change in changes if change is not None]


def test_a_lowering_that_helped_is_kept_although_the_window_is_shorter_than_the_rolling_pace(desk: Desk) -> None:
    changes: list[CapChange] = []
    while not changes:
        changes = written(desk, 30.0, 5.0)
    assert [change.why for change in changes] == [Why.SLOW]
    assert desk.care.pace(desk.now_s).replies == 0
    assert written(desk, 45.0, 3 * WINDOW_S) == []
    assert desk.care.cap == 3


def test_a_reply_that_began_before_a_lowering_tells_nothing_of_it(desk: Desk) -> None:
    long, tap = desk.prompt("a long answer")
    desk.granted(long)
    tap.meter.first_token_s = desk.now_s
    long.first_token()
    while not written(desk, 30.0, 5.0):
        pass
    tap.meter.last_token_s, tap.meter.events = desk.now_s, 2000
    assert desk.care.pace(desk.now_s).replies == 0
    tap.meter.usage, tap.whole = Usage(4, 2000, 0), True
    long.over()
    assert desk.care.pace(desk.now_s).replies == 0
