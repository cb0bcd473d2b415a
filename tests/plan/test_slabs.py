"""How a layer's experts are split between card and host."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.checkpoint.catalogue import ExpertParameter
from appliance.plan.slabs import Staging, rounded, split, staging_of
from appliance.residency.layout import CHUNK_BYTES, PAGE_BYTES
from appliance.residency.staging import PARTS

MIB = 1 << 20
rows = st.integers(1, 3 * PAGE_BYTES)


def test_cold_rows_of_less_than_a_page_stay_on_the_card() -> None:
    parameter = ExpertParameter("w13_weight", 8, 1000)

    assert split([parameter], 7, 1).card_bytes == 8000
    assert split([parameter], 7, 1).slabs == ()


def test_cold_rows_on_the_page_where_the_hot_ones_end_are_in_vram() -> None:
    parameter = ExpertParameter("w2_weight", 4, 3 * MIB)

    found = [split([parameter], cold, 1) for cold in range(5)]

    assert [part.card_bytes // MIB for part in found] == [12, 9, 6, 3, 0]
    assert [part.boundary_bytes // MIB for part in found] == [0, 1, 0, 1, 0]
    assert [part.host_bytes // MIB for part in found] == [0, 2, 6, 8, 12]


def test_the_end_of_the_last_page_is_in_host_ram() -> None:
    found = split([ExpertParameter("w2_weight", 3, 3 * MIB)], 2, 1)

    assert (found.card_bytes, found.boundary_bytes, found.host_bytes) == (3 * MIB, MIB, 6 * MIB)


@pytest.mark.parametrize("other", ["w13_weight_scale", "w13_weight_scale_inv", "w13_scales", "w13_qzeros", "w13_bias"])
def test_of_what_stock_vllm_reads_only_weights_leave_the_card(other: str) -> None:
    weight, beside = ExpertParameter("w13_weight", 8, 4 * MIB), ExpertParameter(other, 8, 2 * MIB)

    found = split([weight, beside], 3, 1)

    assert found.slabs == (12 * MIB,)
    assert found.card_bytes == 5 * 4 * MIB + 8 * 2 * MIB


@pytest.mark.parametrize("names", [("w13_trellis", "w13_svh"), ("ffn_gate_exps", "ffn_down_exps")])
def test_where_nothing_is_a_weight_of_stock_vllm_all_of_it_may_leave(names: tuple[str, str]) -> None:
    found = split([ExpertParameter(name, 8, 4 * MIB) for name in names], 3, 1)

    assert found.slabs == (12 * MIB, 12 * MIB)


def test_replicated_bytes_are_not_cut() -> None:
    parameter = ExpertParameter("w13_suh", 4, 2 * PAGE_BYTES, PAGE_BYTES)

    found = split([parameter], 1, 2)

    assert found.cold_bytes == PAGE_BYTES * 3 // 2
    assert found.card_bytes == 3 * PAGE_BYTES * 3 // 2


@given(st.lists(rows, min_size=1, max_size=4), st.integers(1, 9), st.data(), st.integers(1, 4))
def test_card_and_host_hold_all_rows_between_them(sizes: list[int], held: int, data: st.DataObject, tp: int) -> None:
    parameters = [ExpertParameter(str(size), held, size) for size in sizes]
    cold = data.draw(st.integers(0, held))

    found = split(parameters, cold, tp)

    whole = sum(held * one.rank_row_bytes(tp) for one in parameters)
    assert found.card_bytes + found.cold_bytes == whole
    assert 0 <= found.vram_bytes + found.host_bytes - whole < max(1, len(found.slabs) * PAGE_BYTES)
    assert 0 <= found.boundary_bytes <= len(found.slabs) * (PAGE_BYTES - 1)
    assert all(slab and slab % PAGE_BYTES == 0 for slab in found.slabs)


@given(st.lists(rows, min_size=1, max_size=4), st.integers(2, 9), st.data())
def test_one_more_cold_expert_never_takes_from_the_host(sizes: list[int], held: int, data: st.DataObject) -> None:
    parameters = [ExpertParameter(str(size), held, size) for size in sizes]
    cold = data.draw(st.integers(0, held - 1))

    before, after = split(parameters, cold, 1), split(parameters, cold + 1, 1)

    assert after.vram_bytes <= before.vram_bytes
    assert after.host_bytes >= before.host_bytes
    assert after.staging.total_bytes >= before.staging.total_bytes


def test_staging_is_as_many_chunks_as_the_fullest_layer_asks_and_a_scratch_of_the_largest_row() -> None:
    weights = [ExpertParameter("w13_weight", 64, 2 * MIB), ExpertParameter("w2_weight", 64, MIB)]

    found = staging_of(split(weights, cold, 1) for cold in (0, 19, 3))

    assert found == Staging(PARTS * (3 + 2) * CHUNK_BYTES, PAGE_BYTES)
    assert found.total_bytes == found.parts_bytes + found.scratch_bytes


def test_staging_serves_the_fullest_layer_and_the_largest_row_wherever_they_are() -> None:
    found = staging_of(
        split([ExpertParameter("w13_weight", 64, row * MIB)], cold, 1) for row, cold in ((2, 19), (8, 1))
    )

    assert found == Staging(PARTS * 3 * CHUNK_BYTES, 8 * MIB)


def test_another_engine_stages_the_rows_of_one_layer() -> None:
    found = staging_of(split([ExpertParameter("w13_trellis", 64, 2 * MIB)], cold, 1) for cold in (3, 19))

    assert found == Staging(38 * MIB)


def test_without_slabs_nothing_is_staged() -> None:
    assert staging_of([split([ExpertParameter("w13_weight", 8, 1000)], 7, 1)]).total_bytes == 0
    assert staging_of([]).total_bytes == 0


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
