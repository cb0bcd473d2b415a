"""Where the parts of a vLLM engine are: what this user may not enter is a finding, and ends nobody."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from appliance.engine.vllm.adapter import VllmEngine
from gateway.state import Finding, Severity
from tests.appliance.closed import closed
from tests.appliance.vllm.test_vllm_adapter import facts
from tests.appliance.vllm.vllm_requests import settings

OPENS = "sudo chmod a+x {}   lets the user that runs moe-appliance in"


@pytest.fixture
def home(short_folder: Path) -> Path:
    """Somebody's home folder with all that an engine needs, beside another such folder."""
    short_folder.chmod(0o755)
    for name in ("home", "open"):
        model = short_folder / name / "model"
        model.mkdir(parents=True, mode=0o755)
        (model / "config.json").write_text("{}")
        for file in (short_folder / name / "python", short_folder / name / "t.jinja"):
            file.write_text("x")
            file.chmod(0o755)
    return short_folder / "home"


def found(home: Path, **of_home: str) -> dict[str, Finding]:
    """What speaks against an engine of which all is reachable but what is named."""
    given: dict[str, Any] = {"python": "python", "model": "model", "chat_template": "t.jinja"}
    said = {key: str(home.with_name("open") / name) for key, name in given.items()}
    said |= {key: str(home / name) for key, name in of_home.items()}
    made = VllmEngine(
        settings(tool_call_parser="hermes", **said),
        state_dir=home.parent / "state",
        runtime_dir=Path("/run/x"),
        environ={},
        which=lambda name: None,
    )
    return {one.id: one for one in made.findings(facts(1))}


@pytest.mark.parametrize(
    ("key", "name", "title"),
    [
        ("python", "python", "The engine's Python cannot be run"),
        ("model", "model", "The model cannot be read"),
        ("chat_template", "t.jinja", "The chat template cannot be read"),
    ],
)
def test_what_lies_in_a_folder_that_may_not_be_entered_is_named_with_what_opens_it(
    home: Path, key: str, name: str, title: str
) -> None:
    assert found(home, **{key: name}) == {}
    with closed(home):
        (one,) = found(home, **{key: name}).values()
    assert (one.id, one.severity, one.title) == (f"engine.{key}", Severity.FAIL, title)
    assert one.observed == f"{home / name}: Permission denied"
    assert one.remedy == OPENS.format(home)


@pytest.mark.parametrize("name", ["config.json", "chat_template.jinja"])
def test_a_model_with_a_closed_file_that_vllm_reads_first_is_not_started(home: Path, name: str) -> None:
    file = home / "model" / name
    file.write_text("{}")
    assert found(home, model="model") == {}
    with closed(file):
        one = found(home, model="model")["engine.model"]
    assert one.title == "The model cannot be read"
    assert one.remedy.startswith(f"sudo chmod a+r {file} ")


def test_what_is_not_there_is_told_as_that(home: Path) -> None:
    seen = found(home, python="gone", model="gone", chat_template="gone")
    assert {id_: one.observed for id_, one in seen.items()} == {
        f"engine.{key}": f"{home / 'gone'}: No such file or directory" for key in ("python", "model", "chat_template")
    }
    assert "moe-appliance engine install" in seen["engine.python"].remedy
    assert "moe-appliance checkpoint fetch" in seen["engine.model"].remedy
    (home / "empty").mkdir()
    assert found(home, model="empty")["engine.model"].observed.endswith(": there is no config.json in it")
