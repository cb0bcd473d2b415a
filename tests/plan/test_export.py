"""What other tools can do with a plan, checked against what those tools would do with the text."""

from __future__ import annotations

import json
import random
import re
import shlex
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.checkpoint.catalogue import ExpertParameter
from appliance.errors import PlanError
from appliance.plan import ranges
from appliance.plan.export.outcome import Outcome
from appliance.plan.export.targets import TARGETS, export, verdicts
from appliance.plan.schema import HostEngram, Plan, PlanHost, PlanTopology, Selection
from tests.plan.plans import EXPERTS, LAYERS, catalogue, plan, plans

ALL = f"0-{EXPERTS - 1}"
COUNTED = Selection(method="routing-stats")


def whole(*layers: int) -> Plan:
    """A plan that moves all experts of some layers."""
    return plan(dict.fromkeys(map(str, layers), ALL))


def moved_by_uva(outcome: Outcome, order: random.Random, row_bytes: int = 1000) -> dict[int, set[str]]:
    """What vLLM's offloader moves: parameters in the order of the layers, any order inside one, until the budget is
    used up."""
    if not outcome.argv:
        return {}
    words = list(outcome.argv)
    budget = int(float(words[words.index("--cpu-offload-gb") + 1]) * 1024**3)
    segments = words[words.index("--cpu-offload-params") + 1 :]
    moved: dict[int, set[str]] = {}
    used = 0
    for layer in range(LAYERS):
        held = list(catalogue(row_bytes).experts[layer])
        order.shuffle(held)
        for parameter in held:
            name = f".mlp.experts.{parameter.name}."
            if used < budget and any(f".{segment}." in name for segment in segments):
                used += parameter.rank_row_bytes(2) * parameter.rows
                moved.setdefault(layer, set()).add(parameter.name)
    return moved


# -------------------------------------------------------------------------------------- every tool


@given(plans())
def test_every_tool_has_a_verdict_and_a_reason_for_every_plan(made: Plan) -> None:
    found = verdicts(made)
    assert list(found) == list(TARGETS)
    assert all(said.reason for said in found.values())


@given(plans())
def test_an_impossible_export_has_no_text_and_a_plan_is_never_lost_in_an_exact_one(made: Plan) -> None:
    for name in TARGETS:
        outcome = export(name, made)
        if outcome.verdict == "impossible":
            assert outcome.text == ""
        if outcome.verdict == "exact" and not outcome.needs and name != "residency":
            assert outcome.text or not made.cold_count


@pytest.mark.parametrize("name", list(TARGETS))
def test_a_checkpoint_of_another_model_is_refused(name: str) -> None:
    with pytest.raises(PlanError, match=r"geometry\.experts is 8, the checkpoint has 9"):
        export(name, whole(0), catalogue(experts=9))


# ---------------------------------------------------------------------------------------- vllm-uva


@given(st.integers(0, LAYERS), st.integers(4, 10**7), st.randoms(use_true_random=False))
def test_whole_first_layers_are_exactly_what_vllm_moves(count: int, row_bytes: int, order: random.Random) -> None:
    outcome = export("vllm-uva", whole(*range(count)), catalogue(row_bytes))
    assert outcome.verdict == "exact"
    both = {"w13_weight", "w2_weight"}
    assert moved_by_uva(outcome, order, row_bytes) == {layer: both for layer in range(count)}


@given(st.dictionaries(st.sampled_from("0123"), st.sets(st.integers(0, 7)).map(ranges.spell)), st.randoms())
def test_the_difference_that_is_said_is_the_one_that_vllm_makes(cold: dict[str, str], order: random.Random) -> None:
    made = plan(cold)
    outcome = export("vllm-uva", made, catalogue())
    moved = set(moved_by_uva(outcome, order))
    added = sum(EXPERTS - len(made.cold(layer)) for layer in moved)
    left = sum(len(made.cold(layer)) for layer in range(LAYERS) if layer not in moved)
    if added or left:
        assert outcome.verdict == "approximate"
        assert outcome.differs == {"experts_added": added, "experts_left": left, "host_bytes": (added - left) * 1500}
    else:
        assert outcome.verdict == "exact"


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (whole(1), "nearest are whole layers 0: 8 experts more and 8 experts fewer than the plan's"),
        (plan({"0": "0-2"}), "nearest is no layer at all: 0 experts more and 3 experts fewer"),
        (plan({"0": ALL}, tensors=("embed.weight",)), "embed.weight stays on the cards (+0.00 GiB on each card)"),
        (plan(host=PlanHost(draft_experts={"0": "1"}), draft_layers=1, draft_experts=2), "1 expert of the draft model"),
    ],
)
def test_what_vllm_cannot_say_is_approximate_and_says_by_how_much(made: Plan, said: str) -> None:
    outcome = export("vllm-uva", made, catalogue())
    assert outcome.verdict == "approximate"
    assert said in outcome.reason


def test_without_a_checkpoint_there_is_no_budget_and_so_no_text() -> None:
    outcome = export("vllm-uva", whole(0))
    assert outcome.verdict == "exact"
    assert "checkpoint" in outcome.needs
    assert not outcome.text


def test_exl3_markers_which_the_engine_keeps_no_parameter_of_are_not_budgeted() -> None:
    made, there = plan({"0": ALL}, codebook="mul1"), catalogue()
    marked = replace(there, experts=dict.fromkeys(range(LAYERS), (*there.experts[0], ExpertParameter("w2_mul1", 8, 4))))
    assert export("vllm-uva", made, marked).argv == export("vllm-uva", made, there).argv


@pytest.mark.parametrize(("mode", "value"), [("pinned", True), ("vram", False)])
def test_engram_has_its_own_switch_in_vllm(mode: str, value: bool) -> None:
    made = plan(engram=HostEngram.model_validate({"mode": mode}))
    argv = export("vllm-uva", made).argv
    assert argv[0] == "--engram-config"
    assert json.loads(argv[1]) == {"cpu_offload": value}


def test_engram_on_disk_is_impossible_in_vllm() -> None:
    assert export("vllm-uva", plan(engram=HostEngram(mode="disk"))).verdict == "impossible"


# --------------------------------------------------------------------------------------- residency


def test_the_residency_document_is_the_plan() -> None:
    made = plan({"0": "0-3", "2": "7"}, tensors=("embed.weight",))
    outcome = export("residency", made)
    assert outcome.verdict == "exact"
    document = json.loads(outcome.text)
    assert document["schema"] == "moe-appliance.residency/1"
    assert document["plan_id"] == made.identity
    assert document["layers"] == {"0": "0-3", "2": "7"}
    assert document["tensors"] == ["embed.weight"]
    assert any("embedding" in note for note in outcome.notes)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (plan(codebook="mcg"), "EXL3"),
        (plan(topology=PlanTopology(tp=2, ep=2, vram_bytes_each=1)), "expert parallelism"),
        (plan(engram=HostEngram()), "no Engram tables"),
        (plan(engram=HostEngram(mode="disk")), "no Engram tables"),
    ],
)
def test_what_the_plugin_cannot_place_is_impossible(made: Plan, said: str) -> None:
    outcome = export("residency", made)
    assert outcome.verdict == "impossible"
    assert said in outcome.reason


# ---------------------------------------------------------------------------------------- llamacpp


def moved_by_llamacpp(outcome: Outcome) -> set[int]:
    """The layers whose experts llama.cpp keeps on the CPU."""
    words = list(outcome.argv)
    if words[:1] == ["--n-cpu-moe"]:
        return set(range(int(words[1])))
    if not words:
        return set()
    pattern, _, place = words[1].partition("=")
    assert place == "CPU"
    kinds = ("gate", "up", "down")
    return {layer for layer in range(99) if all(re.search(pattern, f"blk.{layer}.ffn_{k}_exps.weight") for k in kinds)}


@given(st.sets(st.integers(0, LAYERS - 1)))
def test_whole_layers_are_exactly_what_llamacpp_moves(layers: set[int]) -> None:
    outcome = export("llamacpp", whole(*layers))
    assert outcome.verdict == "exact"
    assert moved_by_llamacpp(outcome) == layers


def test_layers_without_experts_before_the_first_are_counted_by_n_cpu_moe() -> None:
    made = plan({"3": ALL, "4": ALL}, layers=6, moe_layers="3-5")
    assert export("llamacpp", made).argv == ("--n-cpu-moe", "5")


@given(st.dictionaries(st.sampled_from("0123"), st.sets(st.integers(0, 7)).map(ranges.spell)))
def test_other_plans_are_the_nearest_whole_layers_and_say_so(cold: dict[str, str]) -> None:
    made = plan(cold)
    outcome = export("llamacpp", made, catalogue())
    layers = moved_by_llamacpp(outcome)
    exact = all(len(made.cold(layer)) == (EXPERTS if layer in layers else 0) for layer in range(LAYERS))
    assert outcome.verdict == ("exact" if exact else "approximate")
    assert abs(len(layers) * EXPERTS - made.cold_count) <= EXPERTS / 2
    assert exact or f"layers {ranges.spell(layers)}" in outcome.reason or not layers


def test_the_embedding_is_in_host_ram_in_any_case_and_other_tensors_are_not() -> None:
    assert export("llamacpp", plan(tensors=("embed.weight",))).verdict == "exact"
    other = export("llamacpp", plan(tensors=("head.weight",)))
    assert other.verdict == "approximate"
    assert "head.weight stays on the cards" in other.reason


@pytest.mark.parametrize("name", ["llamacpp", "ktransformers"])
@pytest.mark.parametrize(
    ("made", "said"), [(plan({"0": ALL}, codebook="mcg"), "EXL3"), (plan({"0": ALL}, engram=HostEngram()), "Engram")]
)
def test_formats_and_tables_that_a_tool_does_not_know_are_impossible(name: str, made: Plan, said: str) -> None:
    outcome = export(name, made)
    assert outcome.verdict == "impossible"
    assert said in outcome.reason


# ----------------------------------------------------------------------------------- ktransformers


def test_equal_numbers_a_layer_are_a_number_and_the_rule_of_the_statistics() -> None:
    outcome = export("ktransformers", plan(dict.fromkeys("0123", "5-7"), selection=COUNTED))
    assert outcome.verdict == "approximate"
    assert outcome.argv == ("--kt-num-gpu-experts", "5", "--kt-expert-placement-strategy", "frequency")
    assert any("--init-expert-location" in note for note in outcome.notes)


@given(st.dictionaries(st.sampled_from("0123"), st.sets(st.integers(0, 7), min_size=1).map(ranges.spell), min_size=1))
def test_ktransformers_keeps_as_many_experts_on_the_cards_as_the_plan(cold: dict[str, str]) -> None:
    made = plan(cold)
    outcome = export("ktransformers", made)
    assert outcome.verdict == "approximate"
    total = LAYERS * EXPERTS
    resident = total - made.cold_count
    option, value = outcome.argv[:2]
    held = int(value) * LAYERS if option == "--kt-num-gpu-experts" else int(total * float(value))
    assert held == resident


def test_a_plan_that_moves_nothing_is_nothing_for_ktransformers() -> None:
    assert export("ktransformers", plan()).verdict == "impossible"


# ------------------------------------------------------------------------------------ exl3-command

EXL3 = plan({"0": "0-2"}, codebook="mcg", engram=HostEngram(), tensors=("embed.weight",))


def command(template: str, made: Plan = EXL3) -> Outcome:
    return export("exl3-command", made, template=template, plan_file="/srv/my plan.json")


def test_a_command_gets_the_plan_in_its_placeholders() -> None:
    outcome = command("run --file {plan_file} --x='{experts_json}' --engram={engram} -t {tensors}")
    assert outcome.verdict == "exact"
    assert outcome.argv == (
        "run",
        "--file",
        "/srv/my plan.json",
        '--x={"0":[0,1,2]}',
        "--engram=pinned",
        "-t",
        "embed.weight",
    )
    assert shlex.split(outcome.text) == list(outcome.argv)


def test_what_is_filled_in_is_never_filled_in_again() -> None:
    made = plan(codebook="mcg", tensors=("{plan_file}",))
    assert command("run {tensors}", made).argv == ("run", "{plan_file}")


def test_a_name_with_control_characters_goes_to_no_command_line() -> None:
    made = plan(codebook="mcg", tensors=("\x1b[31mred",))
    with pytest.raises(PlanError, match=r"\{tensors\} stands for has control characters"):
        command("run {tensors}", made)


def test_without_a_template_it_is_possible_in_principle_and_says_what_is_not_public() -> None:
    outcome = export("exl3-command", EXL3)
    assert outcome.verdict == "exact"
    assert outcome.reason.startswith("exact in principle: ")
    assert "not public" in outcome.reason
    assert "--template" in outcome.needs
    assert not outcome.text


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("run 'x", "not a command line"),
        ("", "not a command line"),
        ("run {plan}", r"unknown placeholder \{plan\}"),
        ("run", r"\{experts_json\}, \{engram\}, \{tensors\} does not occur"),
        ("run {experts_json} {tensors}", r"would be lost: \{engram\}"),
    ],
)
def test_a_template_that_cannot_carry_the_plan_is_refused(template: str, said: str) -> None:
    with pytest.raises(PlanError, match=said):
        command(template)


def test_only_the_plan_file_says_which_experts_of_the_draft_move() -> None:
    made = plan(host=PlanHost(draft_experts={"0": "1"}), draft_layers=1, draft_experts=2, codebook="mcg")
    assert command("run {plan_file}", made).argv
    with pytest.raises(PlanError, match="draft model"):
        command("run {experts_json}", made)


def test_a_model_that_is_not_exl3_is_impossible_for_an_exl3_engine() -> None:
    assert export("exl3-command", whole(0), template="run {plan_file}").verdict == "impossible"


def test_vllm_is_told_the_segment_that_every_quantisers_experts_have() -> None:
    found = catalogue()
    packed = {
        layer: tuple(replace(one, name=f"{one.name}_packed") for one in held) for layer, held in found.experts.items()
    }

    outcome = export("vllm-uva", whole(0), replace(found, experts=packed))

    assert outcome.argv[-2:] == ("--cpu-offload-params", "experts")


def test_a_budget_in_bytes_is_not_exact_for_experts_that_vllm_pads() -> None:
    outcome = export("vllm-uva", plan({"0": "0-7"}, family="gpt-oss"))

    assert outcome.verdict == "approximate"
    assert "pads" in outcome.reason
