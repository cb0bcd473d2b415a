"""What a run is told of the box: remedies name whole commands, by the look that went before the start."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.config import load
from appliance.daemon import adapter_of
from appliance.engine.around import context_of
from appliance.engine.examined import Examined
from appliance.engine.failures import Context, Exit, VramHolder, diagnose
from appliance.examine import Examiner
from tests.appliance.test_examine import STUDY, examiner, with_plan
from tests.checkpoint.packs.fixtures import PackFolder


def test_an_end_for_want_of_memory_is_told_with_the_whole_command_that_makes_the_plan_anew(
    tmp_path: Path, pack_folder: PackFolder
) -> None:
    # given a start with a plan, and a process that held memory of the cards before it
    model = pack_folder("study")
    seen = examiner(tmp_path, with_plan(STUDY, model)).examine()
    holders = (VramHolder(77, "orphan", 3 << 30),)
    assert context_of("vllm", Examined(()), ()) == Context(environment="vllm")

    # when it ends for want of memory
    context = context_of("vllm", seen, holders)
    cause = diagnose(Exit(1, None), ["torch.OutOfMemoryError: CUDA out of memory."], context)

    # then the command names the checkpoint, the cards and the file, and the way to look at the checkpoint is whole too
    assert f"moe-appliance plan make --checkpoint {model} --gpus 2 " in cause.remedy
    assert f" --out {STUDY} --overwrite --experts " in cause.remedy
    assert (context.model, context.holders) == (str(model), holders)


@pytest.mark.parametrize(
    ("engine", "model"),
    [('model = "/m/x"', "/m/x"), ('model = "a/hub-name"', ""), ("", "/c")],
)
def test_the_model_that_remedies_name_is_a_folder(tmp_path: Path, engine: str, model: str) -> None:
    file = tmp_path / "appliance.toml"
    file.write_text(f'[engine]\nkind = "vllm"\n{engine}\n[plan]\nfile = "p.json"\ncheckpoint = "/c"\n')
    config, paths = load(file, {})
    looked = Examiner(config, paths, adapter_of(config, paths), {}, root=tmp_path).examine()
    assert looked.model == model
