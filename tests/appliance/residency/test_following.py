"""What is made of a reading: rates by expert, whatever row they stood in, and swaps within what the link is allowed."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.residency.document import Residency
from appliance.residency.following import MIB, Following

EXPERTS, COLD = 8, 3
ROUND_BYTES = 1 << 30


def following(mib_per_s: int = 1000, row_bytes: int = MIB) -> Following:
    residency = Residency("", "m", 2, EXPERTS, 2, 1, {0: tuple(range(COLD)), 1: ()}, {}, ())
    return Following(residency, {0: row_bytes, 1: row_bytes}, mib_per_s, ROUND_BYTES)


ORDER = st.permutations(range(EXPERTS))


@given(order=ORDER, visits=st.lists(st.integers(0, 50), min_size=EXPERTS, max_size=EXPERTS))
def test_visits_are_counted_by_expert_and_the_last_rows_are_the_cold_ones(order: list[int], visits: list[int]) -> None:
    found = following()
    figures = found.hear(100, 2.0, {0: [visits[expert] for expert in order]}, {0: order})
    assert found.totals == {0: visits}
    assert figures.visits == sum(visits)
    assert figures.cold_visits == sum(visits[expert] for expert in order[-COLD:])
    assert figures.cold_bytes == figures.cold_visits * MIB
    assert found.cold({0: order}) == {0: sorted(order[-COLD:])}


def test_a_layer_without_cold_experts_is_counted_but_never_exchanged() -> None:
    found, order = following(), list(range(EXPERTS))
    found.hear(100, 1.0, {0: [0] * EXPERTS, 1: [0] * 7 + [500]}, {0: order, 1: order})
    assert found.totals[1][7] == 500
    assert found.decide(1.0, {0: order, 1: order}) == ()


def test_a_layer_whose_cold_rows_fill_no_page_is_in_vram_and_none_of_its_experts_cold() -> None:
    found = following()
    found.row_bytes = {1: MIB}
    figures = found.hear(1000, 1.0, {0: [900, 900, 900, 0, 0, 0, 0, 0]}, {0: range(EXPERTS)})
    assert figures.cold_visits == 0
    assert found.decide(1.0, {0: range(EXPERTS)}) == ()


def test_between_layers_the_engine_may_go_on() -> None:
    rests: list[int] = []
    found = following()
    found.rest = lambda: rests.append(1)
    found.hear(1000, 1.0, {0: [900, 0, 0, 0, 0, 0, 0, 900], 1: [1] * EXPERTS}, {0: range(EXPERTS), 1: range(EXPERTS)})
    heard = len(rests)
    assert heard >= 2 * 2
    found.decide(1.0, {0: range(EXPERTS), 1: range(EXPERTS)})
    assert len(rests) > heard


def test_what_is_decided_rests_on_where_rows_stand_now() -> None:
    found = following()
    found.hear(1000, 1.0, {0: [900, 0, 0, 0, 0, 0, 0, 900]}, {0: range(EXPERTS)})
    swapped = found.decide(1.0, {0: [7, 1, 2, 3, 4, 5, 6, 0]})
    assert [(swap.hot, swap.cold) for swap in swapped] == [(1, 0)]
    assert found.swapped == 1


@pytest.mark.parametrize(("seconds", "most"), [(0.0, 0), (1.0, 1), (1e9, COLD)])
def test_a_round_moves_no_more_than_the_link_is_allowed(seconds: float, most: int) -> None:
    found = following(mib_per_s=2)
    found.hear(1000, 1.0, {0: [0, 0, 0, 0, 0, 900, 900, 900]}, {0: range(EXPERTS)})
    assert len(found.decide(seconds, {0: range(EXPERTS)})) == most


@pytest.mark.parametrize("row_bytes", [ROUND_BYTES // 2, ROUND_BYTES])
def test_nor_than_its_steps_carry_or_one_swap(row_bytes: int) -> None:
    found = following(mib_per_s=10**6, row_bytes=row_bytes)
    found.hear(1000, 1.0, {0: [0, 0, 0, 0, 0, 900, 900, 900]}, {0: range(EXPERTS)})
    assert len(found.decide(3600.0, {0: range(EXPERTS)})) == 1


def test_rounds_of_skewed_traffic_bring_the_cold_share_to_the_best_there_is() -> None:
    found, order, chance = following(), list(range(EXPERTS)), random.Random(5)
    chances = [100, 90, 80, 1, 1, 1, 1, 1]
    for _ in range(10):
        visits = [0] * EXPERTS
        for expert in chance.choices(range(EXPERTS), chances, k=1000):
            visits[expert] += 1
        figures = found.hear(500, 1.0, {0: [visits[expert] for expert in order]}, {0: list(order)})
        for swap in found.decide(1.0, {0: order}):
            here, there = order.index(swap.hot), order.index(swap.cold)
            order[here], order[there] = order[there], order[here]
    assert figures.cold_visits / figures.visits < 0.03
