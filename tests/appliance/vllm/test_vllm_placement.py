"""A plan reaches the engine whole, or the start is refused and says what would be lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from appliance.engine.vllm.placement import RESIDENCY_VLLM, RESIDENT_WORKER, Placed, placed, resident
from appliance.engine.vllm.profiles import PROFILES
from appliance.plan import planfile
from appliance.plan.export.outcome import Outcome, impossible
from appliance.plan.schema import Plan
from appliance.residency import decided
from appliance.residency.document import parse
from gateway.state import Severity
from tests.appliance.vllm.vllm_requests import PLANS, TWO_CARDS, settings

UVA = Outcome(
    "exact", "why", argv=("--offload-backend", "uva", "--cpu-offload-gb", "3", "--cpu-offload-params", "experts")
)


def plan(name: str = "deepseek-v4.1-flash-2x-rtx-pro-6000") -> Plan:
    return planfile.load(PLANS / f"{name}.json")


def told(
    found: Plan | None,
    uva: Outcome | None = None,
    profile: str = TWO_CARDS,
    version: tuple[int, ...] = RESIDENCY_VLLM,
    **said: Any,
) -> Placed:
    return placed(settings(**said), PROFILES[profile], found, "/p.json", uva, version)


def words(made: Placed) -> list[str]:
    return [word for flag in made.flags for word in flag.words]


def test_without_a_plan_nothing_is_told() -> None:
    assert told(None) == Placed()


def test_a_plan_that_would_be_ignored_is_refused() -> None:
    (finding,) = told(plan()).findings
    assert (finding.id, finding.severity) == ("engine.placement", Severity.FAIL)
    assert finding.title == "The plan would be ignored"
    assert "4,608 experts" in finding.observed


def test_a_plan_that_moves_no_expert_is_no_reason_to_refuse() -> None:
    none = plan().model_copy(update={"host": plan().host.model_copy(update={"experts": {}})})
    assert told(none).findings == ()
    stock = told(none, profile="vllm-generic")
    assert words(stock) == ["--engram-config", json.dumps({"cpu_offload": True})]
    assert [flag.build for flag in stock.flags] == ["operator"]


def test_a_build_of_the_operators_is_told_by_the_plans_file() -> None:
    made = told(plan(), placement="command", plan_args=["--placement", "{plan_file}"])
    assert words(made) == ["--placement", "/p.json"]
    assert [flag.build for flag in made.flags] == ["operator"]
    assert made.findings == ()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--placement", "{experts_json}"], "{engram}, {tensors} does not occur"),
        (["--placement", "{nothing}"], "unknown placeholder {nothing}"),
        (["{plan_file}"], "belongs to no flag"),
        (["--host", "{plan_file}"], "is not for you to set"),
    ],
)
def test_a_part_of_the_plan_is_never_lost_silently(args: list[str], said: str) -> None:
    made = told(plan(), placement="command", plan_args=args)
    (finding,) = made.findings
    assert finding.severity is Severity.FAIL
    assert said in finding.observed
    assert "--template" not in finding.observed
    assert made.flags == ()


def test_vllms_own_offload_is_exact_for_whole_layers() -> None:
    made = told(plan(), UVA, placement="uva")
    assert words(made) == list(UVA.argv)
    assert {flag.build for flag in made.flags} == {"pinned"}
    assert made.findings == ()


@pytest.mark.parametrize("args", [["--spec-tokens", "2"], ["--spec-method", "mtp"]])
def test_a_draft_that_the_operator_chose_keeps_it_too(args: list[str]) -> None:
    made = told(plan(), UVA, placement="uva", profile="vllm-generic", args=args)
    assert [one.name for one in made.env] == ["VLLM_USE_V2_MODEL_RUNNER"]


def test_a_draft_model_keeps_the_model_runner_that_obeys_the_offload() -> None:
    assert [one.name for one in told(plan(), UVA, placement="uva").env] == ["VLLM_USE_V2_MODEL_RUNNER"]
    assert told(plan(), UVA, profile="vllm-generic", placement="uva").env == ()


def test_what_is_only_near_the_plan_is_said_with_figures() -> None:
    near = Outcome("approximate", "whole layers only", argv=UVA.argv, differs={"experts_added": 3})
    (finding,) = told(plan(), near, placement="uva").findings
    assert (finding.id, finding.severity) == ("engine.uva", Severity.WARN)
    assert '"experts_added": 3' in finding.observed


@pytest.mark.parametrize("uva", [None, impossible("Engram on disk"), Outcome("exact", "x", needs="the checkpoint")])
def test_an_offload_that_cannot_be_worked_out_is_refused(uva: Outcome | None) -> None:
    made = told(plan(), uva, placement="uva")
    assert [one.severity for one in made.findings] == [Severity.FAIL]
    assert made.flags == ()


def test_single_experts_of_stock_vllm_are_placed_by_the_plugin_with_the_plans_document() -> None:
    made = told(plan("qwen3-30b-a3b-2x-32gb"), profile="vllm-generic", placement="residency")
    assert words(made) == ["--worker-cls", RESIDENT_WORKER]
    assert made.findings == ()
    read = parse(json.dumps(made.document), "document")
    assert sum(map(len, read.cold.values())) == plan("qwen3-30b-a3b-2x-32gb").cold_count


def test_the_plugin_is_told_where_it_is_what_it_reads_and_writes_and_what_the_operator_set() -> None:
    set_ = settings(placement="residency", follow_mib_per_s=7, staging_tokens=0)
    made = resident(set_, Path("/state/d.json"), Path("/state/plugin"), Path("/state/now"))
    assert {one.name: one.value for one in made} == {
        "MOE_RESIDENCY_FILE": "/state/d.json",
        "MOE_RESIDENCY_STATE": "/state/now",
        "MOE_RESIDENCY_FOLLOW_MIB_PER_S": "7",
        "MOE_RESIDENCY_STAGING_TOKENS": "0",
        "PYTHONPATH": "/state/plugin",
    }


@pytest.mark.parametrize(
    ("name", "profile", "version", "said"),
    [
        ("deepseek-v4.1-flash-2x-rtx-pro-6000", TWO_CARDS, RESIDENCY_VLLM, "EXL3"),
        ("qwen3-30b-a3b-2x-32gb", "vllm-generic", (0, 32, 0), "made for vLLM 0.26.0 on cards, and this is 0.32.0"),
        ("qwen3-30b-a3b-2x-32gb", "vllm-cpu-tiny", RESIDENCY_VLLM, "on cards"),
    ],
)
def test_what_the_plugin_cannot_place_is_refused_before_the_start(
    name: str, profile: str, version: tuple[int, ...], said: str
) -> None:
    made = told(plan(name), profile=profile, version=version, placement="residency")
    (finding,) = made.findings
    assert (finding.id, finding.severity) == ("engine.placement", Severity.FAIL)
    assert said in finding.observed
    assert (made.flags, made.document) == ((), None)


def test_the_version_and_the_worker_are_those_of_the_plugin() -> None:
    assert ".".join(map(str, RESIDENCY_VLLM)) == decided.VLLM
    assert RESIDENT_WORKER.startswith("moe_residency.worker.")


def test_a_plan_for_another_number_of_cards_is_refused_before_the_start() -> None:
    made = told(plan("qwen3-30b-a3b-2x-32gb"), profile="vllm-generic", placement="residency", tensor_parallel=1)
    (finding,) = made.findings
    assert (finding.id, finding.severity) == ("engine.placement", Severity.FAIL)
    assert "among 2 cards; [engine] tensor_parallel = 1" in finding.observed
    assert "plan make --gpus 1" in finding.remedy
    same = told(plan("qwen3-30b-a3b-2x-32gb"), profile="vllm-generic", placement="residency", tensor_parallel=2)
    assert same.findings == ()
    stages = told(plan(), UVA, placement="uva", tensor_parallel=1, pipeline_parallel=2)
    assert [one.severity for one in stages.findings if one.severity is Severity.FAIL] == [], "the plugin's rule alone"


def test_what_the_plugin_cannot_stand_beside_is_refused_before_the_start() -> None:
    args = ["--enable-lora", "--max-num-seqs", "4"]
    (finding,) = told(plan("qwen3-30b-a3b-2x-32gb"), profile="vllm-generic", placement="residency", args=args).findings
    assert "does not go together with args --enable-lora" in finding.observed
    assert finding.remedy == "change [engine]: leave out args --enable-lora"


def test_the_backend_that_keeps_rows_in_place_is_given() -> None:
    set_ = settings(placement="residency")
    made = placed(set_, PROFILES["vllm-generic"], plan("qwen3-30b-a3b-2x-32gb"), "/p", None, RESIDENCY_VLLM, "")
    assert words(made) == ["--worker-cls", RESIDENT_WORKER, "--moe-backend", "triton"]
