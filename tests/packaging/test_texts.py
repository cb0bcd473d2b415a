"""Changelog, copyright and completions as Debian and the shells want them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.parts import ROOT, part

texts = part("texts")
CALL = "import sys; sys.argv = ['moe-appliance']; from appliance.cli import main; main()"
MAINTAINER = "Somebody <somebody@box.example>"


def asked(**variables: str) -> str:
    """What the command line answers a shell."""
    environ = {"PATH": os.environ["PATH"], **variables}
    ran = subprocess.run([sys.executable, "-c", CALL], env=environ, capture_output=True, text=True, check=False)
    return ran.stdout


def test_the_newest_section_is_the_entry_of_this_version() -> None:
    changes = "# Changelog\n\n## Unreleased\n\n- First\n  thing.\n- Second.\n\n## 0.1\n\n- Old.\n"
    assert texts.debian_changelog(changes, "0.2-1", MAINTAINER, 0) == (
        "moe-appliance (0.2-1) unstable; urgency=medium\n\n  * First thing.\n  * Second.\n\n"
        " -- Somebody <somebody@box.example>  Thu, 01 Jan 1970 00:00:00 +0000\n"
    )


def test_our_own_changelog_fits_80_columns() -> None:
    entry = texts.debian_changelog((ROOT / "CHANGELOG.md").read_text(), "0.2-1", MAINTAINER, 0)
    assert max(map(len, entry.splitlines())) <= 80
    assert entry.count("\n  * ") == (ROOT / "CHANGELOG.md").read_text().split("\n## ")[1].count("\n- ")


def test_each_library_is_named_with_its_licence_once() -> None:
    said = texts.copyright_file(["b 2: MIT", "a 1: BSD", "b 2: MIT"], 2026)
    assert said.count("b 2: MIT") == 1
    assert said.index("a 1: BSD") < said.index("b 2: MIT")
    assert "Copyright: 2026" in said


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_shell_can_read_its_completion(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell}")
    script = asked(_MOE_APPLIANCE_COMPLETE=f"source_{shell}")
    path = tmp_path / "completion"
    path.write_text(texts.zsh_function(script) if shell == "zsh" else script)
    subprocess.run([shell, "-n", str(path)], check=True)


def test_zsh_finds_its_mark_in_the_first_line_and_the_first_call_completes() -> None:
    lines = texts.zsh_function(asked(_MOE_APPLIANCE_COMPLETE="source_zsh")).splitlines()
    assert lines[0] == "#compdef moe-appliance"
    function = lines[-1].split()[0]
    assert f"{function}() {{" in lines


def test_verbs_are_completed() -> None:
    words = asked(_MOE_APPLIANCE_COMPLETE="complete_bash", COMP_WORDS="moe-appliance se", COMP_CWORD="1")
    assert words.split() == ["seats"]
