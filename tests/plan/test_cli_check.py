"""`moe-appliance plan check`: figures, exit codes, and what is shown."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from appliance.errors import PlanError
from appliance.plan import planfile
from appliance.plan.planner import plan_for
from appliance.plan.request import Request, model_of
from appliance.plan.schema import Targets
from appliance.units import GIB
from tests.checkpoint.packs.fixtures import PackFolder, catalogue, checkpoint
from tests.plan.planning import STUDY_CARDS, answer, run

pytestmark = pytest.mark.usefixtures("no_cards")


def written(path: Path, experts: int, keep_embedding: bool = False) -> Path:
    """A plan for the stand-in for the study's pack, and for cards of 80 GiB."""
    asked = Request(80 * GIB, experts=experts, keep_embedding=keep_embedding, targets=Targets(kv_bytes=8 * GIB))
    planfile.save(plan_for(catalogue("study"), model_of(checkpoint("study"), "lab/study"), asked), path)
    return path


@pytest.fixture
def studys(tmp_path: Path) -> Path:
    return written(tmp_path / "study.json", 4608)


def test_all_in_vram_does_not_fit_with_exit_78(pack_folder: PackFolder, tmp_path: Path) -> None:
    plan = written(tmp_path / "all.json", 0, keep_embedding=True)

    code, said = answer("check", plan, "--checkpoint", pack_folder("study"), *STUDY_CARDS)

    assert code == 78
    assert said["fits"] is False
    assert said["per_gpu_gib"] == pytest.approx(102.1, abs=0.2)
    assert said["over_gib"] == pytest.approx(6.5, abs=0.05)
    assert said["verdict"].startswith("does not fit: 6.5 GiB over with the weights alone")


def test_the_studys_plan_fits_with_exit_0(pack_folder: PackFolder, studys: Path) -> None:
    code, said = answer("check", studys, "--checkpoint", pack_folder("study"), *STUDY_CARDS)

    assert code == 0
    assert (said["fits"], said["over_gib"], said["short_gib"]) == (True, 0, 0)
    assert said["per_gpu_gib"] == pytest.approx(72.4, abs=0.6)
    assert said["findings"] == []
    assert said["cards"] == "as stated"


def test_another_kv_cache_can_be_asked_about(pack_folder: PackFolder, studys: Path) -> None:
    line = ("check", studys, "--checkpoint", pack_folder("study"), *STUDY_CARDS)

    code, said = answer(*line, "--kv-gib", "20")

    assert code == 78
    assert said["short_gib"] == pytest.approx(20 - answer(*line)[1]["kv_left_gib"])
    assert [one["id"] for one in said["findings"]] == ["plan.fits"]


def test_without_cards_the_plans_own_are_taken_and_that_is_said(pack_folder: PackFolder, studys: Path) -> None:
    code, said = answer("check", studys, "--checkpoint", pack_folder("study"))

    assert code == 78  # 80 GiB each
    assert said["cards"] == "as the plan says (the cards of this box cannot be asked: no driver)"
    assert [bar["capacity_gib"] for bar in said["per_gpu"]] == [80, 80]


def test_fewer_cards_than_the_plan_is_for_is_a_finding(pack_folder: PackFolder, studys: Path) -> None:
    code, said = answer("check", studys, "--checkpoint", pack_folder("study"), "--gpus", "1", "--vram-gib", "95.6")

    assert code == 78
    assert [one["id"] for one in said["findings"]] == ["plan.tp"]


def test_another_checkpoint_is_a_finding(pack_folder: PackFolder, studys: Path) -> None:
    code, said = answer("check", studys, "--checkpoint", pack_folder("glm-4.5-air"), *STUDY_CARDS)

    assert code == 78
    assert {"plan.model", "plan.geometry", "plan.tensors", "plan.engram"} <= {one["id"] for one in said["findings"]}


def test_people_see_bars_a_legend_with_figures_and_the_findings(pack_folder: PackFolder, studys: Path) -> None:
    done = run("check", studys, "--checkpoint", pack_folder("study"), *STUDY_CARDS, "--kv-gib", "20")

    shown = done.stdout.splitlines()
    assert shown[0].startswith("does not fit: ~4.8 GiB short on a card")
    assert any("A  routed experts" in line and "66.9 GiB" in line for line in shown)
    assert "no bytes on a card: embedding, Engram, vision tower (not loaded)" in shown
    assert any("CUDA graphs" in line and "~1.5 GiB" in line for line in shown)
    assert any(line.startswith("fail The cards are ~4.8 GiB short  plan.fits") for line in shown)
    assert any("moe-appliance plan make --checkpoint" in line for line in shown)


def test_the_remedy_as_it_is_typed_puts_a_plan_that_fits_in_the_files_place(
    pack_folder: PackFolder, tmp_path: Path
) -> None:
    plan, folder = tmp_path / "my plan.json", pack_folder("glm-4.5-air")
    options = ("--gpus", "2", "--streams", "2", "--context", "65536", "--cap", "3", "--validated", "a day's test")
    assert run("make", "--checkpoint", folder, "--vram-gib", "95.6", *options, "--out", plan).exit_code == 0
    before = planfile.load(plan)

    code, said = answer("check", plan, "--checkpoint", folder, "--gpus", "2", "--vram-gib", "80")
    (finding,) = said["findings"]
    again = run(*shlex.split(finding["remedy"])[2:])

    after = planfile.load(plan)
    assert code == 78
    assert again.exit_code == 0, again.output
    assert (after.targets, after.profile, after.model) == (before.targets, before.profile, before.model)
    assert after.cold_count > before.cold_count


def test_explain_adds_formulas_and_sources(pack_folder: PackFolder, studys: Path) -> None:
    line = ("check", studys, "--checkpoint", pack_folder("study"), *STUDY_CARDS)

    assert "10,752 of 15,360 experts" not in run(*line).stdout
    explained = run(*line, "--explain").stdout
    assert "10,752 of 15,360 experts x 6,673,164 B a card + 79,091,712 B of cold experts' scales, biases" in explained
    assert "vision tower (not loaded): 0 B; 970,536,960 B not loaded" in explained


def test_a_terminal_that_has_ascii_alone_gets_the_same_figures(pack_folder: PackFolder, studys: Path) -> None:
    done = run("check", studys, "--checkpoint", pack_folder("study"), *STUDY_CARDS, charset="ascii")

    assert done.exit_code == 0, done.output
    assert done.stdout.isascii()
    assert "~88.4 GiB of 95.6 GiB, ~7.2 GiB left" in done.stdout


def test_a_plan_that_was_changed_by_hand_is_refused_with_its_new_id(pack_folder: PackFolder, studys: Path) -> None:
    table = json.loads(studys.read_text())
    table["host"]["experts"]["0"] = "0"
    studys.write_text(json.dumps(table))

    code, said = answer("check", studys, "--checkpoint", pack_folder("study"), *STUDY_CARDS)

    assert code == 78
    assert [one["id"] for one in said["findings"]] == ["plan.digest", "plan.stale"]


def test_a_file_that_is_no_plan_is_named(pack_folder: PackFolder, tmp_path: Path) -> None:
    done = run("check", tmp_path / "none.json", "--checkpoint", pack_folder("study"), *STUDY_CARDS)

    assert isinstance(done.exception, PlanError)
    assert "none.json" in done.exception.message
