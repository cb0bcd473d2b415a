"""appliance/engine/environments/pythons.py, asked about programs that answer like Pythons."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from appliance.engine.environments import pythons
from appliance.engine.environments.sets import SETS
from appliance.errors import MoeError

WANTED = replace(SETS["vllm"], python=(3, 12))
GOOD = [[3, 12], "3.12.9", "cpython", "x86_64", ["glibc", "2.36"], "/opt/python3.12"]


def program(folder: Path, said: object, name: str = "python3.12") -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{json.dumps(said)}'\n" if not isinstance(said, str) else said)
    path.chmod(0o755)
    return path


def test_the_one_in_path_is_taken_and_its_real_name_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, GOOD)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    found = pythons.choose(WANTED, None)
    assert found == pythons.Python(Path("/opt/python3.12"), "3.12.9") or sys.version_info[:2] == (3, 12)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ([[3, 11], "3.11.2", *GOOD[2:]], r"it is Python 3\.11\.2, and the locked packages are for 3\.12"),
        ([*GOOD[:2], "pypy", *GOOD[3:]], "it is pypy on x86_64"),
        ([*GOOD[:3], "aarch64", *GOOD[4:]], "it is cpython on aarch64"),
        ([*GOOD[:4], ["glibc", "2.31"], GOOD[5]], r"it runs on glibc 2\.31; glibc 2\.34 is the oldest"),
        ([*GOOD[:4], ["", ""], GOOD[5]], "it runs on another C library"),
        ("#!/bin/sh\necho 'shim: no such version' >&2; echo 'see the manual' >&2; exit 127\n", "shim: no such version"),
        ("#!/bin/sh\nexit 0\n", "it does not run: it says nothing, so it is no Python"),
        ("#!/nowhere/sh\n", "it cannot be run: No such file"),
    ],
)
def test_one_that_does_not_do_is_refused_with_the_reason_and_the_remedy(tmp_path: Path, said: object, why: str) -> None:
    with pytest.raises(MoeError, match=why) as caught:
        pythons.choose(WANTED, program(tmp_path, said))
    assert "engine install vllm --python" in caught.value.remedy


def test_a_virtual_environments_python_stands_for_the_one_below_it() -> None:
    own = replace(WANTED, python=sys.version_info[:2])
    found = pythons.choose(own, Path(sys.executable))
    assert not (found.executable.parents[1] / "pyvenv.cfg").exists()
