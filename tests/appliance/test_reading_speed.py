"""How long the longest prompt takes, by what the gateway measured here."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.reading_speed import ReadingSpeed
from gateway.learning.learned import NAME, Learned


def measured(state_dir: Path, seconds: float) -> None:
    learned = Learned.load(state_dir)
    learned.of("profile", "model").curve.learn(100_000, 0, seconds)
    assert learned.keep() == ""


def test_nobody_knows_before_it_was_measured_with_this_engine(tmp_path: Path) -> None:
    speed = ReadingSpeed(tmp_path)
    assert speed.longest_prefill_s("profile", "model", 262_144) is None
    measured(tmp_path, 20.0)
    assert speed.longest_prefill_s("profile", "another", 262_144) is None


def test_what_was_measured_is_taken_for_the_whole_window_and_followed(tmp_path: Path) -> None:
    speed = ReadingSpeed(tmp_path)
    measured(tmp_path, 20.0)
    first = speed.longest_prefill_s("profile", "model", 100_000)
    assert first == pytest.approx(20.0, rel=0.05)
    longer = speed.longest_prefill_s("profile", "model", 262_144)
    assert longer is not None
    assert first is not None
    assert longer > 2 * first
    for _ in range(8):
        measured(tmp_path, 40.0)
    assert speed.longest_prefill_s("profile", "model", 100_000) == pytest.approx(40.0, rel=0.05)


def test_a_file_that_holds_something_else_says_nothing(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text("{")
    assert ReadingSpeed(tmp_path).longest_prefill_s("profile", "model", 1) is None
