"""The pages of docs/ say what the settings are, and every setting says what it does."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from annotated_types import Ge
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from typer.main import get_command

from appliance.box.settings import PreflightSettings
from appliance.cli import admins, seats
from appliance.config import ENGINES, Config
from appliance.engine.vllm.nodes import Nodes
from appliance.plan.settings import PlanSettings
from gateway.keyfile import AdminRow, PreviousKey, SeatRow
from gateway.prewarm.settings import PrefixSettings, PrewarmSettings
from gateway.settings import AdmissionSettings, LedgerSettings, LimitSettings

ROOT = Path(__file__).parents[1]
TABLES: tuple[type[BaseModel], ...] = (
    AdmissionSettings,
    LimitSettings,
    LedgerSettings,
    PrewarmSettings,
    PrefixSettings,
    PlanSettings,
    PreflightSettings,
    Nodes,
)
MODELS = (Config, *ENGINES.values(), *TABLES)
ROWS: tuple[type[BaseModel], ...] = (SeatRow, PreviousKey, AdminRow)
UNITS = {"_s": "second", "_bytes": "bytes", "_tokens": "tokens"}


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generator", ROOT / "scripts" / "docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def settings() -> Iterator[tuple[str, FieldInfo]]:
    """Every setting that is no table."""
    for model in MODELS:
        for name, field in model.model_fields.items():
            if model is not Config or name not in (
                "engine",
                "admission",
                "gateway",
                "ledger",
                "prewarm",
                "plan",
                "preflight",
            ):
                yield f"{model.__name__}.{name}", field


def named_default(said: str) -> str | None:
    """What a docstring gives as the default."""
    found = re.search(r"Default:? (.+?)\.?$", " ".join(said.split()))
    return found[1] if found else None


SETTINGS = pytest.mark.parametrize(
    ("name", "field"), list(settings()), ids=lambda value: value if isinstance(value, str) else ""
)


@pytest.mark.parametrize(
    "name", ["configuration.md", "seats.md", "agents.md", "plans.md", "plan.schema.json", "preflight.md"]
)
def test_the_page_is_up_to_date(name: str) -> None:
    assert (ROOT / "docs" / name).read_text() == generator().wanted()[name], "run scripts/docs"


def test_check_says_so_when_a_page_is_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docs = generator()
    (tmp_path / "seats.md").write_text((ROOT / "docs" / "seats.md").read_text())
    monkeypatch.setattr(docs, "DOCS", tmp_path)
    assert docs.main(["--check"]) == 1
    assert not (tmp_path / "configuration.md").exists()
    assert docs.main([]) == 0
    assert docs.main(["--check"]) == 0
    (tmp_path / "seats.md").write_text((tmp_path / "seats.md").read_text().replace("- `expires`", "- `expire`"))
    assert docs.main(["--check"]) == 1


def test_the_generator_runs_as_a_file() -> None:
    subprocess.run([sys.executable, str(ROOT / "scripts" / "docs.py"), "--check"], cwd="/", check=True)


@SETTINGS
def test_every_setting_says_what_it_does_and_its_default(name: str, field: FieldInfo) -> None:
    said = field.description or ""
    assert said.strip(), f"{name} has no docstring"
    assert said.strip().endswith((".", ")")), name
    default = named_default(said)
    if field.is_required():
        assert default is None, name
        return
    assert default is not None, f"{name} names no default"
    value: Any = field.default
    match value:
        case bool() | str() if value in (True, False) or value:
            assert default.strip('"').startswith(str(value).lower() if isinstance(value, bool) else value), name
        case int() | float():
            assert re.match(rf"{value:g}\b" if value < 1e5 else rf"{value:.0f}\b", default), name


@SETTINGS
def test_units_and_zero_are_explained(name: str, field: FieldInfo) -> None:
    said = (field.description or "").lower()
    for suffix, unit in UNITS.items():
        assert not name.endswith(suffix) or unit in said or name.endswith("cold_tokens"), f"{name}: {unit}"
    if any(isinstance(bound, Ge) and bound.ge == 0 for bound in field.metadata):
        assert re.search(r"\b0 (disables|=)", said), f"{name}: what does 0 do?"


@pytest.mark.parametrize("model", ROWS)
def test_every_field_of_the_key_files_is_documented(model: type[BaseModel]) -> None:
    page = (ROOT / "docs" / "seats.md").read_text()
    for name, field in model.model_fields.items():
        assert field.description, name
        assert f"- `{name}`: " in page


@pytest.mark.parametrize(("word", "app"), [("seats", seats.app), ("admins", admins.app)])
def test_every_verb_is_documented(word: str, app: Any) -> None:
    page = (ROOT / "docs" / "seats.md").read_text()
    section = page[page.index("## Verbs") : page.index("## When")]
    lines = [line for line in section.splitlines() if f"moe-appliance {word} " in line]
    for verb, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        own = [line for line in lines if re.search(rf"[ `]{verb}\b", line)]
        assert own, verb
        for option in (o for p in command.params if not getattr(p, "hidden", False) for o in p.opts):
            if option.startswith("--") and option not in ("--json", "--help"):
                assert option in " ".join(own), f"{verb} {option}"
