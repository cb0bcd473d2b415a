"""Where the environments of a box are, which is the current one of each engine, and which are in use. Touches
`<state_dir>/engines`.

    engines/<name>              link to the current one of that engine, replaced at once
    engines/<name>-<identity>   venv/, manifest.json (last, so that one without it is not whole), verified.json, cache/
    engines/<kind>-own/cache    cache/ of an engine that runs in a Python of the operator's
    engines/wheels              what is downloaded; gone after the environment is whole
    engines/lock                held by the one who installs

Rules:
- An environment never changes once it is whole. cache/ is what the engine compiled for itself, and goes with it.
- Who runs its Python shares the lock of `venv/.used` for as long (gateway.environment.hold_environment does, asked
  inside it).
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from appliance.engine.environments import manifest
from appliance.engine.environments.manifest import Manifest
from gateway.environment import MARK

ENGINES = "engines"
WHEELS = "wheels"
CACHE = "cache"
LOCK = "lock"
_IDENTITY = re.compile("[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class Environment:
    """An engine's environment that is whole. `name`: the engine's, as in `sets.SETS`; `folder`: its own, whose name
    stays valid when the engine has a newer one."""

    name: str
    folder: Path
    manifest: Manifest

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "venv" / "bin" / "python"

    @property
    def cache(self) -> Path:
        """Where what the engine compiles for itself is kept: it goes when the environment goes."""
        return self.folder / CACHE

    @property
    def id(self) -> str:
        """`vllm-0123456789ab`: the folder's name; `find` takes it."""
        return self.folder.name


def find(state_dir: Path, name: str) -> Environment | None:
    """The current environment of an engine (`vllm`), or a certain one (`vllm-0123456789ab`); None when it is not
    there or not whole."""
    if not name or "/" in name or "\0" in name or name.startswith("."):
        return None
    try:
        folder = (state_dir / ENGINES / name).resolve(strict=True)
    except OSError:
        return None
    found = manifest.load(folder)
    if found is None or folder.name != f"{found.set}-{found.identity}":
        return None
    return Environment(found.set, folder, found)


def installed(state_dir: Path) -> list[Environment]:
    """Every one that is whole, by name, the oldest first."""
    names = [entry.name for entry in _entries(state_dir) if not entry.is_symlink()]
    there = [one for name in names if (one := find(state_dir, name)) is not None]
    return sorted(there, key=lambda one: (one.name, one.manifest.installed_at_s))


def newer(state_dir: Path, id_: str) -> Environment | None:
    """The last installation of the engine that the environment `id_` is of, where it is another one; `id_` may be gone.
    None = there is none, or `id_` is no id."""
    name, _, digits = id_.rpartition("-")
    current = find(state_dir, name) if _IDENTITY.fullmatch(digits) else None
    return None if current is None or current.id == id_ else current


def make_current(environment: Environment) -> Environment | None:
    """Let the engine's name mean this one, at once; what it meant before, None = nothing. Raises OSError."""
    engines = environment.folder.parent
    before = find(engines.parent, environment.name)
    fresh = engines / f".{environment.name}.new"
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(environment.folder.name)
    fresh.replace(engines / environment.name)
    return before


def remove_old(state_dir: Path, name: str, spared: frozenset[str]) -> list[str]:
    """Take away an engine's environments that are neither current, nor `spared` by id, nor in use, and those that are
    not whole; their ids. Call it with the lock held."""
    gone = []
    current = find(state_dir, name)
    kept = spared | ({current.id} if current is not None else set())
    for entry in _entries(state_dir):
        of, _, digits = entry.name.rpartition("-")
        ours = of == name and _IDENTITY.fullmatch(digits) is not None and not entry.is_symlink()
        if ours and entry.name not in kept and not in_use(entry):
            remove(entry)
            gone.append(entry.name)
    return gone


def in_use(folder: Path) -> bool:
    """Whether a process holds the environment's lock."""
    try:
        fd = os.open(folder / "venv" / MARK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def remove(folder: Path) -> None:
    """Take one away: first its manifest, so that half of one is never taken for whole. Raises OSError."""
    (folder / manifest.MANIFEST).unlink(missing_ok=True)
    with suppress(FileNotFoundError):
        shutil.rmtree(folder)


def size_bytes(folder: Path) -> int:
    """What the folder takes on the disk."""
    total = 0
    for parent, _, files in os.walk(folder):
        for file in files:
            with suppress(OSError):
                total += os.lstat(os.path.join(parent, file)).st_blocks * 512  # noqa: PTH118  # of 60,000 files
    return total


def _entries(state_dir: Path) -> list[Path]:
    try:
        return sorted((state_dir / ENGINES).iterdir())
    except OSError:
        return []
