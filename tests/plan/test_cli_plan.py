"""`moe-appliance plan show`, `diff` and `export`: what goes where, and the exit codes."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from appliance.cli.app import app
from appliance.errors import PlanError
from appliance.plan.export.targets import TARGETS
from appliance.plan.planfile import load, save
from appliance.plan.schema import Plan
from tests.checkpoint.packs.fixtures import PackFolder
from tests.plan.plans import plan

QWEN = Path(__file__).parents[2] / "plans" / "qwen3-30b-a3b-2x-32gb.json"
ALL = "0-7"


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["plan", *map(str, words)], env={"COLUMNS": "100"})


def refused(*words: str | Path) -> PlanError:
    result = run(*words)
    assert isinstance(result.exception, PlanError)
    assert result.exception.exit_code == 1
    assert not result.stdout
    return result.exception


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return written(tmp_path, plan({"0": ALL, "2": "7"}))


def written(folder: Path, made: Plan, name: str = "plan.json") -> Path:
    save(made, folder / name)
    return folder / name


# -------------------------------------------------------------------------------------------- show


def test_show_draws_each_layer_and_names_each_tool(file: Path) -> None:
    result = run("show", file)
    assert result.exit_code == 0
    assert "layer 0 8/8 ████████" in result.stdout
    assert all(f"{name}: " in result.stdout for name in TARGETS)


def test_show_in_ascii_has_no_other_character(file: Path) -> None:
    result = run("show", file, "--ascii")
    assert result.stdout.isascii()
    assert "layer 2 1/8 .......#" in result.stdout


def test_show_for_programs_is_the_plan_and_what_follows_from_it(file: Path) -> None:
    shown = json.loads(run("show", file, "--json").stdout)
    assert shown["sealed"] is True
    assert shown["identity"] == shown["plan"]["plan_id"]
    assert shown["cold_experts"] == 9
    assert shown["cold_by_layer"] == {"0": 8, "2": 1}
    assert shown["exports"]["residency"]["verdict"] == "exact"


def test_show_of_an_edited_file_says_so(file: Path) -> None:
    file.write_text(file.read_text().replace('"2": "7"', '"2": "6"'))
    result = run("show", file)
    assert result.exit_code == 0
    assert "edited since it was made" in result.stdout
    assert json.loads(run("show", file, "--json").stdout)["sealed"] is False


def test_a_file_that_is_no_plan_is_an_error_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"a": 1}')
    assert "x.json:1: schema is missing" in refused("show", tmp_path / "x.json").message


# -------------------------------------------------------------------------------------------- diff


def test_the_same_decision_ends_with_0_whatever_else_is_in_the_files(file: Path, tmp_path: Path) -> None:
    other = written(tmp_path, load(file).model_copy(update={"note": "another"}), "other.json")
    result = run("diff", file, other)
    assert result.exit_code == 0
    assert "also differ, and decide nothing: note" in result.stdout
    assert json.loads(run("diff", file, other, "--json").stdout)["same"] is True


def test_another_decision_ends_with_1_and_says_which(file: Path, tmp_path: Path) -> None:
    other = written(tmp_path, plan({"0": ALL}), "other.json")
    result = run("diff", file, other)
    assert result.exit_code == 1
    assert "layer 2: 7 back" in result.stdout
    found = run("diff", file, other, "--json")
    assert found.exit_code == 1
    assert json.loads(found.stdout)["experts"] == {"2": {"to_cards": "7", "to_host": ""}}


# ------------------------------------------------------------------------------------------ export


def test_an_exact_export_goes_to_standard_output_alone_and_its_verdict_beside_it(tmp_path: Path) -> None:
    result = run("export", written(tmp_path, plan({"0": ALL})), "--to", "llamacpp")
    assert result.exit_code == 0
    assert result.stdout == "--n-cpu-moe 1\n"
    assert "llamacpp: exact" in result.stderr


def test_an_approximate_export_is_refused_until_it_is_asked_for(file: Path) -> None:
    error = refused("export", file, "--to", "llamacpp")
    assert "only approximate" in error.message
    assert "nearest are whole layers 0" in error.message
    assert "--approximate" in error.remedy
    taken = run("export", file, "--to", "llamacpp", "--approximate")
    assert taken.exit_code == 0
    assert taken.stdout == "--n-cpu-moe 1\n"
    assert "llamacpp: approximate" in taken.stderr


@pytest.mark.parametrize("more", [[], ["--approximate"]])
def test_an_impossible_export_is_refused_with_its_reason(tmp_path: Path, more: list[str]) -> None:
    made = written(tmp_path, plan({"0": ALL}, codebook="mcg"))
    assert "residency: impossible: the experts are EXL3" in refused("export", made, "--to", "residency", *more).message


def test_programs_get_verdict_and_reason_of_what_is_refused_too(file: Path) -> None:
    result = run("export", file, "--to", "llamacpp", "--json")
    assert result.exit_code == 1
    shown = json.loads(result.stdout)
    assert shown["verdict"] == "approximate"
    assert "only approximate" in shown["error"]
    assert shown["argv"] is None
    assert shown["differs"] == {"experts_added": 0, "experts_left": 1}


def test_programs_get_the_arguments_of_what_is_given(tmp_path: Path) -> None:
    shown = json.loads(run("export", written(tmp_path, plan({"0": ALL})), "--to", "llamacpp", "--json").stdout)
    assert shown["error"] is None
    assert shown["argv"] == ["--n-cpu-moe", "1"]


def test_a_document_is_written_to_a_new_file_only(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "residency.json"
    result = run("export", file, "--to", "residency", "--out", out)
    assert result.exit_code == 0
    assert not result.stdout
    assert json.loads(out.read_text())["plan_id"] == load(file).plan_id
    assert "exists already" in refused("export", file, "--to", "residency", "--out", out).message


def test_nothing_is_written_of_what_is_refused(file: Path, tmp_path: Path) -> None:
    refused("export", file, "--to", "llamacpp", "--out", tmp_path / "argv")
    assert not (tmp_path / "argv").exists()


def test_a_plan_that_moves_nothing_adds_nothing_to_a_command_line(tmp_path: Path) -> None:
    result = run("export", written(tmp_path, plan()), "--to", "llamacpp")
    assert result.exit_code == 0
    assert not result.stdout
    assert "nothing to add" in result.stderr


def test_a_tool_that_is_not_known_is_wrong_usage(file: Path) -> None:
    result = run("export", file, "--to", "magic")
    assert result.exit_code == 2
    assert "ktransformers" in result.stderr


def test_a_template_gets_the_full_path_of_the_plan(tmp_path: Path) -> None:
    made = written(tmp_path, plan({"0": ALL}, codebook="mcg"))
    assert "--template" in refused("export", made, "--to", "exl3-command").remedy
    result = run("export", made, "--to", "exl3-command", "--template", "run --plan {plan_file}")
    assert shlex.split(result.stdout) == ["run", "--plan", str(made)]


def test_the_budget_of_vllm_comes_from_the_checkpoints_headers(tmp_path: Path, pack_folder: PackFolder) -> None:
    shape = load(QWEN)
    host = shape.host.model_copy(update={"experts": dict.fromkeys("01", "0-127"), "tensors": ()})
    made = written(tmp_path, shape.model_copy(update={"host": host}))
    assert "--checkpoint" in refused("export", made, "--to", "vllm-uva").remedy
    result = run("export", made, "--to", "vllm-uva", "--checkpoint", pack_folder("qwen3-moe"))
    assert result.exit_code == 0
    words = shlex.split(result.stdout)
    assert words[:3] == ["--offload-backend", "uva", "--cpu-offload-gb"]
    per_card = 2 * 128 * 3 * 2048 * 768 * 2 / 2 / 2**30
    assert per_card * 0.8 < float(words[3]) < per_card
    assert words[5:] == ["experts"]


def test_a_checkpoint_of_another_model_is_refused(file: Path, pack_folder: PackFolder) -> None:
    error = refused("export", file, "--to", "vllm-uva", "--checkpoint", pack_folder("qwen3-moe"))
    assert "the plan is for another model" in error.message


def test_a_name_from_the_file_cannot_steer_the_terminal(tmp_path: Path) -> None:
    made = written(tmp_path, plan({"0": ALL}, tensors=("\x1b[31mred",)))
    result = run("export", made, "--to", "llamacpp", "--approximate")
    assert "\x1b" not in result.stderr + run("show", made).stdout
    assert "\x1b" not in refused("export", made, "--to", "llamacpp").message
