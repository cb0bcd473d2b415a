"""The part that runs inside vLLM is a distribution of its own, with the same files and nothing of the rest."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from appliance.residency import __version__

ROOT = Path(__file__).parents[2]
PURE = ("document", "layout", "decided", "vmm", "driver", "errors")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT / "packaging/residency", check=True, capture_output=True)
    [made] = folder.iterdir()
    return made


def test_it_holds_the_modules_as_they_are_and_needs_nothing(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if name.startswith("moe_residency/")}
        told = archive.read(next(name for name in archive.namelist() if name.endswith("/METADATA"))).decode()
        sources = {f"moe_residency/{file.name}": file for file in (ROOT / "appliance/residency").glob("*.py")}
        assert names == set(sources)
        assert all(archive.read(name) == file.read_bytes() for name, file in sources.items())
    assert "Requires-Dist" not in told
    assert f"Version: {__version__}" in told


def test_it_imports_without_the_appliance(wheel: Path) -> None:
    lines = [f"import sys; sys.path.insert(0, {str(wheel)!r})", *(f"import moe_residency.{name}" for name in PURE)]
    lines.append("assert not {'appliance', 'gateway', 'torch', 'vllm'} & sys.modules.keys()")
    subprocess.run([sys.executable, "-I", "-S", "-c", "\n".join(lines)], check=True)
