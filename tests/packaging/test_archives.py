"""The .deb, the wheel and the sdist, looked at without installing them into this machine.

The first build fetches about 60 MB of wheels and takes a minute; later ones take ten seconds.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from appliance import __version__
from tests.packaging.conftest import Built, build
from tests.packaging.parts import ROOT

pytestmark = pytest.mark.systemd
WHEELS = "./usr/lib/moe-appliance/wheels/"
SERIES = ("3.11", "3.12", "3.13")


def said(*argv: str | Path) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def files(built: Built) -> dict[str, str]:
    """Path -> mode and owner, of everything in the .deb."""
    lines = [line.split(maxsplit=5) for line in said("dpkg-deb", "--contents", built.deb).splitlines()]
    return {line[5]: f"{line[0]} {line[1]}" for line in lines}


@pytest.fixture(scope="module")
def unpacked(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    said("dpkg-deb", "--extract", built.deb, folder)
    return folder


def test_the_control_fields_say_version_architecture_and_what_is_needed(built: Built) -> None:
    field = {
        name: said("dpkg-deb", "--field", built.deb, name).strip() for name in ("Version", "Depends", "Architecture")
    }
    assert field["Version"] == f"{__version__}-1"
    assert field["Architecture"] == "amd64"
    assert "python3 (>= 3.11), python3 (<< 3.14)" in field["Depends"]


def test_everything_is_roots_and_nobody_else_may_write(files: dict[str, str]) -> None:
    assert {line.split()[1] for line in files.values()} == {"root/root"}
    assert {line.split()[0] for line in files.values()} == {"drwxr-xr-x", "-rw-r--r--", "-rwxr-xr-x"}


def test_only_the_configuration_is_a_conffile(built: Built) -> None:
    assert said("dpkg-deb", "--info", built.deb, "conffiles").split() == ["/etc/moe-appliance/appliance.toml"]


def test_it_carries_what_the_operator_looks_for(files: dict[str, str]) -> None:
    for path in (
        "usr/bin/moe-appliance",
        "usr/lib/systemd/system/moe-appliance.service",
        "usr/lib/sysusers.d/moe-appliance.conf",
        "usr/share/man/man1/moe-appliance.1.gz",
        "usr/share/bash-completion/completions/moe-appliance",
        "usr/share/zsh/vendor-completions/_moe-appliance",
        "usr/share/fish/vendor_completions.d/moe-appliance.fish",
        "usr/share/doc/moe-appliance/configuration.md",
        "usr/share/doc/moe-appliance/copyright",
        "usr/share/doc/moe-appliance/changelog.Debian.gz",
        "usr/share/moe-appliance/plans/deepseek-v4.1-flash-2x-rtx-pro-6000.json",
    ):
        assert f"./{path}" in files


@pytest.mark.parametrize("series", SERIES)
def test_each_python_has_wheels_that_are_there_and_fit_it(unpacked: Path, series: str) -> None:
    listed = (unpacked / WHEELS / f"python{series}.lock").read_text()
    core = [line for line in listed.splitlines() if line.startswith("pydantic-core==")]
    assert len(core) == 1
    tag = f"-cp{series.replace('.', '')}-"
    (found,) = [path for path in (unpacked / WHEELS).glob("pydantic_core-*.whl") if tag in path.name]
    assert said("sha256sum", found).split()[0] in core[0]
    assert f"moe-appliance=={__version__} --hash=" in listed


def test_what_the_compiled_libraries_link_is_in_the_dependencies(unpacked: Path, tmp_path: Path) -> None:
    needed, brought = set(), set()
    for wheel in (unpacked / WHEELS).glob("*_x86_64.whl"):
        shutil.unpack_archive(wheel, tmp_path / wheel.name, "zip")
    for library in tmp_path.rglob("*.so*"):
        brought.add(library.name)
        for line in said("objdump", "--private-headers", library).splitlines():
            if line.split()[:1] == ["NEEDED"]:
                needed.add(line.split()[1])
    of_packages = {"libc", "libm", "libpthread", "libdl", "librt", "libutil", "ld-linux-x86-64"}  # libc6
    of_packages |= {"libgcc_s", "libstdc++", "libz"}
    assert {name.split(".so")[0] for name in needed - brought} <= of_packages


@pytest.mark.skipif(shutil.which("lintian") is None, reason="no lintian")
def test_lintian_finds_nothing_beyond_the_listed_exceptions(built: Built) -> None:
    ran = subprocess.run(["lintian", "--fail-on=warning", built.deb], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, "")


def test_the_same_source_gives_the_same_bytes(built: Built, tmp_path: Path) -> None:
    source = tmp_path / "source"  # a copy: nobody edits it between the two
    unwanted = {"build", "dist", *(path.name for path in ROOT.glob(".*") if path.is_dir())}
    shutil.copytree(ROOT, source, ignore=lambda folder, _: unwanted if Path(folder) == ROOT else {"__pycache__"})
    (source / "build").symlink_to(ROOT / "build")  # what a build fetches is there already
    first, second = (build(tmp_path / name, source) for name in ("first", "second"))
    for one, other in ((first.deb, second.deb), (first.wheel, second.wheel), (first.sdist, second.sdist)):
        assert one.read_bytes() == other.read_bytes(), one.name


@pytest.fixture(scope="module")
def python(built: Built, unpacked: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That of a fresh environment into which its pip put our wheel, from the package's wheels alone."""
    folder = tmp_path_factory.mktemp("environment")
    said(sys.executable, "-m", "venv", folder)
    pip_install(folder / "bin/python", "--find-links", unpacked / WHEELS, built.wheel)
    return folder / "bin/python"


def pip_install(python: Path, *words: str | Path) -> None:
    said(python, "-m", "pip", "install", "--no-index", "--disable-pip-version-check", "-q", *words)


def version_of(python: Path) -> str:
    return said(python.with_name("moe-appliance"), "--version").strip()


def test_the_wheel_installs_into_a_fresh_environment(python: Path) -> None:
    assert version_of(python) == __version__


def test_the_sdist_builds_and_installs_in_place_of_the_wheel(built: Built, python: Path) -> None:
    builder = next((ROOT / "build/packaging/venv/lib").glob("python3.*/site-packages"))  # hatchling is there
    site = next((python.parents[1] / "lib").glob("python3.*/site-packages"))
    said(python, "-m", "pip", "uninstall", "-q", "-y", "moe-appliance")
    (site / "builder.pth").write_text(f"{builder}\n")
    pip_install(python, "--no-deps", "--no-build-isolation", built.sdist)
    (site / "builder.pth").unlink()
    assert version_of(python) == __version__
