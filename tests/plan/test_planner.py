"""The planner: the least that fits along its order, never more, and a reason when there is none."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.checkpoint.catalogue import Catalogue, TensorClass
from appliance.errors import PlanError
from appliance.plan import ranges
from appliance.plan.budget import Budget, budget
from appliance.plan.choice import steps_of
from appliance.plan.memory import stated
from appliance.plan.planner import plan_for
from appliance.plan.request import Request, model_of
from appliance.plan.schema import Limits, Plan, PlanHost, Profile, Targets
from appliance.plan.stats import RoutingStats
from appliance.units import GIB
from tests.checkpoint.packs.fixtures import catalogue as pack
from tests.checkpoint.packs.fixtures import checkpoint as headers
from tests.plan import small

CARD = 97_887 << 20
"""What the driver reports for an RTX PRO 6000. Source: facts/checkpoint-and-offload.md 1.4."""
ROWS = (64 * small.MIB, 32 * small.MIB, 16)
"""Large enough that a few cold experts of each of three layers free more than staging takes."""
missing = st.integers(0, 25)
"""What a card lacks to hold everything, percent of that."""
methods = st.sampled_from(["uniform", "routing-stats", "layers"])


def of(found: Catalogue, made: Plan) -> Budget:
    return budget(found, made, stated(made.topology.vram_bytes_each, made.topology.tp))


def asked(vram: int, **more: Any) -> Request:
    return Request(vram_bytes=max(1, vram), **({"tp": 1, "targets": small.NO_RESERVES} | more))


def whole(found: Catalogue, tp: int = 1) -> int:
    """What a card needs when only the Engram tables are on the host."""
    return of(found, plan_for(found, small.MODEL, asked(1 << 50, tp=tp))).needed_bytes


def tried(found: Catalogue, request: Request, stats: RoutingStats | None = None) -> Plan | None:
    try:
        return plan_for(found, small.MODEL, request, stats)
    except PlanError:
        return None


def prefixes(found: Catalogue, request: Request, stats: RoutingStats) -> list[Plan]:
    """Nothing moved but Engram, then the embedding too, then a step more each time: built and summed in full."""
    bare = plan_for(found, small.MODEL, replace(request, vram_bytes=1 << 50), stats)
    made = [bare]
    cold: dict[str, list[int]] = {}
    for layer, experts in [(-1, ()), *steps_of(found, request, stats)]:
        if experts:
            cold.setdefault(str(layer), []).extend(experts)
        table = {one: ranges.spell(numbers) for one, numbers in cold.items()}
        host = PlanHost(experts=table, tensors=("embed.weight",), engram=bare.host.engram)
        topology = bare.topology.model_copy(update={"vram_bytes_each": request.vram_bytes})
        made.append(bare.model_copy(update={"host": host, "topology": topology}))
    made[0] = bare.model_copy(update={"topology": made[-1].topology})
    return made


@given(st.data(), missing, methods, st.sampled_from([1, 2, 4]))
def test_it_is_the_first_prefix_of_its_order_that_fits(data: st.DataObject, less: int, method: Any, tp: int) -> None:
    found = data.draw(small.catalogues())
    stats = data.draw(small.counted(found))
    request = asked(whole(found, tp) * (100 - less) // 100, method=method, tp=tp)

    made = tried(found, request, stats)

    fitting = [one for one in prefixes(found, request, stats) if not of(found, one).short_bytes]
    assert (made.host if made else None) == (fitting[0].host if fitting else None)


@given(st.data(), missing, st.integers(0, 40 * small.MIB), methods)
def test_more_memory_or_less_kv_never_moves_more(data: st.DataObject, less: int, more: int, method: Any) -> None:
    found = data.draw(small.catalogues())
    stats = data.draw(small.counted(found))
    vram = whole(found) * (100 - less) // 100
    before = tried(found, asked(vram, method=method), stats)
    if before is None:
        return

    roomier = tried(found, asked(vram + more, method=method), stats)
    kv = small.NO_RESERVES.model_copy(update={"kv_bytes": more})
    with_kv = tried(found, asked(vram + more, method=method, targets=kv), stats)

    assert roomier is not None
    assert roomier.cold_count <= before.cold_count
    assert with_kv is not None
    assert with_kv.host == before.host


@given(st.data(), methods, st.integers(0, 30))
def test_it_never_plans_more_than_asked_nor_leaves_fewer_than_a_token_visits(
    data: st.DataObject, method: Any, experts: int
) -> None:
    found = data.draw(small.catalogues())
    shape = found.geometry
    most = shape.layers * (shape.experts - shape.top_k)

    made = tried(found, asked(1 << 40, method=method, experts=experts), data.draw(small.counted(found)))

    if made is None:
        assert experts > most or method == "layers"
    else:
        assert made.cold_count == experts
        assert all(shape.experts - len(made.cold(layer)) >= shape.top_k for layer in found.experts)


@given(st.data(), st.integers(0, 12))
def test_the_digest_does_not_hang_on_the_order_of_keys(data: st.DataObject, experts: int) -> None:
    found = data.draw(small.catalogues())
    made = tried(found, asked(1 << 40, experts=experts)) or plan_for(found, small.MODEL, asked(1 << 40))
    shuffled = _shuffled(made.model_dump(mode="json", by_alias=True), data.draw(st.randoms()))

    again = Plan.model_validate_json(json.dumps(shuffled))

    assert again.plan_id == again.identity == made.plan_id


def _shuffled(value: Any, rng: random.Random) -> Any:
    if isinstance(value, dict):
        keys = list(value)
        rng.shuffle(keys)
        return {key: _shuffled(value[key], rng) for key in keys}
    return [_shuffled(one, rng) for one in value] if isinstance(value, list) else value


def test_where_one_layer_is_much_colder_its_experts_take_more_than_they_give_until_others_go_too() -> None:
    found = small.catalogue(layers=4, rows=ROWS)
    stats = small.stats(found, {0: (0,) * 8, **dict.fromkeys((1, 2, 3), (9,) * 8)})
    request = asked(whole(found) - 100 * small.MIB, method="routing-stats")

    made = plan_for(found, small.MODEL, request, stats)

    needed = [of(found, one).needed_bytes for one in prefixes(found, request, stats)[1:]]
    assert needed[6] > needed[1] > needed[0]
    assert made.cold_count > 6
    assert made.host == prefixes(found, request, stats)[made.cold_count + 1].host
    assert needed[made.cold_count] <= request.vram_bytes < min(needed[: made.cold_count])


def test_a_layer_alone_frees_nothing_and_the_refusal_goes_by_the_step_after_which_a_card_needs_least() -> None:
    found = small.catalogue(rows=ROWS)
    request = asked(whole(found) - 100 * small.MIB, method="layers", layers=(1,))

    with pytest.raises(PlanError, match=r"with 0 of 24 experts in host RAM, a card still misses 0\.1 GiB"):
        plan_for(found, small.MODEL, request)


def test_what_fits_as_it_is_moves_only_engram() -> None:
    found = small.catalogue(engram=True)

    made = plan_for(found, small.MODEL, asked(1 << 40))

    assert made.host.engram is not None
    assert made.host.engram.mode == "pinned"
    assert (made.host.tensors, made.host.experts) == ((), {})


def test_the_embedding_moves_before_any_expert_and_stays_when_asked() -> None:
    found = small.catalogue(rows=ROWS)
    needed = of(found, plan_for(found, small.MODEL, asked(1 << 40))).needed_bytes

    moved = plan_for(found, small.MODEL, asked(needed - 1))
    kept = plan_for(found, small.MODEL, asked(needed - 1, keep_embedding=True))

    assert (moved.host.tensors, moved.cold_count) == (("embed.weight",), 0)
    assert kept.host.tensors == ()
    assert kept.cold_count > 0


def test_an_embedding_that_is_also_the_head_stays_on_the_cards() -> None:
    found = small.catalogue()
    tied = replace(found, classes={**found.classes, TensorClass.HEAD: ()})

    made = plan_for(tied, small.MODEL, asked(1 << 40, experts=3))

    assert (made.host.tensors, made.cold_count) == ((), 3)


def test_a_list_is_taken_as_it_is_even_when_it_does_not_fit() -> None:
    made = plan_for(small.catalogue(), small.MODEL, asked(1, method="manual", table={1: (0, 3), 2: ()}))

    assert made.host.experts == {"1": "0,3"}
    assert made.selection.method == "manual"


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({9: (0,)}, "layer 9 has no routed experts"),
        ({0: (8,)}, "layer 0 has no expert 8"),
        ({0: range(7)}, "keeps 1 experts on the cards, a token visits 2"),
    ],
)
def test_a_list_that_the_model_cannot_have_is_refused(table: Any, said: str) -> None:
    with pytest.raises(PlanError, match=said):
        plan_for(small.catalogue(), small.MODEL, asked(1 << 40, method="manual", table=table))


def test_whole_layers_may_leave_none_on_the_cards() -> None:
    limits = Limits(whole_layers=True)

    made = plan_for(small.catalogue(), small.MODEL, asked(1 << 40, method="layers", experts=16, limits=limits))

    assert made.host.experts == {"1": "0-7", "2": "0-7"}


def test_layers_go_in_the_order_that_is_given() -> None:
    made = plan_for(small.catalogue(), small.MODEL, asked(1 << 40, method="layers", layers=(1, 0), experts=6))

    assert made.host.experts == {"1": "0-5"}


@pytest.mark.parametrize(
    ("more", "said", "remedy"),
    [
        ({"experts": 19}, "19 cannot go to the host, 18 at most", "--experts 18"),
        ({"experts": 7, "method": "layers"}, "not a number of whole layers", "--experts 6 or --experts 12"),
        ({"method": "layers", "layers": (5,)}, "layer 5 has no routed experts", "--layers 0-2"),
        ({"method": "routing-stats"}, "no statistics", "--stats FILE"),
    ],
)
def test_a_request_that_cannot_be_met_says_what_can(more: dict[str, Any], said: str, remedy: str) -> None:
    with pytest.raises(PlanError, match=said) as refused:
        plan_for(small.catalogue(), small.MODEL, asked(1 << 40, **more))

    assert remedy in refused.value.remedy


def test_when_nothing_fits_it_says_by_how_much_and_what_to_lower() -> None:
    found, targets = small.catalogue(rows=ROWS), Targets(kv_bytes=9 * GIB)

    with pytest.raises(PlanError) as refused:
        plan_for(found, small.MODEL, Request(12 * GIB, targets=targets))

    assert "with 18 of 24 experts in host RAM, a card still misses ~4.5 GiB" in refused.value.message
    assert refused.value.remedy == "--kv-gib 4.5, or --gpus 4"


def test_the_kv_that_a_refusal_names_does_fit() -> None:
    found = small.catalogue(rows=ROWS)

    made = plan_for(found, small.MODEL, Request(12 * GIB, targets=Targets(kv_bytes=int(4.5 * GIB))))

    assert not of(found, made).short_bytes


def test_without_room_for_any_kv_it_asks_for_more_cards() -> None:
    with pytest.raises(PlanError) as refused:
        plan_for(small.catalogue(), small.MODEL, asked(1))

    assert refused.value.remedy == "--gpus 2"


def test_a_bound_on_host_memory_is_kept_or_named() -> None:
    found, limits = small.catalogue(rows=ROWS), Limits(max_host_bytes=10 * small.MIB)

    with pytest.raises(PlanError, match="more than allowed"):
        plan_for(found, small.MODEL, asked(whole(found) - 200 * small.MIB, limits=limits))


def test_a_checkpoint_of_no_known_family_is_refused_with_what_is_missing() -> None:
    with pytest.raises(PlanError, match="no config"):
        plan_for(replace(small.catalogue(), missing="no config"), small.MODEL, asked(1))


def test_the_refusal_names_the_checkpoint_when_it_is_known() -> None:
    with pytest.raises(PlanError) as refused:
        plan_for(replace(small.catalogue(), missing="no config"), small.MODEL, asked(1), origin="/models/a b")

    assert refused.value.remedy == "moe-appliance checkpoint show '/models/a b'"


def test_experts_that_cannot_be_cut_for_the_cards_are_refused_with_a_number_that_can() -> None:
    with pytest.raises(PlanError, match="experts are 2,048 wide and cannot be cut for 3 cards") as refused:
        plan_for(pack("deepseek-v3"), small.MODEL, asked(1 << 50, tp=3))

    assert refused.value.remedy == "--gpus 2"


def test_engram_on_disk_is_refused_for_a_model_without_engram() -> None:
    with pytest.raises(PlanError, match="--engram disk: the checkpoint has no Engram tables"):
        plan_for(small.catalogue(), small.MODEL, asked(1 << 40, engram="disk"))


def test_statistics_of_another_shape_are_refused() -> None:
    found = small.catalogue()

    with pytest.raises(PlanError, match="layer 0 is missing"):
        plan_for(found, small.MODEL, asked(1 << 40), small.stats(found, {1: (0,) * 8, 2: (0,) * 8}))


def test_the_expected_cold_hits_are_counted_from_the_statistics() -> None:
    found = small.catalogue(layers=2)
    stats = small.stats(found, {0: (1, 200, 0, 300, 9, 9, 9, 9), 1: (100,) * 8})

    made = plan_for(found, small.MODEL, asked(1 << 40, method="routing-stats", experts=7), stats)

    assert made.host.experts == {"0": "0,2,4-7", "1": "0"}
    assert made.selection.expected_cold_hits_per_token == 0.137
    assert (made.selection.stats_sha256, made.selection.tokens) == (stats.sha256, 1000)


def test_a_cap_is_carried_only_when_it_is_named() -> None:
    found, profile = small.catalogue(), Profile(name="lab", streams=6, validated="a test")

    assert plan_for(found, small.MODEL, asked(1 << 40)).profile is None
    assert plan_for(found, small.MODEL, asked(1 << 40, profile=profile)).profile == profile


def test_the_stand_in_for_the_studys_pack_moves_the_least_that_leaves_8_gib_for_kv() -> None:
    found = pack("study")
    request = Request(CARD, targets=Targets(kv_bytes=8 * GIB))

    made = plan_for(found, model_of(headers("study"), "study"), request)
    one_less = plan_for(found, made.model, replace(request, experts=made.cold_count - 1))

    assert not of(found, made).short_bytes
    assert of(found, one_less).short_bytes
    assert Counter(len(made.cold(layer)) for layer in found.experts).keys() <= {85, 86}
    assert made.cold_count == 3419
    assert made.host.tensors == ("embed.weight",)


def test_planning_15360_experts_takes_well_under_a_second() -> None:
    found = pack("study")
    begin = time.process_time()

    plan_for(found, small.MODEL, Request(60 * GIB, targets=Targets(kv_bytes=GIB)))

    assert time.process_time() - begin < 1.0


def test_a_list_may_leave_just_what_a_token_visits() -> None:
    made = plan_for(small.catalogue(), small.MODEL, asked(1 << 40, method="manual", table={0: range(6)}))

    assert made.host.experts == {"0": "0-5"}


def test_the_bound_that_a_refusal_names_is_enough_and_a_bound_may_be_met_exactly() -> None:
    found, card = small.catalogue(rows=(512 * small.MIB,)), 10 * GIB
    least = of(found, plan_for(found, small.MODEL, asked(card))).host_bytes

    exact = plan_for(found, small.MODEL, asked(card, limits=Limits(max_host_bytes=least)))
    with pytest.raises(PlanError) as refused:
        plan_for(found, small.MODEL, asked(card, limits=Limits(max_host_bytes=least - 1)))

    assert of(found, exact).host_bytes == least
    assert refused.value.remedy == f"--max-host-gib {-(-least // GIB)}, or less for KV: --kv-gib"
    assert least % GIB


def test_expected_hits_have_four_decimals() -> None:
    found = small.catalogue()
    counts = small.stats(found, dict.fromkeys(range(3), (1,) * 8), tokens=7)

    made = plan_for(found, small.MODEL, asked(1 << 40, method="routing-stats", experts=1), counts)

    assert made.selection.expected_cold_hits_per_token == 0.1429
