"""The man page says all that the command line's help says."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.main import get_command

from appliance.cli.app import app
from tests.packaging.parts import part

manpage = part("manpage")
GLYPHS = {"&": "", "e": "\\", "-": "-", "(ti": "~", "(ha": "^"}


@pytest.fixture(scope="module")
def page() -> str:
    text: str = manpage.manual(get_command(app), "1.2.3", 0)
    return text


def commands(command: Any, words: tuple[str, ...] = ()) -> list[tuple[str, Any]]:
    """Every command below one by its full name, hidden ones too."""
    found = []
    for name, inner in getattr(command, "commands", {}).items():
        found += [(" ".join((*words, name)), inner), *commands(inner, (*words, name))]
    return found


def plain(page: str) -> str:
    """What a reader of the page sees of its text."""
    return re.sub(r"\\(&|e|-|\(ti|\(ha)", lambda found: GLYPHS[found[1]], page)


def test_every_verb_has_a_heading_and_its_whole_help(page: str) -> None:
    said = plain(page)
    for name, command in commands(get_command(app)):
        if not command.hidden:
            assert f"\n.SS {name}\n" in said
            for paragraph in re.split(r"\n\s*\n", command.help.strip()):
                assert " ".join(paragraph.split()) in said, name


def test_every_option_of_a_verb_is_under_its_heading(page: str) -> None:
    sections = dict(part.split("\n", 1) for part in plain(page).split("\n.SS ")[1:])
    for name, command in commands(get_command(app)):
        for parameter in command.params:
            if command.hidden or parameter.hidden:
                continue
            shown = parameter.opts[-1] if parameter.param_type_name == "option" else parameter.metavar or ""
            assert shown in sections[name], f"{name} {parameter.name}"


def test_what_is_hidden_in_the_help_is_hidden_here(page: str) -> None:
    for name, command in commands(get_command(app)):
        if command.hidden:
            assert f".SS {name}" not in plain(page)


def test_it_names_version_day_files_and_exit_codes(page: str) -> None:
    said = plain(page)
    assert said.startswith('.TH MOE-APPLIANCE 1 1970-01-01 "moe-appliance 1.2.3"')
    for word in ("/etc/moe-appliance/first-admin-token", ".B 78"):
        assert word in said


@given(st.text(st.characters(exclude_characters="\n\r")))
def test_no_text_is_a_request_to_roff(text: str) -> None:
    escaped = manpage._text(text)
    assert not escaped.startswith((".", "'"))
    assert plain(escaped) == text


@pytest.mark.skipif(shutil.which("man") is None, reason="no man-db")
def test_man_has_nothing_to_complain_of(page: str, tmp_path: Path) -> None:
    path = tmp_path / "moe-appliance.1"
    path.write_text(page)
    environ = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "MANWIDTH": "80", "MANROFFSEQ": ""}
    argv = ["man", "--local-file", "--warnings", "--encoding=utf8", "--ditroff", str(path)]
    ran = subprocess.run(argv, env=environ, capture_output=True, text=True, check=True)
    assert ran.stderr == ""
