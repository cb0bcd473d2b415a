"""Fetches the wheels that the package carries, and lists for each Python which of them it installs.

Touches the package registry (through pip, with the lock file's hashes) and a folder. Wheels alone: nothing is compiled,
here or on the operator's machine. The platform is x86_64 with glibc 2.28 (Debian 10, 2018) or newer.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import parse_wheel_filename

SERIES = ("3.11", "3.12", "3.13")
"""Pythons that the package can be installed for."""
_GLIBC_MINOR = 28
_PLATFORMS = [
    *(f"manylinux_2_{minor}_x86_64" for minor in range(_GLIBC_MINOR, 4, -1)),
    "manylinux2014_x86_64",
    "manylinux2010_x86_64",
    "manylinux1_x86_64",
]
_INSTALLED = 1.8
"""What a wheel weighs once it is installed and byte-compiled, in its unpacked bytes. Measured on our set: 1.6."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """For one Python: its series (3.11) and its wheels."""

    series: str
    wheels: tuple[Path, ...]


def fetch(lock: Path, folder: Path) -> tuple[Bundle, ...]:
    """The wheels of a lock file for each Python, below `folder`; what is there already is not fetched again."""
    return tuple(_fetch(lock, series, folder / f"cp{series.replace('.', '')}") for series in SERIES)


def listing(bundle: Bundle, own: Path, version: str) -> str:
    """The requirements of one Python, ours last, each with the hash of the one file that will do.

    Its first lines are read by make-venv: our version, and the room that is needed.
    """
    wheels = (*bundle.wheels, own)
    lines = [
        f"# moe-appliance {version}",
        f"# needs {round(sum(map(_unpacked_bytes, wheels)) * _INSTALLED) // 1024} KiB",
    ]
    for wheel in wheels:
        name, release, _, _ = parse_wheel_filename(wheel.name)
        lines.append(f"{name}=={release} --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}")
    return "\n".join(lines) + "\n"


def requirements(lock: str, series: str) -> list[str]:
    """The lines of a lock file that hold for a Python on Linux, x86_64: markers evaluated and gone."""
    environment = {
        "implementation_name": "cpython",
        "os_name": "posix",
        "platform_machine": "x86_64",
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "python_full_version": f"{series}.0",
        "python_version": series,
        "sys_platform": "linux",
    }
    kept = []
    for line in lock.replace("\\\n", " ").splitlines():
        asked, *hashes = line.split(" --hash=")
        if not hashes:
            continue
        requirement = Requirement(asked)
        if requirement.marker is None or requirement.marker.evaluate(environment):
            hashed = " ".join(f"--hash={digest.strip()}" for digest in hashes)
            kept.append(f"{requirement.name}{requirement.specifier} {hashed}")
    return kept


def licence(wheel: Path) -> str:
    """`name version: licence` as a wheel's own metadata say."""
    name, release, _, _ = parse_wheel_filename(wheel.name)
    with zipfile.ZipFile(wheel) as archive:
        path = next(entry for entry in archive.namelist() if entry.endswith(".dist-info/METADATA"))
        head = archive.read(path).decode().split("\n\n", 1)[0].splitlines()
    for prefix in ("License-Expression: ", "License: ", "Classifier: License :: OSI Approved :: ", "License-File: "):
        for line in head:
            if line.startswith(prefix) and len(line) > len(prefix):
                return f"{name} {release}: {line.removeprefix(prefix)}"
    raise SystemExit(f"error: {wheel.name} tells no licence\nremedy: look at its files and decide whether to ship it")


def _fetch(lock: Path, series: str, folder: Path) -> Bundle:
    wanted = "\n".join(requirements(lock.read_text(), series)) + "\n"
    asked = folder.with_suffix(".txt")
    if not asked.exists() or asked.read_text() != wanted:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():
            old.unlink()
        asked.unlink(missing_ok=True)
        fresh = folder.with_suffix(".new")
        fresh.write_text(wanted)
        platforms = [word for platform in _PLATFORMS for word in ("--platform", platform)]
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        only = ["--only-binary=:all:", "--require-hashes", "--no-deps", "--dest", str(folder), "-r", str(fresh)]
        target = ["--implementation", "cp", "--python-version", series, *platforms]
        subprocess.run([*pip, *only, *target], check=True)
        fresh.rename(asked)
    return Bundle(series, tuple(sorted(folder.glob("*.whl"))))


def _unpacked_bytes(wheel: Path) -> int:
    with zipfile.ZipFile(wheel) as archive:
        return sum(entry.file_size for entry in archive.infolist())
