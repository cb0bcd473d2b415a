"""In which order experts go to the host."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from appliance.plan import order

tables = st.dictionaries(st.integers(0, 9), st.integers(0, 6).map(lambda count: tuple(range(count))), max_size=5)
visits = st.lists(st.integers(0, 5), min_size=1, max_size=8)


@given(visits, st.integers(0, 8))
def test_the_hottest_of_a_layer_are_kept(counts: list[int], keep: int) -> None:
    going = order.candidates(len(counts), keep, counts)

    kept = set(range(len(counts))).difference(going)
    assert len(kept) == min(keep, len(counts))
    assert max((counts[one] for one in going), default=0) <= min((counts[one] for one in kept), default=5)


def test_without_counts_the_last_of_a_layer_are_kept() -> None:
    assert order.candidates(5, 2) == (0, 1, 2)


@given(tables)
def test_uniform_takes_always_from_the_layer_with_the_fewest_cold_ones(going: dict[int, tuple[int, ...]]) -> None:
    cold: Counter[int] = Counter()
    left = {layer: list(experts) for layer, experts in going.items()}

    for layer, experts in order.level(going):
        open_ = [one for one in left if left[one]]
        assert layer == min(open_, key=lambda one: (cold[one], one))
        assert experts == (left[layer].pop(0),)
        cold[layer] += 1

    assert not any(left.values())


@given(st.lists(visits, min_size=1, max_size=4), st.integers(0, 3))
def test_coldest_first_never_goes_from_a_colder_one_to_a_hotter_one_too_early(
    counts: list[list[int]], keep: int
) -> None:
    table = dict(enumerate(counts))
    going = {layer: order.candidates(len(row), keep, row) for layer, row in table.items()}

    taken = [(table[layer][expert], layer, expert) for layer, (expert,) in order.coldest_first(going, table)]

    assert taken == sorted(taken)
    assert len(taken) == sum(map(len, going.values()))


def test_layers_go_from_the_last_one_down_or_as_listed() -> None:
    going = {0: (0, 1), 1: (), 2: (0,)}

    assert list(order.by_layer(going)) == [(2, (0,)), (0, (0, 1))]
    assert list(order.by_layer(going, (0, 1))) == [(0, (0, 1))]
