"""One look at box, plan and checkpoint: what keeps an engine from starting is a finding, and one cause is one line."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from appliance.box import forced
from appliance.box.settings import PreflightSettings
from appliance.config import Config, Paths, load
from appliance.daemon import adapter_of
from appliance.errors import ConfigError
from appliance.examine import FINDING_IDS, Examiner
from appliance.plan import inspect_child, planfile
from appliance.plan.check import PLAN_IDS
from appliance.plan.inspection import Question
from appliance.plan.memory import BoxMemory
from appliance.plan.schema import Plan, Targets
from gateway.state import Finding, Severity
from gateway.status.findings import arranged
from tests.box.boxes import furnish, put
from tests.checkpoint.packs.fixtures import PackFolder
from tests.fake_nvml import FakeNvml, Setup, scenarios

ROOT = Path(__file__).parents[2]
STUDY = ROOT / "plans/deepseek-v4.1-flash-2x-rtx-pro-6000.json"


def configured(tmp_path: Path, toml: str) -> tuple[Config, Paths]:
    file = tmp_path / "appliance.toml"
    engine = f'[engine]\nkind = "command"\ncommand = ["{sys.executable}", "--port", "{{port}}"]\n'
    file.write_text(engine + toml)
    return load(file, {})


def examiner(tmp_path: Path, toml: str, setup: Setup | None = None) -> Examiner:
    fake = FakeNvml(tmp_path, setup)
    furnish(fake.root)
    config, paths = configured(tmp_path, toml)
    paths.state_dir.mkdir(exist_ok=True)
    adapter = adapter_of(config, paths)
    return Examiner(config, paths, adapter, fake.environ(), fake.root, saves_plans=True)


def with_plan(plan: Path, checkpoint: Path | None = None, more: str = "") -> str:
    folder = f'checkpoint = "{checkpoint}"\n' if checkpoint is not None else ""
    return f'[plan]\nfile = "{plan}"\n{folder}{more}'


def failed(findings: tuple[Finding, ...]) -> list[str]:
    return [finding.id for finding in findings if finding.severity is Severity.FAIL]


def too_large(tmp_path: Path, name: str = "large.json") -> Path:
    """The study's plan, with more KV cache than any card has."""
    plan = planfile.load(STUDY)
    wants = plan.model_copy(update={"targets": Targets(kv_bytes=64 << 30)})
    planfile.save(wants, tmp_path / name)
    return tmp_path / name


def test_a_plan_that_fits_refuses_nothing_and_says_so(tmp_path: Path, pack_folder: PackFolder) -> None:
    seen = examiner(tmp_path, with_plan(STUDY, pack_folder("study"))).examine()
    assert failed(seen.findings) == []
    assert seen.plan is not None
    assert seen.plan.fits
    assert re.fullmatch(r"fits: ~\d+\.\d GiB a card left for KV", seen.plan.verdict)
    assert [bar.id for bar in seen.plan.bars] == ["gpu0", "gpu1", "node0"]
    assert seen.plan.bars[0].capacity_bytes == 97_887 * 1024**2
    assert (seen.plan.cold_experts, seen.plan.experts, seen.plan.made) == (4608, 15360, False)


def test_a_plan_that_does_not_fit_is_one_line(tmp_path: Path, pack_folder: PackFolder) -> None:
    seen = examiner(tmp_path, with_plan(too_large(tmp_path), pack_folder("study"))).examine()
    assert failed(seen.findings) == ["vram.total", "plan.fits"]
    (row,) = [row for row in arranged(seen.findings) if row.severity is Severity.FAIL]
    assert (row.id, [child.id for child in row.folded]) == ("plan.fits", ["vram.total"])
    assert "moe-appliance plan make --checkpoint" in row.remedy
    assert seen.plan is not None
    assert not seen.plan.fits


def test_a_plan_that_is_not_there_is_made_and_kept(tmp_path: Path, pack_folder: PackFolder) -> None:
    file = tmp_path / "made.json"
    looked = examiner(tmp_path, with_plan(file, pack_folder("study"), "make = true\n"))
    first = looked.examine()
    assert failed(first.findings) == []
    assert first.plan is not None
    assert (first.plan.made, first.plan.cold_experts) == (True, 3419)
    again = looked.examine()
    assert again.plan == first.plan.model_copy(update={"made": False})
    made = planfile.load(file)
    assert made.plan_id == made.identity == first.plan.plan_id
    assert made.topology.gpu_names == ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition",) * 2


def test_a_plan_is_not_made_unless_that_is_said(tmp_path: Path, pack_folder: PackFolder) -> None:
    seen = examiner(tmp_path, with_plan(tmp_path / "made.json", pack_folder("study"))).examine()
    assert failed(seen.findings) == ["plan.file"]
    assert not (tmp_path / "made.json").exists()


def test_no_plan_is_made_for_a_box_without_cards(tmp_path: Path, pack_folder: PackFolder) -> None:
    toml = with_plan(tmp_path / "made.json", pack_folder("study"), "make = true\n")
    seen = examiner(tmp_path, toml, scenarios.NO_DRIVER).examine()
    (row,) = [row for row in arranged(seen.findings) if row.severity is Severity.FAIL]
    assert (row.id, [child.id for child in row.folded]) == ("nvml.load", ["plan.file"])
    assert not (tmp_path / "made.json").exists()


@pytest.mark.parametrize("gpus", ["", "[preflight]\ngpus = 2\n"])
def test_no_plan_is_made_for_the_cards_that_happen_to_answer(
    tmp_path: Path, pack_folder: PackFolder, gpus: str
) -> None:
    # given a box with one of its two cards lost
    toml = with_plan(tmp_path / "made.json", pack_folder("study"), "make = true\n" + gpus)
    looked = examiner(tmp_path, toml, scenarios.ONE_LOST)
    seen = looked.examine()
    assert "plan.file" in failed(seen.findings)
    assert not (tmp_path / "made.json").exists()
    assert [row.id for row in arranged(seen.findings) if row.id == "plan.file"] == []
    # when it is back
    FakeNvml(tmp_path, scenarios.TWO_GOOD)
    furnish(looked.root)
    assert failed(looked.examine().findings) == []
    assert planfile.load(tmp_path / "made.json").topology.tp == 2


def test_somebody_who_only_looks_saves_no_plan(tmp_path: Path, pack_folder: PackFolder) -> None:
    looked = examiner(tmp_path, with_plan(tmp_path / "made.json", pack_folder("study"), "make = true\n"))
    seen = replace(looked, saves_plans=False).examine()
    assert seen.plan is not None
    assert seen.plan.made
    assert not (tmp_path / "made.json").exists()


@pytest.mark.parametrize("setup", [scenarios.ONE_MISSING, scenarios.ONE_CARD, scenarios.MISMATCH, scenarios.NO_DRIVER])
def test_missing_cards_are_one_line_with_a_plan_too(tmp_path: Path, pack_folder: PackFolder, setup: Setup) -> None:
    seen = examiner(tmp_path, with_plan(STUDY, pack_folder("study")), setup).examine()
    rows = [row for row in arranged(seen.findings) if row.severity is Severity.FAIL]
    assert len(rows) == 1
    assert rows[0].id in ("gpu.lost", "gpu.count", "nvml.mismatch", "nvml.load")
    assert "plan.tp" in [child.id for child in rows[0].folded]


def test_a_plan_for_another_number_of_cards_than_the_configuration_says(
    tmp_path: Path, pack_folder: PackFolder
) -> None:
    toml = with_plan(STUDY, pack_folder("study"), "[preflight]\ngpus = 1\n")
    assert "plan.gpus" in failed(examiner(tmp_path, toml).examine().findings)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "plan.json:1:2: not JSON"),
        ('{"schema": "moe-appliance.plan/9"}', "plan/9"),
        ("[]", "plan.json:1"),
        ("{}", "schema is missing"),
    ],
)
def test_a_broken_plan_is_a_finding_that_names_the_file(
    tmp_path: Path, pack_folder: PackFolder, text: str, said: str
) -> None:
    (tmp_path / "plan.json").write_text(text)
    seen = examiner(tmp_path, with_plan(tmp_path / "plan.json", pack_folder("study"))).examine()
    (finding,) = [finding for finding in seen.findings if finding.id == "plan.file"]
    assert str(tmp_path / "plan.json") in finding.observed
    assert said in finding.observed
    assert finding.remedy


def test_a_checkpoint_that_is_not_mounted_is_a_finding(tmp_path: Path) -> None:
    seen = examiner(tmp_path, with_plan(STUDY, tmp_path / "absent")).examine()
    (finding,) = [finding for finding in seen.findings if finding.id == "plan.checkpoint"]
    assert finding.severity is Severity.FAIL
    assert str(tmp_path / "absent") in finding.observed


def test_a_plan_without_a_checkpoint_is_a_warning_and_its_cards_are_checked(tmp_path: Path) -> None:
    seen = examiner(tmp_path, with_plan(STUDY), scenarios.ONE_CARD).examine()
    assert "gpu.count" in failed(seen.findings)
    assert "plan.unchecked" in [f.id for f in seen.findings if f.severity is Severity.WARN]
    assert seen.plan is None


def test_a_plan_for_another_checkpoint_is_told(tmp_path: Path, pack_folder: PackFolder) -> None:
    seen = examiner(tmp_path, with_plan(STUDY, pack_folder("qwen3-moe"))).examine()
    assert "plan.geometry" in failed(seen.findings)


def test_the_driver_is_not_asked_when_nothing_needs_a_card(tmp_path: Path) -> None:
    looked = examiner(tmp_path, "", scenarios.HANGS_AT_INIT)
    started = time.monotonic()
    seen = looked.examine()
    assert time.monotonic() - started < 2
    assert failed(seen.findings) == []
    assert not (looked.paths.state_dir / "preflight.json").exists()


def test_a_number_of_cards_is_enough_to_check_them(tmp_path: Path) -> None:
    seen = examiner(tmp_path, "[preflight]\ngpus = 2\n", scenarios.ONE_CARD).examine()
    assert failed(seen.findings) == ["gpu.count"]
    assert seen.plan is None


def test_a_force_about_bytes_holds_for_one_plan_only(tmp_path: Path, pack_folder: PackFolder) -> None:
    # given somebody who goes on in spite of one plan
    file = too_large(tmp_path)
    looked = examiner(tmp_path, with_plan(file, pack_folder("study")))
    for id_ in ("plan.fits", "vram.total"):
        forced.force(
            looked.paths.state_dir,
            id_,
            "we know",
            at_s=1.0,
            by="olga",
            plan_id=planfile.load(file).identity,
            known=FINDING_IDS,
        )
    seen = looked.examine()
    assert failed(seen.findings) == []
    assert {finding.forced for finding in seen.findings if finding.id in ("plan.fits", "vram.total")} == {"we know"}
    # when the plan is another
    plan = planfile.load(file)
    larger = plan.model_copy(update={"targets": Targets(kv_bytes=65 << 30)})
    planfile.save(larger, file, overwrite=True)
    # then it fails again
    assert failed(looked.examine().findings) == ["vram.total", "plan.fits"]


def test_what_can_be_forced_is_what_can_be_found() -> None:
    engine = (ROOT / "appliance/engine" / name for name in ("planned.py", "host_kv.py"))
    places = [*(ROOT / "appliance/plan").glob("*.py"), *engine]
    source = "".join(path.read_text() for path in places)
    used = set(re.findall(r'"(plan\.[a-z_]+)"', source)) - {"plan.json"}
    assert used == PLAN_IDS
    assert PLAN_IDS < FINDING_IDS


def test_a_checkpoint_that_does_not_answer_costs_its_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect_child, "DEADLINE_S", 0.05)
    seen = examiner(tmp_path, with_plan(STUDY, tmp_path)).examine()
    (finding,) = [finding for finding in seen.findings if finding.id == "plan.checkpoint"]
    assert "no answer in" in finding.observed


def test_a_check_that_dies_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect_child.sys, "executable", "/bin/false")
    settings = configured(tmp_path, with_plan(STUDY, tmp_path))[0].plan
    found = inspect_child.inspected(Question(settings, BoxMemory(())), {})
    assert [finding.id for finding in found.findings] == ["plan.checkpoint"]
    assert "ended with 1" in found.findings[0].observed


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ('[plan]\ncheckpoint = "/c"\n', "set file as well"),
        ('[plan]\nfile = "p.json"\nmake = true\n', "make needs checkpoint"),
        ('[plan]\nfile = ""\n', "is empty"),
        ("[preflight]\ngpus = -1\n", "gpus"),
    ],
)
def test_tables_that_make_no_sense_are_refused_with_their_line(tmp_path: Path, toml: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        configured(tmp_path, toml)


def test_the_defaults_want_no_card() -> None:
    assert PreflightSettings().gpus == 0
    assert Config().plan.file is None


def test_the_study_plan_is_valid_json_with_its_own_id() -> None:
    plan = Plan.model_validate(json.loads(STUDY.read_text()))
    assert plan.plan_id == plan.identity


def test_an_answer_that_something_else_wrote_into_is_told(tmp_path: Path) -> None:
    looked = examiner(tmp_path, with_plan(STUDY, tmp_path))
    put(tmp_path, {"shim/sitecustomize.py": "print('hello')"})
    looked.environ = {**looked.environ, "PYTHONPATH": str(tmp_path / "shim")}
    (finding,) = [finding for finding in looked.examine().findings if finding.id == "plan.checkpoint"]
    assert "unreadable" in finding.observed


def test_modules_that_lie_in_the_current_folder_are_not_run(tmp_path: Path) -> None:
    put(tmp_path, {"here/pydantic.py": f"open({str(tmp_path / 'run')!r}, 'w')"})
    settings = configured(tmp_path, with_plan(STUDY, tmp_path))[0].plan
    with contextlib.chdir(tmp_path / "here"):
        inspect_child.inspected(Question(settings, BoxMemory(())), os.environ)
    assert not (tmp_path / "run").exists()


def test_the_cards_are_those_that_the_engines_environment_names(tmp_path: Path) -> None:
    named = 'env = { CUDA_VISIBLE_DEVICES = "1" }\n[preflight]\ngpus = 1\n'
    held = examiner(tmp_path, named, scenarios.HELD_MEMORY)
    assert failed(held.examine().findings) == []
    held.environ = {**held.environ, "CUDA_VISIBLE_DEVICES": "0"}
    assert failed(held.examine().findings) == []  # [engine] env comes first
    (tmp_path / "other").mkdir()
    other = examiner(tmp_path / "other", "[preflight]\ngpus = 1\n", scenarios.HELD_MEMORY)
    other.environ = {**other.environ, "CUDA_VISIBLE_DEVICES": " 1 "}
    assert failed(other.examine().findings) == []
    other.environ = {**other.environ, "CUDA_VISIBLE_DEVICES": "0"}
    assert failed(other.examine().findings) == ["vram.free"]


def test_an_engine_that_somebody_else_runs_may_hold_the_cards(tmp_path: Path) -> None:
    fake = FakeNvml(tmp_path, scenarios.HELD_MEMORY)
    furnish(fake.root)
    file = tmp_path / "appliance.toml"
    file.write_text('[engine]\nkind = "external"\nurl = "http://127.0.0.1:9"\n[preflight]\ngpus = 2\n')
    config, paths = load(file, {})
    paths.state_dir.mkdir()
    looked = Examiner(config, paths, adapter_of(config, paths), fake.environ(), fake.root)
    assert failed(looked.examine().findings) == []


def test_the_plans_profile_is_the_engines_and_its_cap_is_told(tmp_path: Path, pack_folder: PackFolder) -> None:
    toml = with_plan(STUDY, pack_folder("study"))
    profile = examiner(tmp_path, toml).examine().profile
    assert profile is not None
    assert (profile.streams, profile.floor_tok_per_s) == (4, 40.0)
    assert profile.name == planfile.load(STUDY).profile.name  # type: ignore[union-attr]
    looked = examiner(tmp_path, "streams = 6\n" + toml)
    assert looked.config.engine.streams == 6  # type: ignore[union-attr]
    seen = looked.examine()
    assert "plan.cap" in [finding.id for finding in seen.findings]
    assert seen.profile is not None
    assert seen.profile.streams == 6


def test_a_plan_is_made_for_as_many_cards_as_the_engine_uses(tmp_path: Path, pack_folder: PackFolder) -> None:
    cards = scenarios.TWO_GOOD.cards
    third = replace(cards[1], bus_id="0000:c1:00.0", uuid="GPU-33333333-0000-0000-0000-000000000000")
    toml = with_plan(tmp_path / "made.json", pack_folder("study"), "make = true\n[preflight]\ngpus = 2\n")
    examiner(tmp_path, toml, Setup(cards=(*cards, third))).examine()
    assert planfile.load(tmp_path / "made.json").topology.tp == 2


def host_kv_of(found: Examiner) -> list[tuple[str, Severity]]:
    ids = ("plan.host_kv", "mem.host_kv")
    return [(finding.id, finding.severity) for finding in found.examine().findings if finding.id in ids]


def tiered(tmp_path: Path, gib: float, more: str = "") -> Examiner:
    """An examiner of a box of cards whose engine is told of a KV tier."""
    looked = examiner(tmp_path, more)
    file = tmp_path / "appliance.toml"
    file.write_text(file.read_text().replace("[engine]\n", f"[engine]\nhost_kv_gib = {gib:.1f}\n"))
    config, paths = load(file, {})
    return replace(looked, config=config, adapter=adapter_of(config, paths))


def test_the_kv_tier_in_host_ram_is_held_against_the_plan(tmp_path: Path) -> None:
    plan = planfile.load(STUDY)
    targets = plan.targets.model_copy(update={"kv_tier_bytes": 32 << 30})
    planfile.save(plan.model_copy(update={"targets": targets}), tmp_path / "tier.json")
    with_tier = with_plan(tmp_path / "tier.json")
    assert host_kv_of(tiered(tmp_path, 64, with_tier)) == [("plan.host_kv", Severity.FAIL)]
    assert host_kv_of(tiered(tmp_path, 32, with_tier)) == []
    assert host_kv_of(tiered(tmp_path, 0, with_tier)) == [("plan.host_kv", Severity.INFO)]
    assert host_kv_of(tiered(tmp_path, 64, with_plan(STUDY))) == [("plan.host_kv", Severity.FAIL)]


def test_without_a_plan_the_kv_tier_is_held_against_what_is_free(tmp_path: Path) -> None:
    too_large = tiered(tmp_path, 60_000)
    assert host_kv_of(too_large) == [("mem.host_kv", Severity.FAIL)]
    assert host_kv_of(tiered(tmp_path, 0)) == []
    # an engine that is loaded holds it already
    assert host_kv_of(replace(too_large, own_pids=frozenset({4711}))) == []
    assert {"plan.host_kv", "mem.host_kv"} <= FINDING_IDS
