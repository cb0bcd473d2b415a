"""Which libraries the package carries, and how each is held to one file."""

from __future__ import annotations

import hashlib
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.packaging.parts import PACKAGING, ROOT, part

wheels = part("wheels")
LOCK = """\
pure==1.0 \\
    --hash=sha256:aa \\
    --hash=sha256:bb
old==2 ; python_full_version < '3.12' \\
    --hash=sha256:cc
windows==3 ; sys_platform == 'win32' \\
    --hash=sha256:dd
"""


def locked(path: Path) -> dict[str, str]:
    """Each requirement of a lock file -> its hashes, or what else is written behind it."""
    lines = path.read_text().replace("\\\n", " ").splitlines()
    return {line.split(" --hash")[0].strip(): line for line in lines}


def wheel(folder: Path, name: str, metadata: str) -> Path:
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.4\nName: {name}\n{metadata}\n\nText")
    return path


def test_the_packages_lock_is_a_part_of_the_projects() -> None:
    ours, all_of_them = locked(PACKAGING / "requirements.lock"), locked(ROOT / "requirements.lock")
    assert ours.items() <= all_of_them.items()


def test_the_lock_has_every_dependency_and_neither_demo_nor_build() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {canonicalize_name(Requirement(line).name) for line in locked(PACKAGING / "requirements.lock")}
    assert {canonicalize_name(Requirement(line).name) for line in project["dependencies"]} <= names
    assert not names & {"xllamacpp", "gguf", "hatchling"}


def test_markers_are_those_of_the_python_that_installs_and_not_of_the_one_that_builds() -> None:
    assert wheels.requirements(LOCK, "3.11") == [
        "pure==1.0 --hash=sha256:aa --hash=sha256:bb",
        "old==2 --hash=sha256:cc",
    ]
    assert wheels.requirements(LOCK, "3.13") == ["pure==1.0 --hash=sha256:aa --hash=sha256:bb"]


def test_the_packages_dependencies_are_what_the_wheels_were_chosen_for() -> None:
    depends = (PACKAGING / "nfpm.yaml").read_text()
    oldest, newest = wheels.SERIES[0], wheels.SERIES[-1].split(".")
    assert f"- libc6 (>= 2.{wheels._GLIBC_MINOR})\n" in depends
    assert f"- python3 (>= {oldest})\n" in depends
    assert f"- python3 (<< {newest[0]}.{int(newest[1]) + 1})\n" in depends
    for series in wheels.SERIES:
        assert f"- /usr/bin/python{series}\n" in depends  # a trigger: it may come or go


def test_a_list_names_each_wheel_with_the_hash_of_its_one_file(tmp_path: Path) -> None:
    other, own = wheel(tmp_path, "other_lib", "License: MIT"), wheel(tmp_path, "moe_appliance", "License: X")
    lines = wheels.listing(wheels.Bundle("3.11", (other,)), own, "1.0").splitlines()
    assert lines[0] == "# moe-appliance 1.0"
    assert lines[1].startswith("# needs ")
    assert lines[2] == f"other-lib==1.0 --hash=sha256:{hashlib.sha256(other.read_bytes()).hexdigest()}"
    assert lines[3].startswith("moe-appliance==1.0 --hash=sha256:")


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ("License-Expression: MIT OR Apache-2.0", "MIT OR Apache-2.0"),
        ("Classifier: License :: OSI Approved :: BSD License", "BSD License"),
    ],
)
def test_a_licence_is_read_from_the_wheel(tmp_path: Path, metadata: str, said: str) -> None:
    assert wheels.licence(wheel(tmp_path, "lib", metadata)) == f"lib 1.0: {said}"


def test_a_wheel_without_a_licence_stops_the_build(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="tells no licence"):
        wheels.licence(wheel(tmp_path, "lib", "Summary: none"))
