"""What the residency plugin would refuse, or ask for, once a model is loaded is said, or given, before it is."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from appliance.engine.vllm.beside_residency import BACKENDS, REFUSED, backend_flags, clashes, unmeasured
from appliance.engine.vllm.place import place_of
from appliance.engine.vllm.profiles import PROFILES
from gateway.state import Severity
from tests.appliance.vllm.vllm_requests import settings

PLUGIN = Path("appliance/residency/vllm_0_26.py").read_text()
PARSER = json.loads(Path("tests/data/vllm-0.26.0-parser.json").read_text())


def found(**said: object) -> list[str]:
    return list(clashes(settings(placement="residency", **said)))


@pytest.mark.parametrize("flag", sorted(REFUSED))
def test_what_cannot_stand_beside_it_is_named_as_it_was_written(flag: str) -> None:
    assert found(args=[flag, "2"]) == found(args=[flag]) == [f"args {flag}"]
    assert flag in json.dumps(PARSER), "an argument of that vLLM"


@pytest.mark.parametrize("args", [["-ep"], ["--enable_lora"], ["--data-parallel-size=2"], ["-dp", "2"]], ids=" ".join)
def test_in_every_spelling(args: list[str]) -> None:
    assert found(args=args) == [f"args {args[0].partition('=')[0]}"]


@pytest.mark.parametrize(
    "args",
    [
        ["--no-enable-lora"],
        ["-dp", "1"],
        ["--cpu-offload-gb", "0.0"],
        ["--offload-backend", "auto"],
        ["--max-num-seqs", "4"],
    ],
)
def test_what_is_switched_off_is_no_clash(args: list[str]) -> None:
    assert found(args=args) == []


def test_what_the_worker_refuses_by_its_flag_is_refused_before_or_left_to_it_on_purpose() -> None:
    there = set(re.findall(r"\((--[a-z-]+)", PLUGIN)) | set(re.findall(r", (--[a-z-]+)\)", PLUGIN))
    assert there - REFUSED == {"--nnodes"}, "[engine.nodes] says it"


def test_settings_of_our_own_are_looked_at_too() -> None:
    assert found(pipeline_parallel=2) == ["pipeline_parallel"]


METHOD_OF = {
    "": "UnquantizedFusedMoEMethod",
    "fp8": "Fp8MoEMethod",
    "awq": "AutoAWQMoEMethod",
    "modelopt_fp4": "ModelOptNvFp4FusedMoE",
    "mxfp4": "GptOssMxfp4MoEMethod",
}


@pytest.mark.parametrize("quantisation", BACKENDS)
def test_the_backend_is_given_that_the_plugin_wants(quantisation: str) -> None:
    (flag,) = backend_flags(settings(placement="residency"), quantisation)
    (wanted,) = re.findall(rf'"{METHOD_OF[quantisation]}": \("[a-z0-9_]+", "[A-Z]+", "([a-z]+)"\)', PLUGIN)
    assert flag.words == ("--moe-backend", wanted)


@pytest.mark.parametrize("quantisation", [None, "compressed-tensors", "modelopt"])
def test_of_others_it_says_itself_what_it_takes(quantisation: str | None) -> None:
    assert backend_flags(settings(placement="residency"), quantisation) == ()


@pytest.mark.parametrize(
    "args",
    [
        ["--moe-backend", "triton"],
        ["--kernel-config", '{"moe_backend": "triton"}'],
        ["--kernel-config.moe_backend=triton"],
        ["-q", "awq"],
    ],
    ids=" ".join,
)
def test_what_the_operator_says_of_it_stays(args: list[str]) -> None:
    assert backend_flags(settings(placement="residency", args=args), "awq") == ()


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, ""),
        ({"quantization_config": {"quant_method": "FP8"}}, "fp8"),
        ({"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}, "modelopt_fp4"),
        ({"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"}}, "modelopt"),
        ({"quantization_config": 3}, None),
        ({"quantization_config": {"producer": {}}}, None),
        ({"compression_config": {}}, None),
        ({"text_config": {"quantization_config": {"quant_method": "awq"}}}, None),
        ({"text_config": {"hidden_size": 8}}, ""),
        ({"model_type": "deepseek_v4", "quantization_config": {"quant_method": "fp8"}}, None),
        ({"expert_dtype": "fp4", "quantization_config": {"quant_method": "fp8"}}, None),
        ([], None),
    ],
)
def test_the_quantisation_is_what_config_json_says(config: object, expected: str | None, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    made = place_of(settings(), PROFILES["vllm-generic"], str(tmp_path), tmp_path)
    assert made.quantisation == expected


def test_modelopts_own_file_may_say_another(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "hf_quant_config.json").write_text("{}")
    assert place_of(settings(), PROFILES["vllm-generic"], str(tmp_path), tmp_path).quantisation is None


@pytest.mark.parametrize("text", [None, "{", "[" * 100_000])
def test_a_config_that_cannot_be_read_says_nothing(text: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    assert place_of(settings(), PROFILES["vllm-generic"], str(tmp_path), tmp_path).quantisation is None


def test_cards_that_nobody_measured_it_on_are_told() -> None:
    said = unmeasured(((12, 0), (12, 0)))
    assert said is not None
    assert (said.severity, "12.0; measured on 9.0" in said.observed) == (Severity.INFO, True)
    assert unmeasured(((9, 0), None)) is None


@pytest.mark.parametrize("name", ["MOE_RESIDENCY_FILE", "MOE_RESIDENCY_STAGING_TOKENS", "MOE_RESIDENCY_NEW"])
def test_the_plugins_variables_are_not_the_operators(name: str) -> None:
    with pytest.raises(ValidationError, match=f"env: {name} is set by the appliance; follow_mib_per_s"):
        settings(env={name: "1"})
