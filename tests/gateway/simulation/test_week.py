"""A developer's week as one of the simulation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.simulation import pace
from gateway.simulation.week import developer_of
from gateway.sizing.profile import STUDY


def test_the_studys_week_is_the_studys_developer() -> None:
    found = developer_of(STUDY, 40.0, pace.STUDY)
    assert (found.reply_tokens, found.input_tokens) == (400, 3500)
    assert found.think_s == pytest.approx(1320, rel=0.01)


def test_twice_the_work_in_the_same_time_leaves_less_to_think() -> None:
    found = developer_of(replace(STUDY, output_tokens=2 * STUDY.output_tokens), 40.0, pace.STUDY)
    assert 400 < found.think_s < 660


def test_more_than_can_be_written_leaves_none() -> None:
    assert developer_of(replace(STUDY, output_tokens=1e9), 40.0, pace.STUDY).think_s == 0
