"""What is visited comes to VRAM, within the bytes allowed, and what is equal stays where it is."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.residency.policy import Policy, Rates, Swap, swaps

EXPERTS, TOP_K, ROW = 32, 4, 1000


def counted(weights: Sequence[float], tokens: int, seed: int) -> list[int]:
    """Visits of `tokens` tokens that choose TOP_K experts each, by weight and without choosing one twice."""
    chance, visits = random.Random(seed), [0] * len(weights)
    for _ in range(tokens):
        keys = sorted(range(len(weights)), key=lambda one: chance.random() ** (1 / weights[one]), reverse=True)
        for one in keys[:TOP_K]:
            visits[one] += 1
    return visits


def zipf(shift: int) -> list[float]:
    return [1.0 / (1 + (one - shift) % EXPERTS) for one in range(EXPERTS)]


def after(rates: Rates, cold: dict[int, list[int]], most_bytes: int) -> dict[int, list[int]]:
    """The cold experts once what is to be swapped was swapped."""
    made = swaps(rates, cold, ROW, most_bytes)
    gone = {(swap.layer, swap.cold) for swap in made}
    kept = {layer: [one for one in experts if (layer, one) not in gone] for layer, experts in cold.items()}
    return {layer: sorted(kept[layer] + [swap.hot for swap in made if swap.layer == layer]) for layer in cold}


RATES = st.lists(st.lists(st.integers(0, 200), min_size=EXPERTS, max_size=EXPERTS), min_size=1, max_size=4)


@given(visits=RATES, cold=st.sets(st.integers(0, EXPERTS - 1)), room=st.integers(0, 40_000), data=st.data())
def test_each_swap_pays_brings_one_in_for_one_out_and_all_fit_the_bytes(
    visits: list[list[int]], cold: set[int], room: int, data: st.DataObject
) -> None:
    pays, sure = data.draw(st.sampled_from([1.0, 4.0, 50.0])), data.draw(st.sampled_from([0.0, 4.0]))
    rates = Rates(Policy(pays_hits=pays, sure=sure))
    rates.count(dict(enumerate(visits)), 1000)
    found = swaps(rates, dict.fromkeys(range(len(visits)), sorted(cold)), ROW, room)
    assert 2 * ROW * len(found) <= room
    assert all(swap.cold in cold and swap.hot not in cold for swap in found)
    assert all(visits[swap.layer][swap.cold] - visits[swap.layer][swap.hot] >= rates.policy.pays_hits for swap in found)
    assert len({(swap.layer, one) for swap in found for one in (swap.hot, swap.cold)}) == 2 * len(found)
    assert [swap.saves for swap in found] == sorted((swap.saves for swap in found), reverse=True)


@given(visits=RATES, cold=st.sets(st.integers(0, EXPERTS - 1)))
def test_with_room_for_all_no_cold_expert_is_left_that_would_pay(visits: list[list[int]], cold: set[int]) -> None:
    rates = Rates(Policy(sure=0))
    rates.count(dict(enumerate(visits)), 1000)
    left = after(rates, dict.fromkeys(range(len(visits)), sorted(cold)), 1 << 30)
    for layer, experts in left.items():
        hot = [visits[layer][one] for one in range(EXPERTS) if one not in experts]
        most = max((visits[layer][one] for one in experts), default=0)
        assert not hot or most - min(hot) < rates.policy.pays_hits + 1e-6


@pytest.mark.parametrize("shift", [8, 16, 29])
def test_after_a_shift_of_the_hot_set_the_cold_share_is_soon_near_the_best(shift: int) -> None:
    rates, weights = Rates(Policy(half_life_tokens=2000)), zipf(0)
    cold = {0: sorted(range(EXPERTS), key=lambda one: weights[one])[:10]}
    rates.count({0: counted(weights, 3000, 1)}, 3000)
    weights = zipf(shift)
    best = {0: sorted(range(EXPERTS), key=lambda one: weights[one])[:10]}
    for round_ in range(20):
        rates.count({0: counted(weights, 500, 100 + round_)}, 500)
        cold = after(rates, cold, 4 * ROW)
    now = Rates(Policy())
    now.count({0: counted(weights, 5000, 7)}, 5000)
    assert now.cold_share(cold) <= 1.1 * now.cold_share(best)


def moved_by_even_traffic(policy: Policy) -> int:
    rates, cold, moved = Rates(policy), {0: list(range(10)), 1: list(range(10, 20))}, 0
    for round_ in range(60):
        rates.count({layer: counted([1.0] * EXPERTS, 300, 10 * round_ + layer) for layer in cold}, 300)
        moved += len(swaps(rates, cold, ROW, 1 << 30))
        cold = after(rates, cold, 1 << 30)
    return moved


def test_traffic_without_favourites_moves_little_though_of_many_counts_some_differ() -> None:
    policy = Policy(half_life_tokens=2000)
    moved = moved_by_even_traffic(policy)
    assert moved * 4 < moved_by_even_traffic(replace(policy, sure=0))
    assert moved < 60


def test_a_layer_that_is_left_out_of_a_count_had_no_visits() -> None:
    rates = Rates(Policy(half_life_tokens=100))
    rates.count({0: [8, 0], 1: [8, 0]}, 100)
    rates.count({1: [0, 8]}, 100)
    assert rates.visits == {0: [4.0, 0.0], 1: [4.0, 8.0]}


def test_cold_layers_that_were_not_counted_yet_have_no_share() -> None:
    rates = Rates(Policy())
    rates.count({0: [3, 1]}, 4)
    assert rates.cold_share({0: [1], 7: [0]}) == 0.25


def test_steady_traffic_soon_moves_nothing_any_more() -> None:
    rates, weights = Rates(Policy(pays_hits=40, half_life_tokens=4000)), zipf(0)
    cold = {0: sorted(range(EXPERTS), key=lambda one: weights[one])[:10]}
    moved = []
    for round_ in range(40):
        rates.count({0: counted(weights, 500, round_)}, 500)
        before, cold = cold, after(rates, cold, 1 << 30)
        moved.append(before != cold)
    assert not any(moved[10:])


def other(rates: Rates, cold: dict[int, list[int]], visits: list[int]) -> bool:
    there = sum(visits[one] for one in cold[0])
    return rates.is_other(there, sum(visits), cold)


def test_traffic_that_goes_where_nobody_went_is_other_traffic_and_weighs_more_at_once() -> None:
    rates, cold = Rates(Policy()), {0: list(range(8, 16))}
    rates.count({0: [400] * 8 + [10] * 24}, 4000)
    assert not other(rates, cold, [40] * 8 + [2] * 24)
    assert other(rates, cold, [1] * 8 + [40] * 24)
    rates.forget()
    rates.count({0: [1] * 8 + [40] * 24}, 500)
    assert rates.rate(0, 8) > rates.rate(0, 0)


def test_requests_that_each_go_elsewhere_are_one_traffic() -> None:
    rates, cold, forgot = Rates(Policy()), {0: list(range(8, 16))}, 0
    for request in range(60):
        visits = [100 if one % 4 == request % 4 else 1 for one in range(EXPERTS)]
        if other(rates, cold, visits):
            rates.forget()
            forgot += 1
        rates.count({0: visits}, 128)
    assert forgot <= 60 * 128 // rates.policy.other_tokens


def test_nothing_counted_moves_nothing() -> None:
    rates = Rates(Policy())
    assert swaps(rates, {0: [1]}, ROW, 1 << 30) == ()
    assert rates.cold_share({}) == 0.0
    rates.count({0: [0, 0]}, 0)
    assert swaps(rates, {0: [1]}, ROW, 1 << 30) == ()
    assert rates.rate(0, 1) == 0.0


def test_an_idle_box_forgets_nothing() -> None:
    rates = Rates(Policy())
    rates.count({0: [5, 1]}, 10)
    before = rates.rate(0, 0)
    rates.count({0: [0, 0]}, 0)
    assert rates.rate(0, 0) == before


def test_a_swap_is_told_with_what_it_saves() -> None:
    rates = Rates(Policy(pays_hits=1, sure=1))
    rates.count({0: [1, 9]}, 10)
    assert swaps(rates, {0: [1]}, ROW, 2 * ROW) == (Swap(0, 0, 1, 0.8),)
    assert swaps(rates, {0: [1]}, ROW, 2 * ROW - 1) == ()
