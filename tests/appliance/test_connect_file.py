"""`moe-appliance connect --write`: what is kept of the user's file, and what is shown of what was in it."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from gateway.agents.shown import old_value, without_credentials
from tests.appliance.connecting import Here, made_here


@pytest.fixture
def here(tmp_path: Path) -> Here:
    return made_here(tmp_path)


def given(here: Here, name: str, text: str) -> Path:
    path = here.file(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


# ------------------------------------------------------------------------------------------- copies


def test_no_copy_is_ever_overwritten(here: Here) -> None:
    path = given(here, "codex", 'model = "mine"\n')
    texts = []
    for number in range(3):
        texts.append(path.read_text())
        said = here(f"codex --seat ana --write --context {9_000 + number}").stdout
        copies = [path.with_name(f"config.toml.bak{end}") for end in ("", ".1", ".2")][: number + 1]
        assert [copy.read_text() for copy in copies] == texts
        assert f"{path} is written; what was there: {copies[-1]}" in said
        assert ("earlier copies stay" in said) == (number > 0)
    shown = json.loads(here("codex --seat ana --write --json --context 7000").stdout)["written"]
    assert shown["backup"] == f"{path}.bak.3"


def test_a_copy_can_be_read_by_its_owner_alone_and_the_copies_of_others_stay_as_they_are(here: Here) -> None:
    path = given(here, "claude-code", '{"env": {"ANTHROPIC_AUTH_TOKEN": "sk-old"}}')
    path.chmod(0o644)
    others = path.with_name("settings.json.bak")
    others.write_text("of another program")
    others.chmod(0o644)
    here("claude-code --seat ana --write", MOE_API_KEY=here.key)
    assert (others.read_text(), stat.S_IMODE(others.stat().st_mode)) == ("of another program", 0o644)
    ours = path.with_name("settings.json.bak.1")
    assert "sk-old" in ours.read_text()
    assert stat.S_IMODE(ours.stat().st_mode) == 0o600


def test_a_copy_follows_no_link_and_takes_no_folder(here: Here) -> None:
    path = given(here, "codex", 'model = "mine"\n')
    elsewhere = here.folder / "elsewhere"
    path.with_name("config.toml.bak").symlink_to(elsewhere)
    path.with_name("config.toml.bak.1").mkdir()
    here("codex --seat ana --write")
    assert not elsewhere.exists()
    assert path.with_name("config.toml.bak").is_symlink()
    assert path.with_name("config.toml.bak.2").read_text() == 'model = "mine"\n'


def test_a_copy_that_cannot_be_written_is_not_left_in_part(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    path = given(here, "codex", 'model = "mine"\n')

    def full(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("appliance.cli.connect_file.os.fsync", full)
    assert "No space left" in here.refused("codex --seat ana --write").message
    assert [(p.name, p.read_text()) for p in path.parent.iterdir()] == [("config.toml", 'model = "mine"\n')]


# ------------------------------------------------------------------------------------------- shown


def test_the_credentials_of_an_old_url_are_not_shown(here: Here) -> None:
    given(here, "claude-code", '{"env": {"ANTHROPIC_BASE_URL": "https://user:hunter2@proxy/"}}')
    done = here("claude-code --seat ana --write", MOE_API_KEY=here.key)
    assert 'env.ANTHROPIC_BASE_URL = "http://BOX:8000"   (was "https://...@proxy/")' in done.stdout
    assert "hunter2" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("old", "shown"),
    [
        ("https://proxy:8000/v1", "https://proxy:8000/v1"),
        ("https://user:hunter2@proxy/v1", "https://...@proxy/v1"),
        ("https://hunter2@proxy", "https://...@proxy"),
        ("//user:hunter2@proxy", "//...@proxy"),
        ("user:hunter2@proxy:80", "...@proxy:80"),
        (" https://user:hunter2@proxy", " https://...@proxy"),
        ("https://user:hun@ter2@proxy", "https://...@proxy"),
        ("https://user:hun/ter2@proxy", "https://...@proxy"),
        ("https://user:hun#ter2@proxy/", "https://..."),
        ("https://proxy/v1?key=hunter2", "https://proxy/v1?..."),
        ("https://proxy/v1?mail=a@b&key=hunter2", "https://..."),
        ("https://proxy/v1#hunter2", "https://proxy/v1#..."),
        ("claude-3-5@20240620", "claude-3-5@20240620"),
        ("openai/what?", "openai/what?"),
    ],
)
def test_of_a_url_is_shown_where_it_leads(old: str, shown: str) -> None:
    assert without_credentials(old) == shown
    assert old_value("base_url", old) == json.dumps(shown)


@pytest.mark.parametrize("name", ["apiKey", "api_keys", "AUTH_TOKEN", "client-secret", "password", "Authorization"])
@pytest.mark.parametrize("old", ["sk-old", 123_456, 1.5, ["sk-old"]])
def test_the_old_value_of_a_secret_is_not_shown_whatever_its_type(name: str, old: object) -> None:
    assert old_value(name, old) == "another one"


def test_a_number_of_tokens_is_no_secret() -> None:
    assert old_value("maxTokens", 5) == "5"
    assert old_value("CLAUDE_CODE_MAX_CONTEXT_TOKENS", "5") == '"5"'


def test_an_old_value_does_nothing_to_the_terminal(here: Here) -> None:
    assert old_value("model", "é \x9b2J\ud800") == '"\\u00e9 \\u009b2J\\ud800"'
    given(here, "aider", 'model: "\\ud800"\n')
    assert r'(was "\ud800")' in here("aider --seat ana --write").stdout


def test_the_credentials_of_a_url_that_is_refused_are_not_shown(here: Here) -> None:
    for url in ("https://user:hunter2@box", "https://box/v1?key=hunter2"):
        done = here(f"codex --url '{url}'")
        assert (done.exit_code, "hunter2" in done.output + done.stderr) == (2, False)


# ------------------------------------------------------------------------------------------- no text


def test_half_a_character_in_json_stays_as_it_is(here: Here) -> None:
    path = given(here, "pi", '{"a": "\\ud800", "b": "ü\\ud83d\\ude00", "\\uDC00": 1}')
    assert here("pi --seat ana --write").exit_code == 0
    text = path.read_text()
    assert '"a": "\\ud800",\n  "b": "ü\U0001f600",\n  "\\udc00": 1,' in text
    assert json.loads(text)["a"] == "\ud800"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pi", '{"a": ' + "[" * 800 + "]" * 800 + "}"),
        ("pi", '{"a": ' + "9" * 5_000 + "}"),
        ("codex", "a = " + "9" * 5_000 + "\n"),
        ("aider", 'a: "\\UFFFFFFFF"\n'),
        ("aider", "a: &a [*a]\n"),
    ],
)
def test_what_python_cannot_hold_is_refused_and_left_alone(here: Here, name: str, text: str) -> None:
    path = given(here, name, text)
    error = here.refused(f"{name} --seat ana --write")
    assert (str(path) in error.message, "nothing was changed" in error.message) == (True, True)
    assert [p.read_text() for p in path.parent.iterdir() if p.is_file()] == [text]


def test_a_model_that_is_no_text_is_refused(here: Here) -> None:
    for model in ("\udcff", "m\x1b[2J"):
        assert "--model" in here.refused(f"codex --seat ana --context 5 --model '{model}'").remedy
