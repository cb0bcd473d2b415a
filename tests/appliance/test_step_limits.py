"""Which steps of a start stand still, and which show life."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.engine.adapter import Step
from appliance.engine.step_limits import (
    CARD_BYTES,
    FIRST_FACTOR,
    LOOK_MAX_S,
    READ_BYTES,
    Life,
    announced,
    looked,
    timeout,
)

LOADING = Step("loading the weights", 0.62, 60.0)


def silent(life: Life, seconds: int, read_bytes: int = 0, card_bytes: int | None = None) -> Life:
    """`life` after so many seconds in looks of two."""
    for _ in range(seconds // 2):
        life = looked(life, 2.0, read_bytes, card_bytes)
    return life


def test_a_step_that_shows_nothing_for_its_limit_has_failed_and_is_named() -> None:
    life = announced(Life(), LOADING)
    assert timeout(silent(life, 58), first=False) is None
    cause = timeout(silent(life, 60), first=False)
    assert cause is not None
    assert (cause.id, cause.retry) == ("engine.step_timeout", True)
    assert "loading the weights" in cause.title
    assert "60 s" in cause.title


def test_a_first_start_may_be_silent_for_longer() -> None:
    life = announced(Life(), LOADING)
    assert timeout(silent(life, int(60 * FIRST_FACTOR) - 2), first=True) is None
    assert timeout(silent(life, int(60 * FIRST_FACTOR)), first=True) is not None


def test_a_step_without_a_limit_never_fails() -> None:
    assert timeout(silent(announced(Life(), Step("compiling")), 100_000), first=False) is None


@pytest.mark.parametrize("sign", [Step("loading the weights", 0.63, 60.0), Step("capturing", None, 60.0)])
def test_a_new_percent_and_a_new_step_are_signs_of_life(sign: Step) -> None:
    assert announced(silent(announced(Life(), LOADING), 40), sign).silent_s == 0.0


def test_the_same_line_again_is_none() -> None:
    assert announced(silent(announced(Life(), LOADING), 40), LOADING).silent_s == 40.0


def test_bytes_that_are_read_are_a_sign_of_life_once_they_are_more_than_polling() -> None:
    life = announced(Life(), LOADING)
    assert timeout(silent(life, 600, READ_BYTES), first=False) is None
    assert timeout(silent(life, 60, 4_000), first=False) is not None


def test_a_card_that_fills_is_a_sign_of_life() -> None:
    life = looked(announced(Life(), LOADING), 2.0, 0, 0)
    filled = silent(looked(life, 2.0, 0, CARD_BYTES), 10, 0, CARD_BYTES)
    assert filled.silent_s == 10.0
    assert silent(life, 10, 0, CARD_BYTES - 1).silent_s == 12.0


@given(st.floats(0, 1e9))
def test_a_daemon_that_stood_still_counts_one_look(elapsed_s: float) -> None:
    assert looked(Life(), elapsed_s, 0, None).silent_s <= LOOK_MAX_S


@given(st.lists(st.tuples(st.floats(0, 10), st.integers(0, 1 << 21), st.none() | st.integers(0, 1 << 34))))
def test_silence_never_exceeds_the_time_that_passed(looks: list[tuple[float, int, int | None]]) -> None:
    life, passed_s = announced(Life(), LOADING), 0.0
    for elapsed_s, read, cards in looks:
        life, passed_s = looked(life, elapsed_s, read, cards), passed_s + elapsed_s
        assert 0 <= life.silent_s <= passed_s + 1e-6
        assert life.step == LOADING
        assert life.read_bytes < READ_BYTES
