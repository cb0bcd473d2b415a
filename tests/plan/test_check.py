"""Checking a plan: what is found, and the one sentence that says whether it fits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from appliance.box.gpu import Gpu, GpuReport, Outcome
from appliance.box.host import Host, Node
from appliance.checkpoint.catalogue import Catalogue
from appliance.errors import PlanError
from appliance.plan.check import Checked, check
from appliance.plan.memory import BoxMemory, of_box, stated
from appliance.plan.planner import plan_for
from appliance.plan.request import Request, geometry_of, model_of
from appliance.plan.schema import HostEngram, Limits, Plan, PlanHost, PlanModel, Targets
from appliance.units import GIB
from gateway.state import Finding, Severity
from tests.checkpoint.packs.fixtures import catalogue as pack
from tests.checkpoint.packs.fixtures import checkpoint as headers
from tests.plan import small

CARD = 97_887 << 20
"""What the driver reports for an RTX PRO 6000. Source: facts/checkpoint-and-offload.md 1.4."""
ROOM = 1 << 44


def made(found: Catalogue, **more: Any) -> Plan:
    """A plan that fits and has no findings; `more` replaces parts of it."""
    asked = Request(ROOM, tp=1, targets=small.NO_RESERVES)
    plan = plan_for(found, model_of(small.checkpoint(found), "lab/small"), asked)
    return plan.model_copy(update={"budget": None, **more}).seal() if more else plan


def checked(found: Catalogue, plan: Plan, memory: BoxMemory | None = None) -> Checked:
    return check(plan, small.checkpoint(found), found, memory or stated(ROOM, plan.topology.tp))


def only(result: Checked) -> Finding:
    (found,) = result.findings
    return found


def study(memory: BoxMemory, **more: Any) -> Checked:
    found, read = pack("study"), headers("study")
    asked = Request(CARD, **({"targets": Targets(kv_bytes=8 * GIB)} | more))
    return check(plan_for(found, model_of(read, "study"), asked), read, found, memory)


def test_a_plan_for_this_checkpoint_and_box_has_no_findings() -> None:
    found = small.catalogue()

    result = checked(found, made(found))

    assert result.findings == ()
    assert result.fits


def test_the_stand_in_for_the_studys_pack_does_not_fit_in_vram_alone() -> None:
    result = study(stated(CARD, 2), experts=0, keep_embedding=True)

    assert not result.fits
    assert result.budget.weights_bytes / GIB == pytest.approx(102.1, abs=0.2)
    assert result.budget.weights_bytes == 109_654_780_468
    assert result.budget.over_bytes / GIB == pytest.approx(6.5, abs=0.05)
    assert result.verdict == (
        "does not fit: 6.5 GiB over with the weights alone (102.1 GiB a card without Engram, 95.6 there)"
    )
    assert only(result).id == "plan.fits"


def test_the_studys_plan_fits_and_says_what_is_left_for_kv() -> None:
    result = study(stated(CARD, 2), experts=4608)

    assert result.fits
    assert result.budget.weights_bytes / GIB == pytest.approx(72.4, abs=0.6)
    assert result.budget.weights_bytes == 78_322_018_868
    assert result.verdict == "fits: ~15.2 GiB a card left for KV"
    assert result.plan.host.tensors == ("embed.weight",)
    assert result.budget.host_bytes / GIB == pytest.approx(163.35, abs=0.01)


def test_a_plan_that_is_short_of_room_for_kv_alone_says_so() -> None:
    result = study(stated(CARD, 2), experts=4608, targets=Targets(kv_bytes=20 * GIB))

    assert result.verdict == (
        "does not fit: ~4.8 GiB short on a card (72.9 weights, ~7.4 reserves, 20.0 KV, 95.6 there)"
    )
    assert result.budget.over_bytes == 0


def test_the_remedy_of_a_plan_that_does_not_fit_is_a_command_that_makes_one_that_does() -> None:
    found = small.catalogue()
    plan = made(found, targets=Targets(kv_bytes=3 * GIB))
    read = replace(small.checkpoint(found), origin="/models/a b")

    result = check(plan, read, found, stated(8 * GIB, 1))

    assert result.findings[-1].remedy == (
        "moe-appliance plan make --checkpoint '/models/a b' --gpus 1 --vram-gib 8 --kv-gib 3 --name lab/small"
        " --out plan.json"
    )


def test_a_plan_that_was_changed_by_hand_is_noticed() -> None:
    found = small.catalogue()
    plan = made(found).model_copy(update={"limits": Limits(max_host_bytes=5)})

    finding = only(checked(found, plan))

    assert (finding.id, finding.severity) == ("plan.digest", Severity.FAIL)
    assert plan.identity in finding.remedy


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"index_sha256": "0" * 64}, "index_sha256"),
        ({"header_sha256": ("0" * 64,)}, "header_sha256"),
        ({"tensor_count": 3}, "tensor_count"),
        ({"total_bytes": 3}, "total_bytes"),
    ],
)
def test_another_checkpoint_is_noticed_by_each_of_its_marks(change: dict[str, Any], key: str) -> None:
    found = small.catalogue()
    plan = made(found)

    result = checked(found, plan.model_copy(update={"model": plan.model.model_copy(update=change)}).seal())

    assert only(result).id == "plan.model"
    assert only(result).required.endswith(f"model.{key}")
    assert result.verdict == "cannot be used: The plan is for another checkpoint"


def test_a_plan_without_any_hash_is_unbound_and_may_fit() -> None:
    found = small.catalogue()

    result = checked(found, made(found, model=PlanModel(name="any")))

    assert (only(result).id, only(result).severity) == ("plan.unbound", Severity.INFO)
    assert result.fits
    assert only(result).remedy.startswith("none needed if this is the checkpoint that you mean")


def test_another_shape_is_told_key_by_key() -> None:
    found = small.catalogue()
    shape = geometry_of(found).model_copy(update={"experts": 16, "family": "other\x1b[2J"})

    finding = only(checked(found, made(found, geometry=shape)))

    assert finding.id == "plan.geometry"
    assert finding.observed == "family small, experts 8"
    assert finding.required == "family other\\x1b[2J, experts 16"


def test_other_bits_are_noticed_and_a_plan_that_says_none_takes_any() -> None:
    found = small.catalogue()
    exl3 = replace(found, geometry=replace(found.geometry, bits=(3.0, 3.0, 4.0), codebook="mul1"))
    silent = geometry_of(exl3).model_copy(update={"bits_per_layer": None, "codebook": None})
    wrong = geometry_of(exl3).model_copy(update={"bits_per_layer": (2.0, 2.0, 2.0)})

    assert checked(exl3, made(exl3, geometry=silent)).findings == ()
    finding = only(checked(exl3, made(exl3, geometry=wrong)))
    assert (finding.id, finding.observed) == ("plan.bits", "bits 3 to 4 over 3 layers")


def test_tensors_that_are_not_there_are_named_without_their_control_characters() -> None:
    found = small.catalogue()
    host = PlanHost(tensors=("embed.weight", "no\x1b[31m", *(f"x{number}" for number in range(6))))

    finding = only(checked(found, made(found, host=host)))

    assert finding.id == "plan.tensors"
    assert finding.title == "The plan names 7 tensors that the checkpoint does not have"
    assert finding.observed == "no\\x1b[31m, x0, x1, x2, x3 and 2 more"


def test_engram_tables_are_placed_by_their_own_key_alone() -> None:
    found = small.catalogue(engram=True)
    host = PlanHost(engram=HostEngram(), tensors=("layers.0.engram.embed.weight",))

    assert only(checked(found, made(found, host=host))).id == "plan.tensors"


def test_a_plan_must_say_where_engram_is_when_there_is_one_and_only_then() -> None:
    with_tables, without = small.catalogue(engram=True), small.catalogue()

    forgotten = only(checked(with_tables, made(with_tables, host=PlanHost())))
    invented = only(checked(without, made(without, host=PlanHost(engram=HostEngram()))))

    assert (forgotten.id, invented.id) == ("plan.engram", "plan.engram")
    assert Severity.FAIL is forgotten.severity is invented.severity


def test_a_layer_must_keep_what_a_token_visits_unless_whole_layers_are_meant() -> None:
    found = small.with_draft(small.catalogue())
    host = PlanHost(experts={"0": "0-5", "1": "0-6", "2": "0-7"}, draft_experts={"0": "0-3"})

    strict = checked(found, made(found, host=host))
    loose = checked(found, made(found, host=host, limits=Limits(whole_layers=True)))

    assert [(one.id, one.severity) for one in strict.findings] == [("plan.resident", Severity.FAIL)] * 2
    assert strict.findings[0].observed == "layers 1-2"
    assert {one.severity for one in loose.findings} == {Severity.WARN}
    assert loose.fits


@pytest.mark.parametrize(
    ("topology", "observed"),
    [({"ep": 2}, "topology.ep 2"), ({"tp": 3}, "experts are 32 wide"), ({"tp": 2}, "1 card")],
)
def test_what_cannot_be_spread_over_the_cards_is_refused(topology: dict[str, Any], observed: str) -> None:
    found = small.catalogue()
    plan = made(found)
    plan = plan.model_copy(update={"topology": plan.topology.model_copy(update=topology), "budget": None}).seal()

    result = checked(found, plan, stated(ROOM, 1))

    assert result.findings[0].id == "plan.tp"
    assert result.findings[0].observed == observed


def test_figures_in_the_file_are_not_believed() -> None:
    found = small.catalogue()
    plan = made(found)

    result = checked(found, plan.model_copy(update={"budget": {**(plan.budget or {}), "weights_bytes": 1}}))

    assert (only(result).id, only(result).severity) == ("plan.stale", Severity.INFO)
    assert result.budget.weights_bytes > 1


def test_more_pinned_than_the_plan_allows_is_refused() -> None:
    found = small.catalogue(engram=True)

    finding = only(checked(found, made(found, limits=Limits(max_host_bytes=1))))

    assert finding.id == "plan.host"
    assert finding.remedy == (
        "moe-appliance plan make --checkpoint /models/small --gpus 1 --vram-gib 16384 --kv-gib 0 --max-host-gib 1"
        " --name lab/small --out plan.json"
    )


@pytest.mark.parametrize(
    ("node_gib", "severity"),
    [
        (200, Severity.FAIL),  # 163.3 pinned and 30 % of that
        (220, Severity.WARN),  # two shards of 52.7 GiB in the page cache
        (280, None),
    ],
)
def test_a_node_must_hold_what_is_pinned_and_should_hold_the_load(node_gib: int, severity: Severity | None) -> None:
    result = study(BoxMemory((CARD, CARD), (0, 0), {0: node_gib * GIB}), experts=4608)

    assert [(one.id, one.severity) for one in result.findings] == ([("plan.host", severity)] if severity else [])
    assert result.fits == (severity is not Severity.FAIL)


def test_a_node_that_is_too_small_for_rounded_pinning_alone_is_a_warning() -> None:
    found = small.catalogue(engram=True)  # 72 MiB pinned, 96 MiB rounded
    memory = BoxMemory((ROOM,), (0,), {0: 20 * GIB})

    roomy = checked(found, made(found), memory)
    tight = checked(found, made(found), replace(memory, node_bytes={0: 16 * GIB + 95 * small.MIB}))

    assert roomy.findings == ()
    assert (only(tight).id, only(tight).severity) == ("plan.host", Severity.WARN)
    assert "powers of two" in only(tight).title


def test_a_small_node_is_good_enough_for_a_plan_that_pins_nothing() -> None:
    found = small.catalogue()

    assert checked(found, made(found), BoxMemory((ROOM,), (0,), {0: GIB})).findings == ()


def test_what_must_stay_free_at_the_peak_is_the_plans_own_word() -> None:
    found = small.catalogue(engram=True)  # 72 MiB pinned and two shards of 10 MiB
    memory = BoxMemory((ROOM,), (0,), {0: 20 * GIB})

    held = checked(found, made(found, limits=Limits(min_free_host_bytes=20 * GIB - 92 * small.MIB)), memory)
    broken = checked(found, made(found, limits=Limits(min_free_host_bytes=20 * GIB - 91 * small.MIB)), memory)

    assert held.findings == ()
    assert (only(broken).id, only(broken).severity) == ("plan.host", Severity.FAIL)


def test_a_checkpoint_that_cannot_be_planned_is_an_error_with_the_reason() -> None:
    found = small.catalogue()

    with pytest.raises(PlanError, match="nobody knows it"):
        checked(replace(found, missing="nobody knows it"), made(found))


def test_cold_experts_that_the_model_does_not_have_are_counted_as_all_of_them() -> None:
    found = small.catalogue()
    shape = geometry_of(found).model_copy(update={"experts": 20})

    result = checked(found, made(found, geometry=shape, host=PlanHost(experts={"0": "0-19"})))

    assert {one.id for one in result.findings} == {"plan.geometry", "plan.resident"}
    assert all(line.bytes >= 0 for bar in result.bars for line in bar.lines)


def test_the_daemons_view_has_bars_and_counts() -> None:
    found = small.catalogue()
    plan = made(found, host=PlanHost(experts={"0": "0-2"}))

    state = checked(found, plan).to_state("/etc/plan.json", made=True)

    assert (state.plan_id, state.file, state.name) == (plan.plan_id, "/etc/plan.json", "lab/small")
    assert (state.cold_experts, state.experts, state.made, state.fits) == (3, 24, True, True)
    assert [bar.id for bar in state.bars] == ["gpu0", "host"]


def test_the_json_has_the_documented_keys() -> None:
    found = small.catalogue()

    said = checked(found, made(found)).to_json()

    assert {"per_gpu_gib", "fits", "over_gib", "short_gib", "kv_left_gib", "host_gib"} <= said.keys()
    assert {"host_peak_gib", "host_rounded_gib", "per_gpu", "per_node", "findings", "verdict"} <= said.keys()
    assert said["per_gpu"][0]["lines"][0]["id"] == "weights.routed_experts"


def test_the_box_is_taken_as_it_was_gathered() -> None:
    gpus = (
        Gpu(0, "a", "card", "0000:41:00.0", 10, numa_node=1),
        Gpu(1, "b", "card", "0000:61:00.0", 11, numa_node=-1),
        Gpu(2, "c", "card", "0000:81:00.0", 12),
    )
    host = Host(nodes=(Node(0, 50, 1, 1, hugepages_bytes=8), Node(1, 60, 1, 1)), gpu_nodes={"0000:81:00.0": 0})

    memory = of_box(GpuReport(Outcome.OK, gpus=gpus), host)

    assert memory.vram_bytes == (10, 11, 12)
    assert memory.numa == (1, None, 0)
    assert memory.node_bytes == {0: 42, 1: 60}
    assert memory.ranks_by_node(1) == {1: 1}
    assert memory.ranks_by_node(3) == {None: 3}


def test_weights_that_are_over_by_a_byte_are_named_as_what_does_not_fit() -> None:
    found = small.catalogue()
    plan = made(found)
    needed = checked(found, plan).budget.weights_bytes

    assert "over with the weights alone" in checked(found, plan, stated(needed - 1, 1)).verdict


def test_a_plan_may_pin_just_what_it_allows_itself() -> None:
    found = small.catalogue(engram=True)

    assert checked(found, made(found, limits=Limits(max_host_bytes=72 * small.MIB))).findings == ()


def test_a_plan_that_does_with_less_free_memory_than_is_safe_is_warned_about() -> None:
    found = small.catalogue(engram=True)
    plan = made(found, limits=Limits(min_free_host_bytes=0))

    result = checked(found, plan, BoxMemory((ROOM,), (0,), {0: GIB}))

    assert result.fits
    assert (only(result).id, only(result).severity) == ("plan.host", Severity.WARN)
    assert "less free memory than is safe" in only(result).title


def test_exl3_tiles_are_those_of_the_headers_whatever_the_plan_says() -> None:
    found = small.catalogue()
    plan = made(found)
    plan = plan.model_copy(update={"topology": plan.topology.model_copy(update={"tp": 4})}).seal()
    exl3 = replace(found, geometry=replace(found.geometry, codebook="mcg"))

    assert checked(found, plan, stated(ROOM, 4)).fits
    assert checked(exl3, plan, stated(ROOM, 4)).findings[0].id == "plan.tp"


def test_a_box_may_have_more_cards_than_the_plan_uses() -> None:
    found = small.catalogue()

    assert checked(found, made(found), stated(ROOM, 2)).findings == ()


def test_a_plan_for_another_model_is_one_cause_and_no_arithmetic() -> None:
    asked = Request(CARD, tp=2, targets=small.NO_RESERVES, experts=4608)
    study = plan_for(pack("study"), PlanModel(name="study"), asked)
    result = check(study, headers("qwen3-moe"), pack("qwen3-moe"), stated(CARD, 2))
    assert result.verdict == "cannot be used: The model has another shape"
    assert [finding.id for finding in result.findings if finding.depends_on is None] == ["plan.geometry"]
    assert len(result.findings) > 2
    assert not result.fits
