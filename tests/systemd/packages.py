"""Builds the package, of this checkout or of one with another version. Touches build/ and temporary folders."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
PARTS = ("appliance", "gateway", "packaging", "systemd", "scripts", "docs", "plans")
BUILD_LIMIT_S = 600.0


def build(out: Path, source: Path = ROOT) -> Path:
    """The .deb of `source`, made in `out`. Fails with what packaging/build says."""
    environ = os.environ | {"SOURCE_DATE_EPOCH": os.environ.get("SOURCE_DATE_EPOCH", "1767225600")}
    argv = [str(source / "packaging/build"), "--out", str(out)]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=BUILD_LIMIT_S, check=False)
    assert done.returncode == 0, f"{' '.join(argv)}\n{done.stdout}{done.stderr[-5000:]}"
    (deb,) = out.glob("*.deb")
    return deb


def build_changed(folder: Path, changes: Mapping[str, tuple[str, str]]) -> Path:
    """The .deb of a copy of this checkout in which `changes` says of files what text is replaced by what."""
    source = folder / "source"
    for part in PARTS:
        shutil.copytree(ROOT / part, source / part, ignore=shutil.ignore_patterns("__pycache__"))
    for path in filter(Path.is_file, (*ROOT.glob("[A-Za-z]*"), ROOT / ".gitignore")):
        shutil.copy(path, source)
    (ROOT / "build").mkdir(exist_ok=True)
    (source / "build").symlink_to(ROOT / "build")  # what the build fetches is there already
    for name, (old, new) in changes.items():
        text = (source / name).read_text()
        assert text.count(old) == 1, f"{name} has {old!r} {text.count(old)} times"
        (source / name).write_text(text.replace(old, new))
    return build(folder / "out", source)
