"""The ready plans: what the planner makes, and fit for what they are for."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from appliance.plan.check import check
from appliance.plan.memory import stated
from appliance.plan.pages import page
from appliance.plan.planfile import load
from appliance.units import GIB
from gateway.state import Severity
from tests.checkpoint.packs.fixtures import PackFolder, catalogue, checkpoint
from tests.plan.planning import run

ROOT = Path(__file__).parents[2]
STUDY = "deepseek-v4.1-flash-2x-rtx-pro-6000.json"
PACKS = {STUDY: "study", "qwen3-30b-a3b-2x-32gb.json": "qwen3-moe", "gpt-oss-120b-1x-48gb.json": "gpt-oss"}


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("plans_generator", ROOT / "scripts" / "plans.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_files_are_what_the_planner_makes() -> None:
    assert generator().main(["--check"]) == 0


def test_a_file_that_is_not_is_named_and_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plans = generator()
    monkeypatch.setattr(plans, "PLANS", tmp_path)
    assert plans.main([]) == 0
    (tmp_path / STUDY).write_text("{}")
    assert plans.main(["--check"]) == 1
    assert f"plans/{STUDY} is not what the planner makes" in capsys.readouterr().err
    assert (tmp_path / STUDY).read_text() == "{}"


def test_there_are_no_other_files() -> None:
    assert {path.name for path in (ROOT / "plans").iterdir()} == {*PACKS, "README.md"}


@pytest.mark.parametrize(("file", "pack"), PACKS.items())
def test_a_ready_plan_fits_the_cards_and_the_checkpoint_that_it_is_for(file: str, pack: str) -> None:
    plan = load(ROOT / "plans" / file)
    memory = stated(plan.topology.vram_bytes_each, plan.topology.tp)
    checked = check(plan, checkpoint(pack), catalogue(pack), memory)
    assert plan.sealed
    assert checked.fits
    assert {finding.id for finding in checked.findings if finding.severity is not Severity.INFO} == set()
    assert checked.budget.figures == plan.budget


@pytest.mark.parametrize("file", PACKS)
def test_a_ready_plan_is_bound_to_no_hash_and_says_what_is_measured_and_what_reconstructed(file: str) -> None:
    plan = load(ROOT / "plans" / file)
    assert plan.model.index_sha256 is None
    assert plan.model.header_sha256 == ()
    assert re.search("measured", plan.note, re.IGNORECASE)
    assert "Reconstructed:" in plan.note


@pytest.mark.parametrize("file", PACKS)
def test_page_and_readme_name_each_plan_and_its_experts(file: str) -> None:
    assert f"`{file}`" in page()
    readme = (ROOT / "plans" / "README.md").read_text()
    row = next(line for line in readme.splitlines() if f"`{file}`" in line)
    assert f"{load(ROOT / 'plans' / file).cold_count:,} of" in row


def test_the_readmes_command_makes_the_example_anew(pack_folder: PackFolder, tmp_path: Path) -> None:
    readme = (ROOT / "plans" / "README.md").read_text().splitlines()
    line = next(line.strip() for line in readme if line.startswith("    moe-appliance plan make "))
    line = line.replace("DIR", str(pack_folder("qwen3-moe"))).replace("plan.json", str(tmp_path / "plan.json"))

    done = run(*line.split()[2:])

    assert done.exit_code == 0, done.output
    assert load(tmp_path / "plan.json").cold_count > 0


def test_the_plan_of_the_study_is_the_studys() -> None:
    plan = load(ROOT / "plans" / STUDY)
    assert plan.cold_count == 4608
    assert {len(plan.cold(layer)) for layer in range(40)} == {115, 116}
    assert plan.host.tensors == ("embed.weight",)
    assert plan.host.engram is not None
    assert plan.host.engram.mode == "pinned"
    assert plan.profile is not None
    assert (plan.profile.floor_tok_per_s, plan.profile.streams) == (40.0, 4)
    assert plan.budget is not None
    assert plan.budget["weights_bytes"] / GIB == pytest.approx(72.4, abs=0.6)


@pytest.mark.parametrize("file", [file for file in PACKS if file != STUDY])
def test_an_example_moves_something_and_no_more_than_it_has_to(file: str) -> None:
    plan = load(ROOT / "plans" / file)
    assert plan.profile is None
    needed = sum((plan.budget or {})[f"{part}_bytes"] for part in ("weights", "reserves", "kv"))
    assert plan.cold_count > 0
    assert 0 <= plan.topology.vram_bytes_each - needed < 64 * 2**20
