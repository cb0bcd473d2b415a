"""gateway.care: what holds for one start of the engine, and what counts as cold beside others."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.learning.prompt import CanonicalPrompt
from tests.gateway.test_care import LONG, Desk


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_a_new_start_of_the_engine_is_not_judged_by_the_paces_of_the_last_one(desk: Desk) -> None:
    for _ in range(3):
        desk.reply(*desk.prompt("hi", str(desk.count)))
    assert desk.care.pace(desk.now_s).replies == 3
    desk.start("two")
    assert desk.care.pace(desk.now_s).replies == 0
    assert desk.care.known.paces.table(), "but what it was measured to be at all is known on"


def test_a_long_prompt_that_is_cached_is_no_cold_neighbour(desk: Desk) -> None:
    desk.reply(*desk.prompt(LONG))
    other, tap = desk.prompt("hi")
    desk.granted(other)
    desk.now_s += 1.0
    tap.meter.first_token_s = tap.meter.last_token_s = desk.now_s
    other.first_token()
    again, _ = desk.prompt(LONG, "yes", "go on")
    desk.granted(again)
    desk.now_s += 2.0
    tap.meter.last_token_s, tap.meter.events = desk.now_s, 101
    pace = desk.care.pace(desk.now_s)
    assert pace.replies == 2
    assert pace.tok_per_s == pytest.approx((49.5 + 50.0) / 2, abs=0.01), "the first token is no part of the time"


def test_what_the_last_start_had_read_is_missed_by_nobody_in_the_next(desk: Desk) -> None:
    watch = desk.care.watch
    for count in range(1, 8):
        if count > 1:
            desk.start(f"start {count}")
        prompt = CanonicalPrompt.of({"messages": [{"role": "user", "content": LONG} for _ in range(count)]})
        turn = watch.came("run", "ana", "claude-cli", prompt, desk.now_s)
        watch.ended(turn, 50_000 * count, 0, desk.care.known.curve.predict_s, desk.now_s)
    [row] = watch.rows(desk.now_s)
    assert (row.missed, row.expected_share) == (0, 0.0)
