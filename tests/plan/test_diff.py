"""What differs between two plans, by key, layer and expert."""

from __future__ import annotations

import pytest
from hypothesis import given

from appliance.plan import ranges
from appliance.plan.diff import diff
from appliance.plan.schema import Limits, Plan, PlanHost, PlanModel, PlanTopology, Profile, Selection, Targets
from tests.plan.plans import plan, plans


@given(plans())
def test_a_plan_does_not_differ_from_itself(made: Plan) -> None:
    found = diff(made, made)
    assert found.same
    assert found.json()["changes"] == {}
    assert list(found.lines()) == [f"same decision: {made.identity}"]


@given(plans(), plans())
def test_two_plans_that_decide_differently_differ_in_something_that_is_named(one: Plan, other: Plan) -> None:
    found = diff(one, other)
    assert found.same == (not (found.changes or found.experts or found.draft_experts))
    assert len(list(found.lines())) >= 1


@given(plans())
def test_what_is_moved_one_way_is_moved_back_the_other_way(made: Plan) -> None:
    bare = made.model_copy(update={"host": PlanHost()})
    there, back = diff(bare, made).json(), diff(made, bare).json()
    assert there["experts_to_host"] == made.cold_count == back["experts_to_cards"]
    assert there["experts_to_cards"] == 0 == back["experts_to_host"]


def test_experts_are_told_by_layer_and_way() -> None:
    found = diff(plan({"0": "0-3", "2": "7"}), plan({"0": "2-5", "3": "1"}))
    assert found.json()["experts"] == {
        "0": {"to_host": "4-5", "to_cards": "0-1"},
        "2": {"to_host": "", "to_cards": "7"},
        "3": {"to_host": "1", "to_cards": ""},
    }
    lines = list(found.lines())
    assert "experts: 3 to the host, 3 back to the cards, in 3 layers" in lines
    assert "  layer 0: 4-5 to the host; 0-1 back" in lines
    assert ranges.parse("4-5") == found.experts[0].to_host


@pytest.mark.parametrize(
    ("other", "line"),
    [
        (plan(model=PlanModel(name="lab/other")), "model.name: lab/tiny -> lab/other"),
        (plan(top_k=3), "geometry.top_k: 2 -> 3"),
        (plan(topology=PlanTopology(tp=4, vram_bytes_each=2**30)), "topology.tp: 2 -> 4"),
        (plan(targets=Targets(kv_bytes=5)), "targets.kv_bytes: (none) -> 5"),
        (plan(limits=Limits(max_host_bytes=9)), "limits.max_host_bytes: (none) -> 9"),
        (plan(tensors=("embed.weight",)), "host.tensors: [] -> ['embed.weight']"),
        (plan(selection=Selection(method="uniform")), "selection.method: manual -> uniform"),
    ],
)
def test_other_decisions_are_told_by_their_key(other: Plan, line: str) -> None:
    found = diff(plan(), other)
    assert not found.same
    assert line in list(found.lines())


def test_a_long_list_is_counted_and_not_printed() -> None:
    many = PlanModel(name="lab/tiny", header_sha256=tuple(f"{number:064x}" for number in range(48)))
    assert "model.header_sha256: [] -> 48 entries" in list(diff(plan(), plan(model=many)).lines())


def test_what_decides_nothing_is_named_and_does_not_make_a_difference() -> None:
    told = {"note": "measured", "created": "2026-11-29T00:00:00Z", "budget": {"a": {"b": 1}}}
    one = plan(profile=Profile(name="x", validated="here"))
    found = diff(one, one.model_copy(update=told | {"profile": Profile(name="x", validated="there")}))
    assert found.same
    assert found.asides == ("budget", "created", "note", "profile.validated")
    assert next(found.lines()).startswith("same decision: sha256:")
