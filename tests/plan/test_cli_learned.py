"""`moe-appliance plan learned`: what the engine wrote becomes a plan, or a refusal says what is missing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from appliance.cli.app import app
from appliance.engine import pairs_kept
from appliance.engine.pairs import Pairs
from appliance.engine.vllm.plugin import written_in
from appliance.errors import PlanError
from appliance.plan import planfile
from appliance.plan.export import residency
from appliance.plan.remedies import by_counts
from appliance.plan.schema import Plan, Profile
from appliance.residency.deciding import COUNTS, LEARNED, Deciding
from appliance.residency.document import parse, text
from appliance.residency.following import Following
from gateway.state import Pair
from tests.plan.plans import plan

BEFORE = plan({"0": "0-3", "2": "5"})
NOW = {0: (2, 3, 6, 7), 2: (5,)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A box whose engine follows traffic, and has learned."""
    planfile.save(BEFORE, tmp_path / "plan.json")
    config = '[engine]\nkind = "vllm"\nmodel = "org/name"\nplacement = "residency"\n[plan]\nfile = "plan.json"\n'
    (tmp_path / "appliance.toml").write_text(f'state_dir = "state"\n{config}')
    written_in(tmp_path / "state").mkdir(parents=True)
    learn(tmp_path, BEFORE)
    return tmp_path


def learn(folder: Path, of: Plan) -> None:
    """As the plugin writes it."""
    found = parse(json.dumps(residency.export(of).document), "")
    (written_in(folder / "state") / LEARNED).write_text(text(replace(found, cold=NOW)))


def run(folder: Path, *words: str | Path) -> Result:
    line = ["--config", str(folder / "appliance.toml"), "plan", "learned", *map(str, words)]
    return CliRunner().invoke(app, line, env={"COLUMNS": "160"})


def refused(folder: Path, *words: str | Path) -> PlanError:
    result = run(folder, *words)
    assert isinstance(result.exception, PlanError), result.output
    assert not result.stdout
    return result.exception


def test_the_plan_is_written_with_what_to_type_next(folder: Path) -> None:
    out = folder / "new.json"
    done = run(folder, "--out", out)
    assert done.exit_code == 0, done.output
    made = planfile.load(out)
    assert made.sealed
    assert made.host.experts == {"0": "2-3,6-7", "2": "5"}
    assert made.note == f"learned from plan {BEFORE.identity}"
    assert made.created
    assert made.exports["residency"].verdict == "exact"
    assert "2 of 5 experts in host RAM are others than the plan's" in done.stdout
    assert f"moe-appliance plan use {out}" in done.stderr
    assert "--stats" not in done.stderr, "there are no counts"
    counts = written_in(folder / "state") / COUNTS
    counts.write_text("{}")
    done = run(folder, "--out", out, "--overwrite")
    assert "plan make --checkpoint PATH --gpus" in done.stderr
    assert f"--select routing-stats --stats {counts} --out plan-by-counts.json" in done.stderr


def test_without_out_nothing_is_written(folder: Path) -> None:
    before = sorted(folder.rglob("*"))
    assert "not written; --out FILE writes it" in run(folder).stderr
    assert sorted(folder.rglob("*")) == before


def test_programs_get_the_plan(folder: Path) -> None:
    said = json.loads(run(folder, "--json").stdout)
    assert (said["file"], said["from"], said["moved"]) == (None, BEFORE.identity, 2)
    assert said["plan"]["host"]["experts"] == {"0": "2-3,6-7", "2": "5"}


def test_a_file_that_is_there_stays_unless_it_may_be_replaced(folder: Path) -> None:
    out = folder / "plan.json"
    assert "exists already" in refused(folder, "--out", out).message
    assert planfile.load(out).identity == BEFORE.identity
    assert run(folder, "--out", out, "--overwrite").exit_code == 0
    assert planfile.load(out).identity != BEFORE.identity


def test_the_plan_in_use_is_meant_and_not_that_of_the_configuration(folder: Path) -> None:
    used = plan({"0": "1-4", "2": "5"})
    kept = pairs_kept.keep_plan(folder / "state", used, Path("used.json"))
    toml = Pair(plan_file=str(folder / "plan.json"))
    pairs_kept.save(folder / "state", Pairs(toml=toml, current=Pair(plan_file=str(kept))))
    assert "the engine learns with plan" in refused(folder).message
    learn(folder, used)
    assert json.loads(run(folder, "--json").stdout)["from"] == used.identity


def test_before_anything_was_learned_it_says_so(folder: Path) -> None:
    (written_in(folder / "state") / LEARNED).unlink()
    error = refused(folder)
    assert error.message.startswith("nothing was learned yet")
    assert "moe-appliance status" in error.remedy


def begin(folder: Path) -> None:
    """An engine starts."""
    document = parse(json.dumps(residency.export(BEFORE).document), "")
    Deciding(Following(document, {}, 0, 0), [], written_in(folder / "state"))


def test_while_an_engine_has_counted_nothing_what_the_one_before_learned_is_there(folder: Path) -> None:
    (written_in(folder / "state") / COUNTS).write_text("{}")
    for _ in range(2):  # one that fails
        begin(folder)
        assert json.loads(run(folder, "--json").stdout)["moved"] == 2
        assert "before-counts.json" in run(folder).stderr
        assert "what the one before it learned" in run(folder).stderr


def test_counts_are_those_of_the_engine_that_learned_or_not_offered(folder: Path) -> None:
    counts = written_in(folder / "state") / COUNTS
    counts.write_text("{}")
    begin(folder)
    learn(folder, BEFORE)  # and no counts: a router of that engine does not count
    begin(folder)
    assert sorted(path.name for path in counts.parent.iterdir()) == ["before-learned.json"]
    assert "--stats" not in run(folder).stderr


def test_what_was_learned_with_another_plan_is_none_of_this_ones(folder: Path) -> None:
    begin(folder)
    planfile.save(plan({"0": "2-3,6-7", "2": "5"}), folder / "plan.json", overwrite=True)
    error = refused(folder)
    assert error.message.startswith("nothing was learned yet")
    assert "restart" not in error.remedy


def test_the_command_for_a_plan_by_counts_keeps_what_was_asked_for(folder: Path) -> None:
    made = BEFORE.model_copy(
        update={
            "limits": BEFORE.limits.model_copy(update={"max_host_bytes": 64 << 30}),
            "targets": BEFORE.targets.model_copy(update={"draft": False, "kv_bytes": 4 << 30}),
            "profile": Profile(name="p", streams=4, validated="here and now"),
        }
    )
    said = by_counts(made, "/srv/a model", "/now/counts.json")
    for words in (
        "--checkpoint '/srv/a model' --gpus",
        "--kv-gib 4 --max-host-gib 64 --keep-embedding --no-draft --cap 4 --validated 'here and now'",
        "--select routing-stats --stats /now/counts.json",
    ):
        assert words in said


TWICE = json.dumps(residency.export(BEFORE).document).replace('"tp"', '"tp": 1, "tp"')


@pytest.mark.parametrize(
    "content", [b"{", b"\xff\xfe", b'{"schema": "another/1"}', b"[" * 100_000, TWICE.encode()], ids=range(5)
)
def test_a_damaged_file_is_named(folder: Path, content: bytes) -> None:
    (written_in(folder / "state") / LEARNED).write_bytes(content)
    error = refused(folder)
    assert LEARNED in error.message
    assert "refused" not in error.message
    assert "writes it anew" in error.remedy


def test_a_folder_in_its_place_is_named(folder: Path) -> None:
    learned = written_in(folder / "state") / LEARNED
    learned.unlink()
    learned.mkdir()
    assert "not a regular file" in refused(folder).message


def test_an_engine_that_follows_no_traffic_has_nothing_to_learn(folder: Path) -> None:
    config = folder / "appliance.toml"
    config.write_text(config.read_text().replace('placement = "residency"\n', ""))
    assert 'placement = "residency"' in refused(folder).remedy


def test_without_a_plan_there_is_nothing_to_learn_with(folder: Path) -> None:
    config = folder / "appliance.toml"
    config.write_text(config.read_text().partition("[plan]")[0])
    assert "without a plan" in refused(folder).message
