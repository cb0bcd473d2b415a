"""A vLLM engine under the look at box, plan and checkpoint."""

from __future__ import annotations

import sys
from pathlib import Path

from appliance.config import load
from appliance.daemon import adapter_of, stop_limit_s
from appliance.engine.vllm.adapter import VllmEngine
from appliance.examine import Examiner
from appliance.plan import planfile
from gateway.state import Severity
from tests.appliance.vllm.vllm_requests import PLANS, TWO_CARDS, flags
from tests.box.boxes import furnish
from tests.checkpoint.packs.fixtures import PackFolder
from tests.fake_nvml import FakeNvml

STUDY = PLANS / "deepseek-v4.1-flash-2x-rtx-pro-6000.json"
ENGINE = f'[engine]\nkind = "vllm"\npython = "{sys.executable}"\ntool_call_parser = "hermes"\n'


def examiner(tmp_path: Path, toml: str) -> tuple[Examiner, VllmEngine]:
    """On a box with two cards."""
    fake = FakeNvml(tmp_path)
    furnish(fake.root)
    file = tmp_path / "appliance.toml"
    file.write_text(toml)
    config, paths = load(file, {})
    paths.state_dir.mkdir(exist_ok=True)
    adapter = adapter_of(config, paths)
    assert isinstance(adapter, VllmEngine)
    return Examiner(config, paths, adapter, fake.environ(), fake.root), adapter


def severities(looked: Examiner) -> dict[str, Severity]:
    return {finding.id: finding.severity for finding in looked.examine().findings}


def test_the_plan_is_told_in_the_words_of_vllms_own_offload(tmp_path: Path, pack_folder: PackFolder) -> None:
    # given: a plan that is no whole layers, and the checkpoint, which is the model as well
    pack = pack_folder("study")
    engine = f'{ENGINE}profile = "{TWO_CARDS}"\nplacement = "uva"\n'
    looked, adapter = examiner(tmp_path, f'{engine}[plan]\nfile = "{STUDY}"\ncheckpoint = "{pack}"\n')
    # when
    found = severities(looked)
    # then
    assert found["engine.uva"] is Severity.WARN
    assert "engine.placement" not in found
    command = adapter.look().command
    assert flags(command)["--offload-backend"] == ("uva",)
    assert float(flags(command)["--cpu-offload-gb"][0]) > 20
    assert "--engram-config" not in flags(command)
    assert adapter.model == str(pack)


def test_a_plan_that_would_be_ignored_keeps_the_engine_from_starting(tmp_path: Path, pack_folder: PackFolder) -> None:
    plan = f'[plan]\nfile = "{STUDY}"\ncheckpoint = "{pack_folder("study")}"\n'
    looked, _ = examiner(tmp_path, f'{ENGINE}profile = "{TWO_CARDS}"\n{plan}')
    assert severities(looked)["engine.placement"] is Severity.FAIL


def test_an_engine_for_cards_is_looked_at_with_them(tmp_path: Path) -> None:
    looked, adapter = examiner(tmp_path, f'{ENGINE}model = "org/name"\ntensor_parallel = 3\n')
    found = severities(looked)
    assert found["gpu.count"] is Severity.FAIL
    assert found["engine.parallel"] is Severity.FAIL
    assert adapter.look().request.box.cards == 2


def test_one_without_cards_asks_for_none(tmp_path: Path) -> None:
    looked, adapter = examiner(tmp_path, f'{ENGINE}model = "org/name"\nprofile = "vllm-cpu-tiny"\n')
    assert not looked.wants_cards
    assert Severity.FAIL not in severities(looked).values()
    assert adapter.cards_wanted() == 0


def test_paths_are_relative_to_the_file_and_names_are_not_paths(tmp_path: Path) -> None:
    said = '[engine]\nkind = "vllm"\npython = "env/bin/python"\nchat_template = "t.jinja"\nmodel = "./tiny"\n'
    _, adapter = examiner(tmp_path, said)
    assert adapter.settings.python == tmp_path / "env/bin/python"
    assert adapter.settings.chat_template == tmp_path / "t.jinja"
    assert adapter.model == str(tmp_path / "tiny")
    _, named = examiner(tmp_path, '[engine]\nkind = "vllm"\nmodel = "org/name"\n')
    assert named.model == "org/name"


def test_a_stop_waits_for_the_engines_grace(tmp_path: Path) -> None:
    looked, _ = examiner(tmp_path, f'{ENGINE}model = "org/name"\ngrace_s = 90.0\n')
    shorter, _ = examiner(tmp_path, f'{ENGINE}model = "org/name"\ngrace_s = 10.0\n')
    assert stop_limit_s(looked.config) - stop_limit_s(shorter.config) == 80.0


def test_what_the_plugin_is_to_place_in_host_ram_is_what_the_plan_says_by_the_headers(
    tmp_path: Path, pack_folder: PackFolder
) -> None:
    pack = pack_folder("qwen3-moe")
    engine = f'{ENGINE}profile = "vllm-generic"\nplacement = "residency"\n'
    plan = f'[plan]\nfile = "{PLANS / "qwen3-30b-a3b-2x-32gb.json"}"\n'
    looked, adapter = examiner(tmp_path, f'{engine}{plan}checkpoint = "{pack}"\n')
    looked.examine()
    figures = planfile.load(PLANS / "qwen3-30b-a3b-2x-32gb.json").budget or {}
    assert adapter._promise(adapter.look()).host_bytes == figures["host_bytes"]


def test_a_plan_whose_checkpoint_nobody_read_promises_nothing(tmp_path: Path) -> None:
    engine = f'{ENGINE}profile = "vllm-generic"\nplacement = "residency"\nmodel = "org/name"\n'
    looked, adapter = examiner(tmp_path, f'{engine}[plan]\nfile = "{PLANS / "qwen3-30b-a3b-2x-32gb.json"}"\n')
    looked.examine()
    assert adapter._promise(adapter.look()).host_bytes is None
