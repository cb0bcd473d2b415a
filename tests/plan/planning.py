"""Runs `plan make` and `plan check` as a root would, on a box whose cards a test decides."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer
from typer.testing import CliRunner, Result

from appliance.cli import plan_check, plan_make
from appliance.cli.box import Box

STUDY_CARDS = ("--gpus", "2", "--vram-gib", "95.6")


def run(*words: str | Path, charset: str = "utf-8") -> Result:
    """What the command line did; wide enough that no line is folded."""
    app = typer.Typer()
    plan_make.register(app)
    plan_check.register(app)
    environ = {"COLUMNS": "160"}
    return CliRunner(env=environ, charset=charset).invoke(app, [str(word) for word in words], obj=Box(None, environ))


def answer(*words: str | Path) -> tuple[int, dict[str, Any]]:
    """Exit code and JSON."""
    done = run(*words, "--json")
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, json.loads(done.stdout)
