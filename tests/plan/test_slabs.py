"""How a layer's experts are split between card and host."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from appliance.checkpoint.catalogue import ExpertParameter
from appliance.plan.slabs import PAGE_BYTES, rounded, split

rows = st.integers(1, 3 * PAGE_BYTES)


def test_cold_rows_of_less_than_a_page_stay_on_the_card() -> None:
    parameter = ExpertParameter("w13", 8, 1000)

    assert split([parameter], 7, 1).card_bytes == 8000
    assert split([parameter], 7, 1).slabs == ()


def test_a_partly_cold_tensor_has_one_boundary_page_and_a_wholly_cold_one_has_none() -> None:
    parameter = ExpertParameter("w13", 4, PAGE_BYTES)

    assert [split([parameter], cold, 1).boundary_bytes for cold in range(5)] == [
        0,
        PAGE_BYTES,
        PAGE_BYTES,
        PAGE_BYTES,
        0,
    ]


def test_replicated_bytes_are_not_cut() -> None:
    parameter = ExpertParameter("w13_suh", 4, 2 * PAGE_BYTES, PAGE_BYTES)

    found = split([parameter], 1, 2)

    assert found.slabs == (PAGE_BYTES * 3 // 2,)
    assert found.card_bytes == 3 * PAGE_BYTES * 3 // 2


@given(st.lists(rows, min_size=1, max_size=4), st.integers(1, 9), st.data(), st.integers(1, 4))
def test_card_and_host_hold_all_rows_between_them(sizes: list[int], held: int, data: st.DataObject, tp: int) -> None:
    parameters = [ExpertParameter(str(size), held, size) for size in sizes]
    cold = data.draw(st.integers(0, held))

    found = split(parameters, cold, tp)

    assert found.card_bytes + found.host_bytes == sum(held * one.rank_row_bytes(tp) for one in parameters)
    assert all(slab >= PAGE_BYTES for slab in found.slabs)


@given(st.integers(1, 2**50))
def test_rounding_gives_the_least_power_of_two_that_holds_it(count: int) -> None:
    found = rounded(count)

    assert found.bit_count() == 1
    assert found // 2 < count <= found


def test_nothing_rounds_to_nothing() -> None:
    assert rounded(0) == 0


def test_more_cold_experts_than_a_tensor_has_rows_are_all_of_its_rows() -> None:
    parameter = ExpertParameter("w2_weight", 4, PAGE_BYTES)

    assert split([parameter], 9, 1) == split([parameter], 4, 1)
