"""The budget: every byte is somewhere, and every line says where it comes from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.checkpoint.catalogue import Catalogue, Load, TensorClass
from appliance.errors import PlanError
from appliance.plan import ranges
from appliance.plan.budget import Budget, budget
from appliance.plan.memory import BoxMemory, stated
from appliance.plan.planner import plan_for
from appliance.plan.request import Request
from appliance.plan.schema import HostEngram, Plan, PlanHost, Targets
from appliance.residency.layout import CHUNK_BYTES, PAGE_BYTES
from appliance.residency.staging import PARTS
from appliance.units import GIB
from gateway.state import BudgetBar, BudgetLine, Moment
from tests.checkpoint.packs.fixtures import GGUF, PACKS, catalogue
from tests.plan import small

ROOM = 1 << 44


def plan(found: Catalogue, tp: int = 1, targets: Targets = small.NO_RESERVES, **host: Any) -> Plan:
    """What `host` says, and nothing else on the host."""
    made = plan_for(found, small.MODEL, Request(ROOM, tp=1, targets=targets, engram="vram"))
    cards = made.topology.model_copy(update={"tp": tp})
    return made.model_copy(update={"topology": cards, "host": PlanHost(**{"engram": made.host.engram, **host})})


def of(found: Catalogue, made: Plan, memory: BoxMemory | None = None, shard: int = 0) -> Budget:
    return budget(found, made, memory or stated(ROOM, made.topology.tp), shard)


def line(bar: BudgetBar, name: str) -> BudgetLine:
    return next(one for one in bar.lines if one.id == name)


@pytest.mark.parametrize("name", [*PACKS, *GGUF])
def test_with_everything_on_one_card_the_weights_are_the_headers_bytes(name: str) -> None:
    found = catalogue(name)
    never = sum(part.whole_bytes for parts in found.classes.values() for part in parts if part.load is Load.NEVER)

    made = of(found, plan(found, targets=small.NO_RESERVES.model_copy(update={"vision": True})))

    padding = sum(
        one.rows * (one.rank_row_bytes(1) - one.row_bytes)
        for tensors in (*found.experts.values(), *found.draft_experts.values())
        for one in tensors
    )
    assert made.weights_bytes == sum(found.whole_bytes(cls) for cls in TensorClass) - never + padding
    assert (padding > 0) == (name == "gpt-oss")
    assert made.host_bytes == 0


@given(st.data())
def test_card_and_host_hold_every_loaded_byte_between_them(data: st.DataObject) -> None:
    found = data.draw(small.catalogues())
    cold = st.sets(st.integers(0, found.geometry.experts - 1)).map(ranges.spell)
    tensors = data.draw(st.sets(st.sampled_from(sorted(small.NAMED))))
    mode = data.draw(st.sampled_from(["pinned", "vram"]))
    engram = HostEngram(mode=mode) if found.classes[TensorClass.ENGRAM] else None
    experts = {str(layer): data.draw(cold) for layer in found.experts}

    made = of(found, plan(found, experts=experts, tensors=tensors, engram=engram))

    loaded = [part for parts in found.classes.values() for part in parts if part.load in (Load.ALWAYS, Load.DRAFT)]
    held = made.weights_bytes + line(made.gpus[0], "boundary").bytes + made.host_bytes
    slabs = len(tensors) + sum(map(len, found.experts.values()))
    assert 0 <= held - sum(part.whole_bytes for part in loaded) <= slabs * (PAGE_BYTES - 1)


def test_cold_draft_experts_leave_the_card_for_the_host() -> None:
    found = small.with_draft(small.catalogue())

    bare, moved = of(found, plan(found)), of(found, plan(found, draft_experts={"0": "0-2"}))

    assert bare.weights_bytes - moved.weights_bytes == 12 * small.MIB
    assert line(moved.nodes[0], "host.draft_experts").bytes == 12 * small.MIB
    assert line(moved.gpus[0], "staging").bytes == PARTS * CHUNK_BYTES + 4 * small.MIB


def test_a_draft_model_that_is_not_loaded_takes_nothing_anywhere() -> None:
    found = small.with_draft(small.catalogue())
    targets = small.NO_RESERVES.model_copy(update={"draft": False})

    made = of(found, plan(found, targets=targets, draft_experts={"0": "0-2"}))

    assert line(made.gpus[0], "weights.draft").bytes == 0
    assert line(made.gpus[0], "weights.draft").label == "draft model (not loaded)"
    assert made.host_bytes == 0


def test_what_is_not_loaded_is_named() -> None:
    found = small.catalogue()

    bar = of(found, plan(found)).gpus[0]

    assert line(bar, "weights.vision").formula == "0 B; 3,145,728 B not loaded"
    assert line(bar, "weights.draft").formula == "2,097,152 B; 8,388,608 B not loaded"


def test_the_ranks_share_what_is_cut_and_each_hold_what_is_not() -> None:
    found = small.catalogue()

    bar = of(found, plan(found, tp=2)).gpus[1]

    assert line(bar, "weights.embedding").bytes == 4 * small.MIB
    assert line(bar, "weights.dense").bytes == small.MIB
    assert line(bar, "weights.routed_experts").bytes == 3 * 8 * (3 * small.MIB // 2 + 16)


def test_cold_rows_that_share_a_page_with_hot_ones_and_the_staging_of_the_fullest_layer_are_reserves() -> None:
    found = small.catalogue()

    bar = of(found, plan(found, experts={"0": "0-2", "1": "0-7"})).gpus[0]

    assert line(bar, "boundary").bytes == small.MIB
    assert line(bar, "boundary").formula == (
        "1,048,576 B of cold rows in pages where hot ones end, one a tensor at most, 4 tensors"
    )
    assert line(bar, "staging").bytes == PARTS * 2 * CHUNK_BYTES + 2 * small.MIB
    assert line(bar, "staging").formula == (
        "67,108,864 B for the layer with most cold rows, 2 times in chunks of 16,777,216 B,"
        " + 2,097,152 B to exchange a row"
    )


def test_for_another_engine_the_rows_of_one_layer_are_staged_as_they_are() -> None:
    found = small.catalogue(names=small.OTHER)

    staging = line(of(found, plan(found, experts={"0": "0-2", "1": "0-7"})).gpus[0], "staging")

    assert staging.bytes == 8 * 3 * small.MIB
    assert staging.formula == "25,165,824 B for the layer with most cold rows"


def test_scales_of_cold_experts_stay_on_the_card_and_are_told() -> None:
    found = small.catalogue(rows=(2 * small.MIB, small.MIB, small.MIB))

    made = of(found, plan(found, experts={"0": "0-3"}))

    assert line(made.gpus[0], "weights.routed_experts").bytes == (24 * 4 - 4 * 3) * small.MIB
    assert line(made.gpus[0], "weights.routed_experts").formula == (
        "20 of 24 experts x 4,194,304 B a card + 4,194,304 B of cold experts' scales, biases and rows that fill no page"
    )
    assert made.host_bytes == 4 * 3 * small.MIB


def test_kv_is_streams_by_context_and_a_rest_for_each_sequence() -> None:
    found = small.catalogue()
    targets = Targets(streams=3, context_tokens=7)

    kv = line(of(found, plan(found, targets=targets)).gpus[0], "kv")

    assert kv.bytes == 3 * (7004 + 64)
    assert kv.formula == "3 streams x (7 tokens x 1,000.5 B + 64 B)"


def test_kv_that_nobody_can_tell_is_asked_for() -> None:
    found = replace(small.catalogue(), kv=None)

    with pytest.raises(PlanError, match=r"targets\.kv_bytes") as refused:
        of(found, plan(small.catalogue(), targets=Targets()))

    assert "--kv-gib" in refused.value.remedy


def test_reserves_are_estimates_until_the_plan_says_them() -> None:
    found = small.catalogue()

    guessed = of(found, plan(found, targets=Targets())).gpus[0]
    said = of(found, plan(found, targets=Targets(graphs_bytes=5))).gpus[0]

    assert not any(line(guessed, name).exact for name in ("graphs", "activation", "driver"))
    assert (line(said, "graphs").bytes, line(said, "graphs").exact) == (5, True)


@given(st.integers(0, 60 * small.MIB), st.integers(0, 200 * small.MIB))
def test_over_short_and_left_add_up(kv: int, vram: int) -> None:
    found = small.catalogue()
    made = of(found, plan(found, targets=small.NO_RESERVES.model_copy(update={"kv_bytes": kv})), stated(vram, 1))

    assert made.needed_bytes == made.weights_bytes + made.reserves_bytes + kv
    assert made.over_bytes == max(0, made.weights_bytes - vram)
    assert made.short_bytes == max(0, made.needed_bytes - vram)
    assert made.kv_left_bytes == max(0, vram - made.weights_bytes - made.reserves_bytes)


def test_the_smallest_card_decides() -> None:
    found = small.catalogue()
    made = plan(found, tp=2)

    assert of(found, made, BoxMemory((ROOM, 1))).over_bytes == of(found, made).weights_bytes - 1


def test_each_rank_pins_on_the_node_of_its_card() -> None:
    found = small.catalogue()
    made = plan(found, tp=3, tensors=("embed.weight",))

    nodes = of(found, made, BoxMemory((ROOM,) * 3, (1, 0, 1), {0: 5, 1: 6, 2: 7})).nodes

    share = 4 * small.MIB  # a third, in whole pages
    assert [(bar.id, bar.capacity_bytes, bar.total_bytes()) for bar in nodes] == [
        ("node0", 5, share),
        ("node1", 6, 2 * share),
    ]


@pytest.mark.parametrize(
    ("numa", "nodes", "bars"),
    [
        ((), {0: 9}, [("node0", 9)]),
        ((None, None), {3: 9}, [("node3", 9)]),
        ((0, None), {0: 4, 1: 5}, [("host", 9)]),
        ((), {}, [("host", None)]),
    ],
)
def test_a_card_of_unknown_node_is_on_the_only_one_or_all_are_budgeted_as_one(
    numa: tuple[int | None, ...], nodes: dict[int, int], bars: list[tuple[str, int | None]]
) -> None:
    found = small.catalogue()

    made = of(found, plan(found, tp=2), BoxMemory((ROOM, ROOM), numa, nodes))

    assert [(bar.id, bar.capacity_bytes) for bar in made.nodes] == bars


def test_a_card_that_is_not_there_has_a_bar_without_a_capacity() -> None:
    found = small.catalogue()

    made = of(found, plan(found, tp=2), stated(ROOM, 1))

    assert [bar.capacity_bytes for bar in made.gpus] == [ROOM, None]


def test_the_load_peak_is_two_shards_on_each_node_and_nothing_pinned() -> None:
    found = small.catalogue()

    made = of(found, plan(found, tp=2), BoxMemory((ROOM, ROOM), (0, 1), {0: 5, 1: 6}), shard=7)

    assert [bar.total_bytes(Moment.LOAD) for bar in made.nodes] == [14, 14]
    assert (made.host_bytes, made.host_peak_bytes) == (0, 28)


def test_rounding_is_by_slab_and_the_largest_slab_is_told() -> None:
    found = small.catalogue(engram=True)
    engram = HostEngram(mode="pinned")

    made = of(found, plan(found, experts={"0": "0-2"}, tensors=("embed.weight",), engram=engram))

    mib = small.MIB
    assert made.host_bytes == (48 + 24 + 8 + 6 + 2) * mib
    assert made.host_rounded_bytes == (64 + 32 + 8 + 8 + 2) * mib
    assert made.largest_slab_bytes == 48 * mib


def test_each_rank_loses_its_own_rounding() -> None:
    found = small.catalogue()

    made = of(found, plan(found, tp=2, experts={"0": "0-5"}))

    assert (made.host_bytes, made.host_rounded_bytes) == (2 * 8 * small.MIB, 2 * 10 * small.MIB)


@pytest.mark.parametrize(("mode", "card", "host"), [("pinned", 0, 72), ("disk", 0, 0), ("vram", 72, 0)])
def test_engram_tables_are_where_the_plan_says(mode: str, card: int, host: int) -> None:
    found = small.catalogue(engram=True)

    made = of(found, plan(found, engram=HostEngram(mode=mode)))

    assert line(made.gpus[0], "weights.engram").bytes == card * small.MIB
    assert made.host_bytes == host * small.MIB


def test_engram_tables_that_the_plan_forgets_are_on_the_cards() -> None:
    found = small.catalogue(engram=True)

    assert line(of(found, plan(found, engram=None)).gpus[0], "weights.engram").bytes == 72 * small.MIB


def test_whole_hash_columns_of_engram_go_to_each_rank() -> None:
    found = small.catalogue(engram=True)

    assert line(of(found, plan(found, tp=5)).gpus[0], "weights.engram").bytes == 72 * small.MIB * 5 // 24


def test_a_kv_tier_is_shared_out_over_the_nodes() -> None:
    found = small.catalogue()
    targets = small.NO_RESERVES.model_copy(update={"kv_tier_bytes": 9 * GIB})

    made = of(found, plan(found, tp=3, targets=targets), BoxMemory((ROOM,) * 3, (0, 0, 1), {0: 1, 1: 1}))

    assert [line(bar, "host.kv_tier").bytes for bar in made.nodes] == [6 * GIB, 3 * GIB]
    rounded = [line(bar, "host.kv_tier.rounded") for bar in made.nodes]
    assert [(part.bytes, part.moment, part.exact) for part in rounded] == [
        (6 * GIB, Moment.ROUNDED, False),
        (3 * GIB, Moment.ROUNDED, False),
    ]


def test_every_line_says_how_it_came_about() -> None:
    found = catalogue("study")
    made = of(found, plan(found, tp=2, experts={"3": "0-99"}, tensors=("embed.weight",), engram=HostEngram()), shard=9)

    for bar in (*made.gpus, *made.nodes):
        assert len({one.id for one in bar.lines}) == len(bar.lines)
        assert all(one.formula and one.source and one.bytes >= 0 for one in bar.lines)


def test_of_a_class_that_is_moved_in_part_each_rank_saves_its_own_share() -> None:
    found = small.with_draft(small.catalogue())

    made = of(found, plan(found, tp=2, tensors=("mtp.attn.weight",)))

    assert line(made.gpus[0], "weights.draft").bytes == 8 * small.MIB
    assert made.host_bytes == 2 * PAGE_BYTES


def test_an_engram_table_that_is_named_among_the_tensors_is_not_pinned_twice() -> None:
    found = small.catalogue(engram=True)

    made = of(found, plan(found, engram=HostEngram(mode="pinned"), tensors=tuple(small.TABLES)))

    assert made.host_bytes == 72 * small.MIB
    assert line(made.gpus[0], "weights.engram").bytes == 0


def test_a_partly_cold_draft_has_shared_pages_and_staging_too() -> None:
    found = small.with_draft(small.catalogue(), row_bytes=3 * small.MIB)

    bar = of(found, plan(found, draft_experts={"0": "0-2"})).gpus[0]

    assert line(bar, "boundary").bytes == small.MIB
    assert line(bar, "staging").bytes == PARTS * CHUNK_BYTES + 4 * small.MIB


def test_a_card_beyond_those_of_the_plan_decides_nothing() -> None:
    found = small.catalogue()

    assert of(found, plan(found, tp=2), BoxMemory((ROOM, ROOM, 1))).over_bytes == 0
