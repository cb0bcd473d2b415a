"""docs/operations.md is true: what it says to type works, and the names in it are those of the code."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from appliance.box.checks import CHECKS
from appliance.cli.app import run
from appliance.config import ENGINES, parsed
from gateway.admission_types import Wait, WaitKind
from gateway.settings import AdmissionSettings, LimitSettings
from gateway.waiting import said
from tests.checkpoint.packs.fixtures import PACKS
from tests.checkpoint.packs.writer import write
from tests.e2e.box import ROOT, Box
from tests.interrupts import heed_interrupts
from tests.operations import ENDLESS, EXITS, LISTED, PAGE, Command, commands, commands_for

TABLES: dict[str, type[BaseModel]] = {
    "admission": AdmissionSettings,
    "gateway": LimitSettings,
    "engine": ENGINES["command"],
}
ENDS = {0, 130, -signal.SIGINT}
"""Exit codes after Ctrl-C."""


def section(title: str) -> str:
    """The text below a heading, to the next one of its rank."""
    return PAGE.read_text().split(f"\n## {title}\n")[1].split("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    """The cells of a table's rows, its head left out."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row, line in zip(cells, lines, strict=True) if not set(line) <= set("|-")][1:]


def sources() -> list[str]:
    """The texts of all modules."""
    return [path.read_text() for folder in ("gateway", "appliance") for path in (ROOT / folder).rglob("*.py")]


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    """A box that has served."""
    box = Box(tmp_path_factory.mktemp("operations")).start().wait_ready()
    assert box.chat("a").done
    yield box
    fault = box.close()
    assert not fault, fault


def here(text: str, box: Box) -> list[str]:
    """The words of a command, with the places of an installed box replaced by those of this one."""
    places = {
        "/srv/models/MODEL": box.home / "model",
        "/usr/share/moe-appliance/plans": ROOT / "plans",
        "/etc/moe-appliance": box.home,
        "/var/backups": box.home,
    }
    for installed, own in places.items():
        text = text.replace(installed, str(own))
    return shlex.split(text)


def typed(command: Command, box: Box, monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    """Exit code and output of one command, run in this process: starting Python takes longer than most verbs do."""
    output = io.StringIO()
    with monkeypatch.context() as patch, contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        patch.chdir(box.home)
        patch.setenv("COLUMNS", "200")
        patch.setattr(sys, "argv", here(command.text, box))
        code = run()
    return code, output.getvalue()


def watched(command: Command, box: Box) -> str:
    """What is wrong with a command that goes on, "" = it said something and ended at Ctrl-C."""
    argv = box.argv(*here(command.text, box)[1:])
    with subprocess.Popen(
        argv, cwd=box.home, env=box.environ(), stdout=subprocess.PIPE, text=True, preexec_fn=heed_interrupts
    ) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
    return "" if first.strip() and process.returncode in ENDS else f"{command.text}: {process.returncode}, {first!r}"


def test_every_command_is_typed_by_a_test_or_listed_with_a_reason() -> None:
    assert [f"line {command.line}: {command.text}" for command in commands() if command.tier == "none"] == []
    there = {command.text for command in commands()}
    assert (LISTED.keys() | EXITS.keys() | ENDLESS) - there == set(), "no longer in the page"
    assert all(len(reason) > 10 for reason in LISTED.values())


def test_a_test_named_as_a_reason_is_there() -> None:
    named = {path for reason in LISTED.values() for path in re.findall(r"tests/[\w./]+", reason)}
    assert {path for path in named if not (ROOT / path).exists()} == set()


def test_what_the_page_says_to_type_does_what_it_says(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(box.home / "model")
    for name in [name for name in os.environ if name.startswith("MOE_APPLIANCE_")]:
        monkeypatch.delenv(name)
    faults = []
    for command in commands_for("box"):
        if command.text in ENDLESS:
            faults.append(watched(command, box))
            continue
        faults.append(command.fault(*typed(command, box, monkeypatch)))
        if re.search(r"\b(restart|start-engine)\b", command.text):
            box.wait_phase("ready")
    if any(faults):
        pytest.fail("\n\n".join(filter(None, faults)), pytrace=False)


def write_model(folder: Path) -> None:
    """A checkpoint of headers only."""
    folder.mkdir(parents=True)
    write(folder, *PACKS["qwen3-moe"]())


def test_output_that_is_missing_wrong_or_in_another_order_is_seen() -> None:
    (command,) = commands("```console\n$ moe-appliance status\none ... two\nthree\n```\n")
    assert command.fault(0, "x one\n and two\nthree") == ""
    assert "three" in command.fault(0, "three one two")
    assert "exit code 1" in command.fault(1, "one two three")


def test_a_block_with_a_command_of_the_system_is_for_an_installed_box() -> None:
    page = (
        "```console\n$ moe-appliance drain\n$ systemctl restart moe-appliance\n```\n\n   ```console\n   $ foo\n   ```\n"
    )
    assert [command.tier for command in commands(page)] == ["systemd", "systemd", "none"]


def test_time_outs_are_the_defaults() -> None:
    told = {}
    for _, _, limit, setting in rows(section("Time-outs")):
        if found := re.fullmatch(r"`\[(\w+)\] (\w+)`", setting):
            told[found[2]] = (limit, f"{TABLES[found[1]].model_fields[found[2]].default:g} s")
    assert len(told) > 10
    assert {name: both for name, both in told.items() if not re.match(rf"{re.escape(both[1])}\b", both[0])} == {}


def test_the_units_settings_are_as_the_unit_has_them() -> None:
    unit = (ROOT / "systemd/moe-appliance.service").read_text()
    told = re.findall(r"`([A-Z][A-Za-z]+=[^`]+)`", PAGE.read_text())
    assert told
    assert [line for line in told if line not in unit.splitlines()] == []


def test_verdicts_are_quoted_as_they_are_said() -> None:
    said = "".join(sources()) + "Drained Paused"
    quoted = [words for row in rows(section("Nobody is served")) for words in re.findall(r"`([^`]+)`", row[0])]
    assert len(quoted) > 8
    assert [words for words in quoted if words not in said] == []


def test_every_reason_to_wait_is_in_the_page_in_the_words_in_which_it_is_told() -> None:
    quoted = [words for row in rows(section("When requests wait")) for words in re.findall(r"`([^`]+)`", row[0])]
    clauses = {kind: said(Wait(kind, 14.0, 128_000)) for kind in WaitKind}
    assert [words for words in quoted if not any(words in clause for clause in clauses.values())] == []
    assert [kind for kind, clause in clauses.items() if not any(words in clause for words in quoted)] == []


def test_findings_and_causes_have_the_ids_of_the_code() -> None:
    checks = {check.id for check in CHECKS}
    known = checks | set(re.findall(r'"([a-z0-9]+\.[a-z0-9_]+)"', "".join(sources())))
    known |= {f"{kind}.file_broken" for kind in ("seats", "admins")}
    told = set(re.findall(r"`([a-z0-9]+\.[a-z0-9_]+)`", PAGE.read_text()))
    files = {name for name in told if name.rpartition(".")[2] in ("toml", "json", "py", "log", "md")}
    assert len(told - files) > 10
    assert told - files - known == set()


def test_alerts_exist() -> None:
    rules = (ROOT / "packaging/prometheus/moe-appliance.rules.yml").read_text()
    told = set(re.findall(r"`(Moe[A-Z]\w+)`", PAGE.read_text()))
    assert told
    assert told - set(re.findall(r"alert: (\w+)", rules)) == set()


def test_the_configuration_in_the_page_is_taken(tmp_path: Path) -> None:
    blocks = re.findall(r"(?ms)^```toml\n(.*?)^```$", PAGE.read_text())
    assert blocks
    for block in blocks:
        assert tomllib.loads(block)
        parsed(tmp_path / "appliance.toml", block.encode(), {})
