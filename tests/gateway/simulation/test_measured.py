"""A box's own measurements as the pace of a simulation."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.learning.paces import Paces, Written
from gateway.learning.prefill_curve import PrefillCurve
from gateway.simulation.measured import measured_pace
from gateway.simulation.pace import STUDY


def wrote(ms_by_streams: dict[int, float]) -> Paces:
    paces = Paces()
    for streams, ms in ms_by_streams.items():
        for _ in range(5):
            paces.note(Written(float(streams), 1000 / ms, 400, False), 0.0)
    return paces


def read(scale: float) -> PrefillCurve:
    curve = PrefillCurve()
    for tokens in (2_000, 8_000, 20_000, 60_000, 100_000):
        for _ in range(2):
            curve.learn(tokens, 0, 0.3 + scale * STUDY.prefill_s(tokens, tokens))
    return curve


def test_reading_is_what_the_gateway_predicts() -> None:
    pace = measured_pace(read(3.0), wrote({1: 10.0}), "m on e")
    assert pace.prefill_s(100_000, 100_000) == pytest.approx(3 * STUDY.prefill_s(100_000, 100_000), rel=0.02)
    assert pace.source == "what this box measured of m on e"


def test_numbers_of_streams_that_were_not_measured_lie_between_and_beyond_in_proportion() -> None:
    pace = measured_pace(read(1.0), wrote({2: 22.0, 4: 34.0}), "e")
    assert pace.ms_per_token == pytest.approx((15.8, 22.0, 28.0, 34.0, 38.0, 42.0, 48.0, 54.0))


def test_what_nobody_measured_is_the_studys_and_is_named() -> None:
    only_read = measured_pace(read(2.0), Paces(), "e")
    assert only_read.ms_per_token == STUDY.ms_per_token
    assert only_read.source == "what this box measured of e (writing: nothing yet, so the study's)"
    only_written = measured_pace(PrefillCurve(), wrote({1: 10.0}), "e")
    assert (only_written.a, only_written.b) == (STUDY.a, STUDY.b)
    assert "(reading: nothing yet" in only_written.source
    assert (only_read.reading_share, only_read.reload_tok_per_s) == (STUDY.reading_share, STUDY.reload_tok_per_s)


@given(st.dictionaries(st.integers(1, 40), st.floats(0.1, 1000), min_size=1, max_size=6))
def test_more_streams_are_never_faster_each(ms_by_streams: dict[int, float]) -> None:
    pace = measured_pace(PrefillCurve(), wrote(ms_by_streams), "e")
    assert all(more >= fewer * (1 - 1e-9) for fewer, more in pairwise(pace.ms_per_token))
    assert all(pace.tok_per_s(streams) > 0 for streams in range(1, 60))
