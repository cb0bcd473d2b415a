"""Staging is for steps that would read most cold rows anyway."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.residency.break_even import LARGE_SHARE, TILE_TOKENS, staged_above
from appliance.residency.policy import Policy, Rates

LEAST, LONGEST = 1024, 16_384


def rates(*visits: int, tokens: int = 1000) -> Rates:
    found = Rates(Policy())
    found.count({0: visits}, tokens)
    return found


def above(found: Rates, cold: int, least: int = LEAST) -> int:
    return staged_above(found, {0: range(cold)}, least, LONGEST)


def test_traffic_that_visits_every_expert_alike_is_staged_from_the_start() -> None:
    assert above(rates(*[60] * 128), 42) == LEAST


def test_cold_experts_that_nobody_visits_are_never_copied_for_nothing() -> None:
    assert above(rates(*[0] * 42, *[60] * 86), 42) >= LONGEST


@pytest.mark.parametrize(("visits", "expected"), [(16, 2048), (8, 4096), (4, 8192), (1, LONGEST)])
def test_the_fewer_visits_the_longer_a_step_must_be(visits: int, expected: int) -> None:
    """16 visits in 16,000 tokens: at 2,048 tokens 87 % of such experts are visited, at 1,024 tokens 64 %."""
    assert above(rates(*[visits] * 4, tokens=16_000), 4) == expected


def test_a_few_that_are_visited_much_are_worth_a_copy_of_all_once_they_fill_tiles() -> None:
    often = int(1000 * TILE_TOKENS * 4 * LARGE_SHARE / 4096) + 1
    assert above(rates(often, 0, 0, 0), 4) == 4096


def test_before_anything_is_counted_the_setting_stands() -> None:
    assert above(Rates(Policy()), 42) == LEAST
    assert staged_above(rates(1, 2), {7: (0,)}, LEAST, LONGEST) == LEAST


@pytest.mark.parametrize("least", [0, 1, LONGEST, 2 * LONGEST])
def test_any_setting_comes_to_an_end(least: int) -> None:
    assert above(rates(0, 0), 2, least) >= LONGEST


@given(st.lists(st.integers(0, 3000), min_size=2, max_size=20), st.integers(0, 19), st.integers(0, 500))
def test_more_visits_never_make_it_later(visits: list[int], which: int, more: int) -> None:
    busier = list(visits)
    busier[which % len(visits)] += more
    assert above(rates(*busier), len(visits)) <= above(rates(*visits), len(visits))
