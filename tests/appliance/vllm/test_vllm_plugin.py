"""The residency plugin lies in the state folder under a name that says what it is, whole or not at all."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from appliance.engine.vllm import plugin
from appliance.plan.settings import PlanSettings
from appliance.residency.options import options
from tests.appliance.vllm.test_vllm_adapter import engine, facts
from tests.appliance.vllm.vllm_requests import PLANS

DOCUMENT = {"schema": "s", "layers": {"0": "1"}}


def test_paths_are_known_before_anything_is_there_and_are_for_this_user_alone(tmp_path: Path) -> None:
    document, folder = plugin.document_in(tmp_path, DOCUMENT), plugin.plugin_in(tmp_path)
    assert not (tmp_path / plugin.FOLDER).exists()
    plugin.put(tmp_path, DOCUMENT)
    assert json.loads(document.read_text()) == DOCUMENT
    assert [child.name for child in folder.iterdir()] == [plugin.NAME]
    assert (tmp_path / plugin.FOLDER).stat().st_mode & 0o777 == 0o700
    assert document.stat().st_mode & 0o777 == 0o600


def test_another_document_has_another_path_and_a_second_start_changes_nothing(tmp_path: Path) -> None:
    plugin.put(tmp_path, DOCUMENT)
    before = plugin.plugin_in(tmp_path).stat().st_mtime_ns
    plugin.put(tmp_path, DOCUMENT | {"layers": {}})
    assert plugin.plugin_in(tmp_path).stat().st_mtime_ns == before
    assert len(list((tmp_path / plugin.FOLDER).glob("*.json"))) == 2


def test_it_imports_from_there_without_the_appliance(tmp_path: Path) -> None:
    plugin.put(tmp_path, DOCUMENT)
    code = "import moe_residency.document, sys; assert 'appliance' not in sys.modules"
    environ = {"PYTHONPATH": str(plugin.plugin_in(tmp_path))}
    subprocess.run([sys.executable, "-S", "-c", code], check=True, env=environ, cwd=tmp_path)


def test_one_that_cannot_be_written_leaves_no_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        plugin.put(tmp_path, DOCUMENT)
    assert {child.suffix for child in (tmp_path / plugin.FOLDER).iterdir() if child.is_file()} == {".json"}
    assert [child for child in (tmp_path / plugin.FOLDER).iterdir() if child.is_dir()] == [plugin.written_in(tmp_path)]


def test_the_residency_plugin_is_put_there_before_the_start_and_must_say_what_it_placed(tmp_path: Path) -> None:
    plan = PlanSettings(file=PLANS / "qwen3-30b-a3b-2x-32gb.json")
    made = engine(tmp_path, plan, placement="residency", follow_mib_per_s=0, staging_tokens=4096)
    (tmp_path / "state").mkdir()
    made.findings(facts(2))
    asyncio.run(made.prepare(lambda step, part: None))
    launch = made.launch(1, Path("/k"))
    assert launch.argv[launch.argv.index("--worker-cls") + 1] == "moe_residency.worker.ResidentWorker"
    document = json.loads(Path(launch.env["MOE_RESIDENCY_FILE"]).read_text())
    assert document["schema"] == "moe-appliance.residency/1"
    assert (Path(launch.env["PYTHONPATH"]) / "moe_residency/worker.py").is_file()
    told = options(launch.env)
    assert (told.staging_tokens, told.follow_mib_per_s) == (4096, 0)
    assert told.folder is not None
    assert told.folder.stat().st_mode & 0o777 == 0o700
    (needed,) = launch.required
    assert needed.cause.id == "engine.not_placed"
    said = "(Worker_TP1 pid=7) moe-residency: rank 1: placed: 5 bytes in VRAM, 6 bytes in host RAM of node 0, plan"
    assert needed.pattern.search(f"{said} {document['plan_id']}; steps that read staging, tokens: above 1024")
    assert not needed.pattern.search(f"{said} {document['plan_id']}0; steps that read staging, tokens: above 1024")


def test_a_plugin_that_was_damaged_is_put_there_anew(tmp_path: Path) -> None:
    plugin.put(tmp_path, DOCUMENT)
    there = plugin.plugin_in(tmp_path) / plugin.NAME
    (there / "worker.py").write_bytes(b"")
    (there / "live.py").unlink()
    (there / "mine.py").write_text("")
    plugin.put(tmp_path, DOCUMENT)
    assert (there / "worker.py").stat().st_size > 0
    assert (there / "live.py").is_file()
    assert not (there / "mine.py").exists()


def test_a_plan_that_can_no_longer_be_read_is_not_served_without(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_bytes((PLANS / "qwen3-30b-a3b-2x-32gb.json").read_bytes())
    made = engine(tmp_path, PlanSettings(file=file), placement="residency")
    file.write_text("{")
    made.findings(facts(2))
    (needed,) = made.launch(1, Path("/k")).required
    assert needed.cause.id == "engine.not_placed"
    assert not needed.pattern.search("moe-residency: rank 0: placed: 5 bytes in VRAM, 6 bytes in host RAM, plan x; y")


def test_cards_that_nobody_measured_it_on_are_a_finding(tmp_path: Path) -> None:
    plan = PlanSettings(file=PLANS / "qwen3-30b-a3b-2x-32gb.json")
    gpus = tuple(replace(gpu, capability=(12, 0)) for gpu in facts(2).gpus.gpus)
    there = replace(facts(2), gpus=replace(facts(2).gpus, gpus=gpus))
    assert "engine.residency" in {one.id for one in engine(tmp_path, plan, placement="residency").findings(there)}
