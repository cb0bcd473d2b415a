"""The root's verbs: each is where the table says, in its order, and pays for its own imports only."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from appliance.cli.app import app
from appliance.cli.verbs import GROUPS, MODULES, Verbs, commands_of

HEAVY = ("appliance.daemon", "appliance.examine", "appliance.config", "appliance.plan.schema", "httpx", "uvicorn")


@pytest.mark.parametrize("module", sorted(set(MODULES.values())))
def test_a_module_has_the_verbs_that_the_table_says_and_no_other(module: str) -> None:
    wanted = [name for name in MODULES if MODULES[name] == module]
    assert list(commands_of(wanted[0])) == wanted


def test_every_verb_can_be_had_by_name_and_all_of_them_in_order() -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    assert list(commands) == list(MODULES)
    for name, command in commands.items():
        assert command.name == name
        assert bool(getattr(command, "commands", None)) is (name in GROUPS)


def test_the_help_has_all_and_an_unknown_verb_is_told_its_neighbours() -> None:
    said = CliRunner().invoke(app, ["--help"]).output
    assert all(f" {name} " in said for name in MODULES if name != "upgraded")
    assert "upgraded" not in said, "it is for the package"
    wrong = CliRunner().invoke(app, ["pasue"])
    assert wrong.exit_code == 2
    assert "pause" in wrong.output


def test_verbs_stay() -> None:
    verbs = Verbs()
    assert len(verbs) == len(MODULES)
    with pytest.raises(KeyError):
        verbs["nothing"]
    with pytest.raises(TypeError):
        del verbs["run"]


@pytest.mark.parametrize(
    ("line", "spared"),
    [("--version", HEAVY), ("drain --help", HEAVY), ("seats --help", HEAVY), ("status --help", HEAVY[:2])],
)
def test_a_verb_imports_what_it_needs(line: str, spared: tuple[str, ...]) -> None:
    call = f"import sys; sys.argv = ['x', *{line.split()!r}]; from appliance.cli.app import run; run(); "
    call += f"print([name for name in {spared!r} if name in sys.modules], file=sys.stderr)"
    ran = subprocess.run([sys.executable, "-c", call], capture_output=True, text=True, timeout=30, check=True)
    assert ran.stderr.splitlines()[-1] == "[]"
