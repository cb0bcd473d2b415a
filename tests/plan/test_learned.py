"""A learned plan is the plan that it was learned with, but for which experts are cold."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import PlanError
from appliance.plan import ranges
from appliance.plan.export import residency
from appliance.plan.learned import learned, moved
from appliance.plan.schema import Plan, Selection
from appliance.residency.document import Residency, parse
from tests.plan.plans import EXPERTS, LAYERS, plan

BEFORE = plan(
    {"0": "0-3", "2": "5"},
    tensors=("embed.weight",),
    selection=Selection(method="uniform", expected_cold_hits_per_token=1.5),
    budget={"weights_bytes": 7},
    note="measured on two cards",
).seal()


def document(of: Plan, cold: Mapping[int, tuple[int, ...]]) -> Residency:
    """As the engine writes it."""
    found = residency.export(of).document
    return replace(parse(json.dumps(found), "learned.json"), cold=cold)


def made(cold: Mapping[int, tuple[int, ...]], of: Plan = BEFORE) -> Plan:
    return learned(of, document(of, cold), "/etc/plan.json", "moe-appliance plan make --stats /now/counts.json")


def refused(cold: Mapping[int, tuple[int, ...]], of: Plan = BEFORE) -> PlanError:
    with pytest.raises(PlanError) as caught:
        made(cold, of)
    return caught.value


def test_what_is_cold_is_replaced_and_the_rest_stays() -> None:
    after = made({0: (2, 3, 6, 7), 2: (5,)})
    assert after.host.experts == {"0": "2-3,6-7", "2": "5"}
    assert moved(BEFORE, after) == 2
    assert (after.host.tensors, after.geometry, after.targets) == (BEFORE.host.tensors, BEFORE.geometry, BEFORE.targets)
    assert after.budget == BEFORE.budget
    assert after.sealed
    assert after.plan_id != BEFORE.plan_id


def test_it_says_from_which_plan_it_was_learned_and_what_was_said_of_that_one() -> None:
    after = made({0: (2, 3, 6, 7), 2: (5,)})
    assert after.note == f"learned from plan {BEFORE.plan_id}\nmeasured on two cards"
    assert after.selection == Selection(method="manual")
    again = made({0: (0, 1, 2, 3), 2: (4,)}, after)
    assert again.note == f"learned from plan {after.plan_id}\nmeasured on two cards"


def test_the_same_experts_make_the_same_plan_whatever_it_was_learned_from() -> None:
    cold = {0: (2, 3, 6, 7), 2: (5,)}
    assert made(cold).plan_id == made(cold, made({0: (0, 1, 6, 7), 2: (1,)})).plan_id


@given(st.lists(st.sets(st.integers(0, EXPERTS - 1)), min_size=LAYERS, max_size=LAYERS), st.randoms())
def test_any_experts_of_as_many_can_be_learned(cold: list[set[int]], chance: random.Random) -> None:
    before = plan({str(layer): ranges.spell(experts) for layer, experts in enumerate(cold)}).seal()
    now = {layer: tuple(sorted(chance.sample(range(EXPERTS), len(one)))) for layer, one in enumerate(cold)}
    if all(set(now[layer]) == one for layer, one in enumerate(cold)):
        return
    after = made(now, before)
    assert Plan.model_validate_json(after.model_dump_json(by_alias=True)) == after
    assert {layer: after.cold(layer) for layer in range(LAYERS)} == now


def test_experts_that_are_cold_as_planned_teach_nothing() -> None:
    error = refused({0: (0, 1, 2, 3), 2: (5,), 3: ()})
    assert "nothing was learned yet" in error.message
    assert "moe-appliance status" in error.remedy


def test_another_plans_experts_are_refused() -> None:
    other = plan({"0": "0-3", "2": "6"}).seal()
    with pytest.raises(PlanError) as caught:
        learned(
            BEFORE,
            document(other, {0: (2, 3, 6, 7), 2: (5,)}),
            "/etc/plan.json",
            "moe-appliance plan make --stats /now/counts.json",
        )
    assert other.plan_id[:19] in caught.value.message
    assert f"/etc/plan.json is {BEFORE.plan_id[:19]}" in caught.value.message
    assert "moe-appliance restart" in caught.value.remedy


@pytest.mark.parametrize(
    ("cold", "layer"), [({0: (2, 3, 6), 2: (5,)}, 0), ({0: (2, 3, 6, 7)}, 2), ({0: (0, 1, 2, 3), 1: (1,), 2: (5,)}, 1)]
)
def test_another_number_of_experts_in_a_layer_is_refused_with_the_layer(
    cold: Mapping[int, tuple[int, ...]], layer: int
) -> None:
    error = refused(cold)
    assert error.message.startswith(f"layer {layer}: ")
    assert "--stats /now/counts.json" in error.remedy
