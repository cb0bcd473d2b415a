"""gateway.learning.paces: ms per token by streams, and the pace of the last five minutes."""

from __future__ import annotations

import random
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.learning.paces import ROLLING_S, Pace, Paces, Together, Written

STUDY_MS = (7.9, 11.0, 14.0, 17.0)


def written(streams: float, ms: float, *, tokens: float = 400, cold: bool = False) -> Written:
    return Written(streams, 1000 / ms, tokens, cold)


def between(streams: float) -> float:
    low = int(streams)
    part = streams - low
    return STUDY_MS[low - 1] * (1 - part) + (STUDY_MS[low] * part if part else 0)


def test_the_studys_table_comes_out_of_replies_with_any_neighbours() -> None:
    rng, paces = random.Random(1), Paces()
    for at in range(400):
        streams = rng.uniform(1, 4) if at % 2 else float(rng.randint(1, 4))
        paces.note(written(streams, between(streams) * rng.uniform(0.95, 1.05)), float(at))
    assert paces.table() == pytest.approx(STUDY_MS, rel=0.06)


def test_a_number_of_streams_that_was_not_measured_is_none() -> None:
    paces = Paces()
    for _ in range(4):
        paces.note(written(3, 14.0), 0.0)
    assert paces.table() == (None, None, 14.0)
    assert Paces().table() == ()


def test_more_streams_are_never_faster() -> None:
    paces = Paces()
    for _ in range(5):
        for streams, ms in ((1, 10.0), (2, 16.0), (3, 12.0)):
            paces.note(written(streams, ms), 0.0)
    assert paces.table() == (10.0, 14.0, 14.0)


def test_a_cold_neighbour_and_a_few_tokens_tell_nothing() -> None:
    paces = Paces()
    for _ in range(10):
        paces.note(written(1, 100.0, cold=True), 0.0)
        paces.note(written(1, 100.0, tokens=31), 0.0)
    assert paces.table() == ()
    assert paces.rolling(0.0) == Pace(None, 0)


def test_the_rolling_pace_is_of_five_minutes_and_of_what_still_runs() -> None:
    paces = Paces()
    paces.note(written(1, 10.0), 0.0)
    paces.note(written(1, 20.0), 100.0)
    assert paces.rolling(200.0) == Pace(75.0, 2)
    assert paces.rolling(ROLLING_S) == Pace(50.0, 1)
    slow, cold, young = written(2, 50.0), written(2, 500.0, cold=True), written(2, 500.0, tokens=10)
    assert paces.rolling(ROLLING_S, [slow, cold, young]) == Pace(35.0, 2)
    paces.forget_rolling(0.0)
    assert paces.rolling(ROLLING_S) == Pace(None, 0)


def test_the_mean_number_of_streams_is_weighted_by_time() -> None:
    together = Together()
    together.decoding(1, 0.0)
    together.decoding(2, 5.0)
    assert together.ended(2, 10.0) == (2.0, False)
    assert together.ended(1, 20.0) == (1.25, False)
    assert together.ended(1, 20.0) is None


def test_a_cold_prompt_is_a_neighbour_of_whoever_decodes_meanwhile() -> None:
    together = Together()
    together.decoding(1, 0.0)
    together.reading(2)
    together.decoding(3, 1.0)
    together.decoding(2, 10.0)
    together.decoding(4, 11.0)
    assert [together.ended(id, 20.0) for id in (1, 3, 2, 4)] == [
        (pytest.approx(2.9), True),
        (pytest.approx(3.0), True),
        (pytest.approx(3.9), False),
        (4.0, False),
    ]


def test_a_cold_prompt_that_was_given_up_is_nobodys_neighbour_afterwards() -> None:
    together = Together()
    together.reading(1)
    assert together.ended(1, 1.0) is None
    together.decoding(2, 2.0)
    assert together.so_far(2, 3.0) == (1.0, False)


REPLIES = st.lists(st.tuples(st.floats(0.5, 300), st.floats(0.01, 1e5), st.floats(0, 1000), st.booleans()), max_size=60)


@given(REPLIES)
def test_the_table_always_rises_and_survives_being_kept(replies: list[tuple[float, float, float, bool]]) -> None:
    paces = Paces()
    for streams, ms, tokens, cold in replies:
        paces.note(written(streams, ms, tokens=tokens, cold=cold), 0.0)
    measured = [ms for ms in paces.table() if ms is not None]
    assert measured == sorted(measured)
    assert Paces.from_dict(orjson.loads(orjson.dumps(paces.as_dict()))).table() == paces.table()


@pytest.mark.parametrize(
    "garbage",
    [
        None,
        {},
        {"replies": []},
        {"replies": {"x": []}},
        {"replies": {"0": []}},
        {"replies": {"9999": []}},
        {"replies": {"1": 5}},
        {"replies": {"1": [[1.0]]}},
        {"replies": {"1": [[-1.0, 1.0]]}},
        {"replies": {"1": [[1.0, 2.0]]}},
    ],
)
def test_garbage_is_refused(garbage: Any) -> None:
    with pytest.raises(ValueError, match="paces"):
        Paces.from_dict(garbage)
