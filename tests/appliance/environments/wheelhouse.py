"""Tiny wheels, a lock of them and a set made of it: what a real set is, in milliseconds and without a registry."""

from __future__ import annotations

import hashlib
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from appliance.engine.environments.sets import EngineSet, Source

VLLM = {
    "vllm/__init__.py": "",
    "vllm/platforms.py": "class current_platform:\n    device_type = 'cpu'\n",
    "vllm/entrypoints/openai/api_server.py": "print('noise on stdout')\n",
    "other.py": "",
}
EXTRA = {"extra/__init__.py": "", "extra/template.py": "this is {{ no }} python"}
PLUGIN = "[vllm.general_plugins]\nvllm_exl3 = extra:register\n"


@dataclass(frozen=True, slots=True)
class House:
    """`wheels`: folder with all wheels of the lock; `locks`: folder with the lock; `made`: the set."""

    wheels: Path
    locks: Path
    made: EngineSet

    @property
    def files(self) -> list[Path]:
        return sorted(self.wheels.glob("*.whl"))


def wheel(folder: Path, name: str, version: str, files: dict[str, str], entry_points: str = "") -> Path:
    """A wheel of pure Python."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    inside = files | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if entry_points:
        inside[f"{info}/entry_points.txt"] = entry_points
    record = "".join(f"{file},,\n" for file in (*inside, f"{info}/RECORD"))
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in (inside | {f"{info}/RECORD": record}).items():
            archive.writestr(file, text)
    return path


def line(path: Path) -> str:
    """A lock's line for a wheel."""
    name, version = path.name.split("-")[:2]
    raw = path.read_bytes()
    digest = hashlib.sha256(raw).hexdigest()
    return f"{name.replace('_', '-')}=={version} --hash=sha256:{digest}  # {len(raw)} {path.name}\n"


def house(
    folder: Path,
    *,
    version: str = "1.0",
    vllm: dict[str, str] = VLLM,
    imports: tuple[str, ...] = ("vllm", "vllm.entrypoints.openai.api_server"),
    plugins: tuple[str, ...] = (),
    sources: tuple[Source, ...] = (),
    python: tuple[int, int] = sys.version_info[:2],
    installed_bytes: int = 1 << 20,
) -> House:
    """A set called `tiny` of two wheels, vllm and tiny-extra, of `version`."""
    wheels, locks = folder / "wheels", folder / "locks"
    made = [wheel(wheels, "tiny-extra", version, EXTRA, PLUGIN), wheel(wheels, "vllm", version, vllm)]
    locks.mkdir(parents=True, exist_ok=True)
    (locks / "tiny.lock").write_text("# tiny\n" + "".join(map(line, made)))
    found = EngineSet(
        name="tiny",
        title="two wheels",
        lock="tiny.lock",
        python=python,
        installed_bytes=installed_bytes,
        distribution="vllm",
        imports=imports,
        device="cpu",
        plugins=plugins,
        sources=sources,
    )
    return House(wheels, locks, found)
