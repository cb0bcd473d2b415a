"""Loads the modules of packaging/, which is a folder of scripts and no Python package."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
PACKAGING = ROOT / "packaging"


def part(name: str) -> ModuleType:
    """packaging/NAME.py, apart from whatever else is called so."""
    spec = importlib.util.spec_from_file_location(f"moe_packaging_{name}", PACKAGING / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module
