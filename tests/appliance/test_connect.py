"""`moe-appliance connect`: what is printed and written, for each agent, and what is refused."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from appliance import keyedit
from appliance.cli import connect, connect_target
from gateway.agents.edit import CODECS
from gateway.agents.programs import AGENTS
from gateway.agents.settings import KEY, Target, filled
from gateway.agents.text import EXAMPLE
from gateway.state import Phase
from tests.appliance.connecting import ROOT, WITH_FILE, Here, made_here, status


@pytest.fixture
def here(tmp_path: Path) -> Here:
    return made_here(tmp_path)


# ------------------------------------------------------------------------------------- printed


@pytest.mark.parametrize("name", AGENTS)
def test_the_page_says_what_the_command_prints(here: Here, name: str) -> None:
    said = here(f"{name} --seat ana").stdout
    assert said.startswith(f"## {AGENTS[name].title}\n")
    assert f"\n{said}" in (ROOT / "docs" / "agents.md").read_text()


@pytest.mark.parametrize("name", AGENTS)
def test_what_is_printed_names_the_box_and_holds_no_key(here: Here, name: str) -> None:
    here.box.status = status("https://box.example", models=("deep/m 1",), context_tokens=100_001)
    said = here(f"{name} --seat ana", MOE_API_KEY=here.key).stdout
    assert "https://box.example" in said
    assert "deep/m 1" in said
    assert ("100001" in said) == AGENTS[name].needs_context
    assert "MOE_API_KEY" in said
    assert here.key not in said


@pytest.mark.parametrize("name", AGENTS)
def test_json_says_the_same_for_programs(here: Here, name: str) -> None:
    shown = json.loads(here(f"{name} --seat ana --json").stdout)
    settings = AGENTS[name].settings(EXAMPLE)
    assert (shown["url"], shown["model"], shown["context_tokens"], shown["seat"]) == (
        "http://BOX:8000",
        "MODEL",
        262_144,
        "ana",
    )
    assert shown["environment"] == settings.environment
    assert (shown["file"] or {}).get("values") == (settings.file.values if settings.file else None)
    assert (shown["start"], shown["setup"], shown["written"]) == (settings.start, settings.setup, None)


def test_claude_code_is_told_everything_that_was_tried(here: Here) -> None:
    env = json.loads(here("claude-code --seat ana --json").stdout)["file"]["values"]["env"]
    assert env["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == "262144"
    assert env["CLAUDE_CODE_ATTRIBUTION_HEADER"] == "0"
    assert {env[f"ANTHROPIC_DEFAULT_{size}_MODEL"] for size in ("HAIKU", "SONNET", "OPUS")} == {"MODEL"}
    assert env["ANTHROPIC_AUTH_TOKEN"] == KEY


@pytest.mark.parametrize(
    ("url", "said", "typed"),
    [
        ("http://127.0.0.1:8000", "ssh -N -L 8000:127.0.0.1:8000 BOX", "http://127.0.0.1:8000/v1"),
        ("http://localhost:81", "ssh -N -L 81:localhost:81 BOX", "http://localhost:81/v1"),
        ("http://[::1]:8000", "ssh -N -L 8000:[::1]:8000 BOX", "http://[::1]:8000/v1"),
        ("http://0.0.0.0:8000", "listens on all its addresses", "http://big-box:8000/v1"),
        ("http://[::]:8000", "listens on all its addresses", "http://big-box:8000/v1"),
    ],
)
def test_an_address_that_others_cannot_use_is_explained(
    here: Here, monkeypatch: pytest.MonkeyPatch, url: str, said: str, typed: str
) -> None:
    monkeypatch.setattr(connect_target.socket, "gethostname", lambda: "big-box")
    here.box.status = status(url)
    text = here("codex --seat ana").stdout
    assert said in " ".join(text.split())
    assert f'base_url = "{typed}"' in text


def test_a_window_too_small_for_an_agent_is_said(here: Here) -> None:
    here.box.status = status(context_tokens=8_192)
    assert "too small for this agent" in here("qwen --seat ana").stdout
    assert "too small" not in here("pi --seat ana").stdout


# --------------------------------------------------------------------------------- seat and box


def test_the_seat_must_be_there_and_usable(here: Here) -> None:
    here.box.status = status()
    assert "seats: ana" in here.refused("codex").message
    assert "there is no seat ben; seats: ana" in here.refused("codex --seat ben").message
    keyedit.disable_seat(here.box.seats_file, "ana")
    error = here.refused("codex --seat ana")
    assert ("disabled" in error.message, error.remedy) == (True, "moe-appliance seats enable ana")
    keyedit.enable_seat(here.box.seats_file, "ana")
    text = here.box.seats_file.read_text()
    here.box.seats_file.write_text(text + "expires = 2020-01-01\n")
    assert "expired" in here.refused("codex --seat ana").message
    here.box.seats_file.unlink()
    assert "moe-appliance seats add" in here.refused("codex --seat ana").remedy


def test_an_unknown_agent_is_a_wrong_use_that_lists_the_known_ones(here: Here) -> None:
    done = here("emacs --seat ana")
    assert done.exit_code == 2
    assert "claude-code" in done.stderr


def test_without_a_running_box_the_values_are_given_by_hand(here: Here) -> None:
    here.box.status = None
    error = here.refused("codex --seat ana")
    assert (error.exit_code, "--model MODEL --context TOKENS" in error.remedy) == (3, True)
    here.refused("codex --seat ana --model m")
    said = here("codex --seat ana --model m --context 1000").stdout
    assert "model_context_window = 1000\n" in said
    assert 'base_url = "http://127.0.0.1:8000/v1"' in said
    assert here("aider --seat ana --model m").exit_code == 0


def test_without_a_model_the_engine_is_named(here: Here) -> None:
    here.box.status = status(phase=Phase.STARTING, models=(), context_tokens=None)
    assert "starting" in here.refused("codex --seat ana").message
    assert here("codex --seat ana --model m --context 1000").exit_code == 0


def test_an_engine_that_does_not_say_its_window_needs_context(here: Here) -> None:
    here.box.status = status(context_tokens=None)
    assert "--context" in here.refused("codex --seat ana").remedy
    assert here("codex --seat ana --context 5000").exit_code == 0
    assert here("openai --seat ana").exit_code == 0


def test_of_several_models_the_first_is_taken_and_the_others_are_named(here: Here) -> None:
    here.box.status = status(models=("one", "two"))
    assert "one, two" in here("codex --seat ana").stdout
    said = here("codex --seat ana --model two").stdout
    assert ('model = "two"' in said, "At present" in said) == (True, False)
    assert "serves one, two, not three" in here.refused("codex --seat ana --model three").message
    said = here("codex --seat ana --model three --context 7").stdout
    assert "At present the box serves one, two, not three." in said


# ------------------------------------------------------------------------------------- written


@pytest.mark.parametrize("name", WITH_FILE)
def test_what_is_written_reads_as_what_is_printed(here: Here, name: str) -> None:
    done = here(f"{name} --seat ana --write", MOE_API_KEY=here.key)
    path, file = here.file(name), AGENTS[name].settings(EXAMPLE).file
    assert file is not None
    assert CODECS[file.format].parse(path.read_text()) == filled(file.values, here.key)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert str(path) in done.stdout
    assert here.key not in done.stdout + done.stderr
    assert [p.name for p in path.parent.iterdir() if "bak" in p.name or "new" in p.name] == []
    before = path.read_bytes()
    again = here(f"{name} --seat ana --write")
    assert "nothing was changed" in again.stdout
    assert path.read_bytes() == before
    assert not path.with_name(f"{path.name}.bak").exists()


def test_what_was_there_is_kept_beside_it(here: Here) -> None:
    path = here.file("codex")
    path.parent.mkdir()
    path.write_text('# mine\nmodel = "old"\n')
    done = here("codex --seat ana --write")
    assert path.read_text().startswith('# mine\nmodel = "MODEL"\n')
    backup = path.with_name("config.toml.bak")
    assert backup.read_text() == '# mine\nmodel = "old"\n'
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    assert 'model = "MODEL"   (was "old")' in done.stdout
    assert str(backup) in done.stdout
    shown = json.loads(here("codex --seat ana --write --json --context 9000").stdout)["written"]
    assert shown == {"changed": ["model_context_window"], "backup": f"{backup}.1"}


def test_an_old_key_is_not_shown(here: Here) -> None:
    path = here.file("claude-code")
    path.parent.mkdir()
    path.write_text('{"env": {"ANTHROPIC_AUTH_TOKEN": "sk-old"}}')
    done = here("claude-code --seat ana --write", MOE_API_KEY=here.key)
    assert "env.ANTHROPIC_AUTH_TOKEN = (the key)   (was another one)" in done.stdout
    assert "sk-old" not in done.stdout


def test_a_link_is_followed(here: Here) -> None:
    (here.folder / "dotfiles").mkdir()
    real = here.folder / "dotfiles" / "pi.json"
    real.write_text("{}")
    path = here.file("pi")
    path.parent.mkdir(parents=True)
    path.symlink_to(real)
    here("pi --seat ana --write")
    assert path.is_symlink()
    assert "moe" in json.loads(real.read_text())["providers"]


def test_a_file_with_the_key_that_others_could_read_is_closed(here: Here) -> None:
    here("claude-code --seat ana --write", MOE_API_KEY=here.key)
    here.file("claude-code").chmod(0o644)
    here("claude-code --seat ana --write")
    assert stat.S_IMODE(here.file("claude-code").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("name", "variable", "inside"),
    [
        ("claude-code", "CLAUDE_CONFIG_DIR", "settings.json"),
        ("codex", "CODEX_HOME", "config.toml"),
        ("opencode", "XDG_CONFIG_HOME", "opencode/opencode.json"),
        ("qwen", "QWEN_HOME", "settings.json"),
        ("continue", "CONTINUE_GLOBAL_DIR", "config.yaml"),
        ("pi", "PI_CODING_AGENT_DIR", "models.json"),
    ],
)
def test_the_agents_own_variable_says_where_its_file_is(here: Here, name: str, variable: str, inside: str) -> None:
    there = here.folder / "elsewhere"
    said = here(f"{name} --seat ana", **{variable: str(there)}).stdout
    assert f"Into `{there / inside}`" in said
    here(f"{name} --seat ana --write", MOE_API_KEY=here.key)
    assert (there / inside).is_file()
    assert list(here.home.iterdir()) == []


def test_the_key_must_be_there_and_be_the_seats(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    other = keyedit.add_seat(here.box.seats_file, "ben").key
    error = here.refused("claude-code --seat ana --write")
    assert "MOE_API_KEY is not set" in error.message
    assert "moe-appliance seats rotate ana" in error.remedy
    assert "it is that of seat ben" in here.refused("claude-code --seat ana --write", MOE_API_KEY=other).message
    assert "of no seat" in here.refused("claude-code --seat ana --write", MOE_API_KEY="moe-x").message
    assert "cannot be a key" in here.refused("claude-code --seat ana --write", MOE_API_KEY="a b").message
    assert not here.file("claude-code").exists()


def test_at_a_terminal_the_key_is_asked_for(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def prompt(text: str, **options: Any) -> str:
        asked.append(options)
        return here.key

    monkeypatch.setattr(connect.typer, "prompt", prompt)
    monkeypatch.setattr(connect, "_terminal", lambda: True)
    assert here("claude-code --seat ana --write").exit_code == 0
    assert asked == [{"hide_input": True, "err": True}]
    assert here.key in here.file("claude-code").read_text()


def test_a_broken_file_is_refused_and_left_alone(here: Here) -> None:
    for name, text in (("codex", "a = \n"), ("claude-code", '{"a": 1,}'), ("continue", "a: [\n")):
        path = here.file(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        error = here.refused(f"{name} --seat ana --write", MOE_API_KEY=here.key)
        assert str(path) in error.message
        assert f"moe-appliance connect {name} --seat ana   prints" in error.remedy
        assert path.read_text() == text
        assert not path.with_name(f"{path.name}.bak").exists()


def test_a_file_that_is_none_is_refused(here: Here) -> None:
    here.file("codex").mkdir(parents=True)
    assert "is not a file" in here.refused("codex --seat ana --write").message
    here.file("pi").parent.mkdir(parents=True)
    here.file("pi").symlink_to(here.file("pi"))
    assert str(here.file("pi")) in here.refused("pi --seat ana --write").message
    (here.home / ".qwen").touch()
    assert ".qwen" in here.refused("qwen --seat ana --write").message


@pytest.mark.parametrize("name", [name for name in AGENTS if name not in WITH_FILE])
def test_agents_without_a_file_say_so(here: Here, name: str) -> None:
    error = here.refused(f"{name} --seat ana --write")
    assert "settings file" in error.message
    assert ("cline auth" if name == "cline" else f"connect {name}") in error.remedy


def test_a_model_with_quotes_comes_through_every_format(here: Here) -> None:
    here.box.status = status(models=('we\'ird "m" $x #1: é',))
    for name in WITH_FILE:
        assert here(f"{name} --seat ana --write", MOE_API_KEY=here.key).exit_code == 0
        target = Target("http://BOX:8000", 'we\'ird "m" $x #1: é', 262_144, "ana")
        file = AGENTS[name].settings(target).file
        assert file is not None
        assert CODECS[file.format].parse(here.file(name).read_text()) == filled(file.values, here.key)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_root_leaves_nothing_in_the_home_of_another(here: Here) -> None:
    os.chown(here.home, 12_345, 12_345)
    error = here.refused("codex --seat ana --write")
    assert "belongs to user 12345" in error.message
    assert "sudo -u '#12345'" in error.remedy
    assert list(here.home.iterdir()) == []
