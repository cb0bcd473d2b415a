"""`moe-appliance plan make`: what it prints, writes and refuses."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from appliance.box.gpu import Gpu, GpuReport, Outcome, Relation
from appliance.box.host import Host, Node
from appliance.cli import plan_inputs
from appliance.errors import CheckpointError, PlanError
from appliance.plan import planfile
from appliance.plan.stats import SCHEMA
from appliance.units import GIB
from tests.checkpoint.packs.fixtures import PackFolder
from tests.plan.planning import STUDY_CARDS, answer, run

GLM = "glm-4.5-air"
"""45 layers with 128 experts, top-8; 103 GiB a card: some must go."""


@pytest.fixture
def glm(pack_folder: PackFolder) -> Path:
    return pack_folder(GLM)


def test_a_plan_is_written_sealed_and_says_what_it_was_made_for(glm: Path, tmp_path: Path) -> None:
    out = tmp_path / "plan.json"

    done = run("make", "--checkpoint", glm, *STUDY_CARDS, "--kv-gib", "8", "--name", "lab/glm", "--out", out)

    plan = planfile.load(out)
    assert done.exit_code == 0, done.output
    assert plan.sealed
    assert (plan.model.name, plan.topology.tp, plan.topology.vram_bytes_each) == ("lab/glm", 2, int(95.6 * GIB))
    assert plan.cold_count > 0
    assert plan.host.tensors == ("model.embed_tokens.weight",)
    assert plan.created.endswith("Z")
    assert plan.exports.keys() >= {"residency", "llamacpp"}
    assert plan.profile is None


def test_people_get_the_verdict_the_bars_and_where_the_file_is(glm: Path, tmp_path: Path) -> None:
    out = tmp_path / "plan.json"

    done = run("make", "--checkpoint", glm, *STUDY_CARDS, "--kv-gib", "8", "--out", out)

    assert "fits: ~8.0 GiB a card left for KV" in done.stdout
    assert "experts, the embedding in host RAM" in done.stdout
    assert "routed experts" in done.stdout
    assert "card 1" in done.stdout
    assert f"written to {out}" in done.stderr


def test_without_out_nothing_is_written(glm: Path) -> None:
    done = run("make", "--checkpoint", glm, *STUDY_CARDS)

    assert "not written; --out FILE writes it" in done.stderr


def test_an_existing_file_stays_unless_it_may_be_replaced(glm: Path, tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    out.write_text("mine")
    line = ("make", "--checkpoint", glm, *STUDY_CARDS, "--out", out)

    refused = run(*line)

    assert isinstance(refused.exception, PlanError)
    assert "rm " in refused.exception.remedy
    assert out.read_text() == "mine"
    assert run(*line, "--overwrite").exit_code == 0
    assert planfile.load(out).sealed


def test_json_has_the_plan_and_its_check(glm: Path) -> None:
    code, said = answer("make", "--checkpoint", glm, *STUDY_CARDS, "--streams", "2", "--context", "4096")

    assert code == 0
    assert (said["fits"], said["file"]) == (True, None)
    assert said["plan"]["targets"]["streams"] == 2
    assert said["plan"]["plan_id"] == said["plan_id"]


def test_the_stand_in_for_the_studys_pack_gets_the_studys_plan(pack_folder: PackFolder) -> None:
    code, said = answer("make", "--checkpoint", pack_folder("study"), *STUDY_CARDS, "--experts", "4608")

    assert code == 0
    assert said["cold_experts"] == 4608
    assert said["per_gpu_gib"] == pytest.approx(72.4, abs=0.6)


def test_a_number_of_experts_that_does_not_do_is_said_with_exit_78(glm: Path, tmp_path: Path) -> None:
    out = tmp_path / "plan.json"

    done = run("make", "--checkpoint", glm, *STUDY_CARDS, "--experts", "5", "--out", out)

    assert done.exit_code == 78
    assert "does not fit" in done.stdout
    assert planfile.load(out).cold_count == 5


def test_statistics_choose_the_coldest(glm: Path, tmp_path: Path) -> None:
    counts = {str(layer): [90] * 64 + [3] * 64 for layer in range(1, 46)}
    file = tmp_path / "counts.json"
    file.write_text(json.dumps({"schema": SCHEMA, "model": "glm", "tokens": 1000, "counts": counts}))

    _, said = answer("make", "--checkpoint", glm, *STUDY_CARDS, "--stats", file, "--experts", "100")

    assert said["plan"]["host"]["experts"] == {"1": "64-127", "2": "64-99"}
    assert said["plan"]["selection"]["method"] == "routing-stats"
    assert said["plan"]["selection"]["expected_cold_hits_per_token"] == 0.3


def test_a_list_is_taken_as_it_is(glm: Path, tmp_path: Path) -> None:
    file = tmp_path / "list.json"
    file.write_text('{"7": "0-2,9"}')

    _, said = answer("make", "--checkpoint", glm, *STUDY_CARDS, "--list", file)

    assert said["plan"]["host"]["experts"] == {"7": "0-2,9"}
    assert said["plan"]["selection"]["method"] == "manual"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "must be a table"),
        ("{", "1: not JSON"),
        ('{"3": "1", "3": "2"}', "1: 3 is there twice"),
        ('{"x": "1"}', "x: is not a layer's number"),
        ('{"3": [1]}', "3: must be a text of ranges"),
        ('{"3": "5-2"}', "3: '5-2' runs backwards"),
    ],
)
def test_a_bad_list_is_named_with_its_key(glm: Path, tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "list.json"
    file.write_text(text)

    done = run("make", "--checkpoint", glm, *STUDY_CARDS, "--list", file)

    assert isinstance(done.exception, PlanError)
    assert done.exception.message.replace(f"{file}:", "", 1).strip().startswith(said)


def test_layers_go_in_the_order_that_is_written(glm: Path) -> None:
    _, said = answer("make", "--checkpoint", glm, *STUDY_CARDS, "--layers", "9,3-4", "--experts", "240")

    assert said["plan"]["host"]["experts"] == {"3": "0-119", "9": "0-119"}


@pytest.mark.parametrize("layers", ["x", "3,3", "5-2"])
def test_layers_that_cannot_be_read_are_refused(glm: Path, layers: str) -> None:
    done = run("make", "--checkpoint", glm, *STUDY_CARDS, "--layers", layers)

    assert isinstance(done.exception, PlanError)
    assert done.exception.message.startswith("--layers: ")


@pytest.mark.parametrize(
    "options",
    [
        ("--select", "manual"),
        ("--select", "uniform", "--layers", "3"),
        ("--select", "layers", "--list", "x"),
        ("--list", "x", "--experts", "3"),
        ("--gpus", "0"),
        ("--select", "best"),
    ],
)
def test_options_that_contradict_each_other_are_wrong_usage(glm: Path, options: tuple[str, ...]) -> None:
    assert run("make", "--checkpoint", glm, "--vram-gib", "95.6", *options).exit_code == 2


def test_the_cap_is_carried_when_it_is_said(glm: Path) -> None:
    _, said = answer(
        "make", "--checkpoint", glm, *STUDY_CARDS, "--cap", "6", "--validated", "a test", "--name", "lab/glm"
    )

    assert said["plan"]["profile"] == {
        "cold_tokens": 12000,
        "floor_tok_per_s": 40.0,
        "name": "lab/glm",
        "streams": 6,
        "validated": "a test",
    }


@pytest.mark.usefixtures("no_cards")
def test_without_cards_their_memory_must_be_stated(glm: Path) -> None:
    done = run("make", "--checkpoint", glm)

    assert isinstance(done.exception, PlanError)
    assert done.exception.message == "the cards of this box cannot be asked: no driver"
    assert "--vram-gib" in done.exception.remedy


def test_the_cards_and_nodes_of_the_box_are_taken_when_none_are_stated(
    glm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = tuple(Gpu(card, str(card), "RTX", f"0000:4{card}:00.0", 96 * GIB, numa_node=card) for card in range(2))
    report = GpuReport(Outcome.OK, gpus=gpus, relations={(0, 1): Relation.SYS})
    monkeypatch.setattr(plan_inputs, "gather", lambda environ: report)
    host = Host(nodes=(Node(0, 256 * GIB, 0, 0), Node(1, 256 * GIB, 0, 0)))
    monkeypatch.setattr(plan_inputs, "probe_host", lambda root, environ: host)

    code, said = answer("make", "--checkpoint", glm)

    assert code == 0
    assert said["plan"]["topology"] == {
        "ep": 1,
        "gpu_names": ["RTX", "RTX"],
        "link": "SYS",
        "numa": [0, 1],
        "tp": 2,
        "vram_bytes_each": 96 * GIB,
    }
    assert [bar["id"] for bar in said["per_node"]] == ["node0", "node1"]


def test_more_cards_than_there_are_is_refused(glm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = GpuReport(Outcome.OK, gpus=(Gpu(0, "0", "RTX", "0000:41:00.0", 96 * GIB),))
    monkeypatch.setattr(plan_inputs, "gather", lambda environ: report)
    monkeypatch.setattr(plan_inputs, "probe_host", lambda root, environ: Host())

    done = run("make", "--checkpoint", glm, "--gpus", "2")

    assert isinstance(done.exception, PlanError)
    assert done.exception.message == "this box has 1 of 2 cards"


def test_a_checkpoint_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = run("make", "--checkpoint", tmp_path / "none", *STUDY_CARDS)

    assert isinstance(done.exception, CheckpointError)


@pytest.mark.parametrize("option", ["--vram-gib", "--kv-gib", "--max-host-gib"])
@pytest.mark.parametrize("value", ["inf", "nan", "1e30"])
def test_a_size_that_no_box_has_is_refused_as_an_option(glm: Path, option: str, value: str) -> None:
    done = run("make", "--checkpoint", glm, *STUDY_CARDS, option, value)

    assert done.exit_code == 2
    assert option in done.output


def test_a_name_that_is_not_utf_8_does_not_end_in_a_traceback(glm: Path) -> None:
    code, said = answer(
        "make", "--checkpoint", glm, *STUDY_CARDS, "--kv-gib", "1", "--experts", "0", "--name", "a\udcff"
    )

    assert (code, said["plan"]["model"]["name"]) == (78, "a\\udcff")


def test_a_file_that_cannot_be_written_is_refused_before_headers_are_read() -> None:
    done = run("make", "--checkpoint", "/nowhere", *STUDY_CARDS, "--out", "a" * 300)

    assert isinstance(done.exception, PlanError)
    assert "cannot be written: File name too long" in done.exception.message


@pytest.mark.parametrize("option", ["--list", "--stats"])
def test_nobody_waits_for_a_pipe(glm: Path, tmp_path: Path, option: str) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    done = run("make", "--checkpoint", glm, *STUDY_CARDS, option, pipe)

    assert isinstance(done.exception, PlanError)
    assert "is not a regular file" in done.exception.message
