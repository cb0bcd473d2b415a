"""The import rules in pyproject.toml know every module that says it is pure."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
RULES = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
LISTED = next(rule["source_modules"] for rule in RULES if rule["name"] == "pure modules touch nothing")
PACKAGES = {"appliance", "gateway"}


def says_pure(file: Path) -> bool:
    header = (ast.get_docstring(ast.parse(file.read_text())) or "").partition("\n\n")[0]
    return re.search(r"\bPure[.;:]", header) is not None


def test_a_module_that_says_it_is_pure_is_held_to_it() -> None:
    files = [file for package in PACKAGES for file in (ROOT / package).rglob("*.py") if says_pure(file)]
    names = {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for file in files}
    covered = {name for name in names if any(name == listed or name.startswith(f"{listed}.") for listed in LISTED)}
    assert names - covered - PACKAGES == set()
    assert covered
