"""Brings the wheels of a lock onto this machine; goes on where an earlier run was ended. Touches a folder; runs pip.

Rules:
- A wheel lies under its name in the folder only when its hash was right: it gets there by a rename.
- pip keeps nothing of what it did not finish, so it is asked for a few wheels at a time; a kill costs those alone.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from appliance.checkpoint.faults import plain, typed
from appliance.engine.environments.lock import Wheel
from appliance.engine.environments.pip import Pip
from appliance.errors import MoeError

BATCH_BYTES = 16 << 20
BATCH_WHEELS = 24
_NAMED = 12
_CHUNK_BYTES = 1 << 20
_PART = ".part"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a step is: `step` is a word for people; `done` and `total` of bytes and of packages."""

    step: str
    done_bytes: int
    total_bytes: int
    done: int
    total: int


OnProgress: TypeAlias = Callable[[Progress], None]


def present(folder: Path, wheels: Iterable[Wheel], on_progress: OnProgress) -> frozenset[str]:
    """The files of `wheels` that are whole in `folder`; those that are not are removed there. Raises OSError."""
    there = [wheel for wheel in wheels if (folder / wheel.file).is_file()]
    total, done, whole = sum(wheel.size_bytes for wheel in there), 0, set[str]()
    for number, wheel in enumerate(there):
        on_progress(Progress("checking wheels", done, total, number, len(there)))
        if _sha256(folder / wheel.file) == wheel.sha256:
            whole.add(wheel.file)
        else:
            (folder / wheel.file).unlink()
        done += wheel.size_bytes
    return frozenset(whole)


def supplied(folder: Path, wheels: Sequence[Wheel], lock: Path, on_progress: OnProgress) -> None:
    """Check that an operator's folder holds every wheel, whole. Raises MoeError naming what is not, OSError."""
    if not folder.is_dir():
        raise MoeError(f"--offline {plain(folder)}: there is no such folder", "give the folder that holds the wheels")
    missing, wrong, done = list[str](), list[str](), 0
    total = sum(wheel.size_bytes for wheel in wheels)
    for number, wheel in enumerate(wheels):
        on_progress(Progress("checking wheels", done, total, number, len(wheels)))
        path = folder / wheel.file
        if not path.is_file():
            missing.append(wheel.file)
        elif _sha256(path) != wheel.sha256:
            wrong.append(wheel.file)
        done += wheel.size_bytes
    said = [_counted(missing, "is not there", "are not there"), _counted(wrong, "is another file", "are other files")]
    if missing or wrong:
        raise MoeError(
            f"--offline {plain(folder)}: {'; '.join(one for one in said if one)}",
            "where there is a network and the same Python: pip download --no-deps --require-hashes -r "
            f"{typed(lock)} --dest {typed(folder)}",
        )


def fetch(folder: Path, wheels: Sequence[Wheel], pip: Pip, on_progress: OnProgress) -> None:
    """Download what is not whole in `folder`. Raises MoeError with pip's reason, OSError."""
    part = folder / _PART
    whole = present(folder, wheels, on_progress)
    total_bytes = sum(wheel.size_bytes for wheel in wheels)
    done_bytes = sum(wheel.size_bytes for wheel in wheels if wheel.file in whole)
    done = len(whole)
    for batch in batches([wheel for wheel in wheels if wheel.file not in whole]):
        batch_bytes = sum(wheel.size_bytes for wheel in batch)
        with suppress(FileNotFoundError):
            shutil.rmtree(part)

        def tick(before: int = done_bytes, most: int = batch_bytes, number: int = done) -> None:
            came = min(most, _size(part))
            on_progress(Progress("fetching wheels", before + came, total_bytes, number, len(wheels)))

        tick()
        failed = pip.download("".join(wheel.requirement for wheel in batch), part, tick)
        if failed:
            raise MoeError(
                f"pip could not fetch {_counted([wheel.name for wheel in batch])}: {plain(failed)}",
                "mend the network or pip's configuration (pip config list) and run the same command again: it goes on "
                "with what is there; without a network: --offline DIR",
            )
        for wheel in batch:
            _place(part / "got" / wheel.file, folder / wheel.file, wheel)
        done_bytes, done = done_bytes + batch_bytes, done + len(batch)
    with suppress(FileNotFoundError):
        shutil.rmtree(part)


def batches(wheels: Iterable[Wheel]) -> list[list[Wheel]]:
    """The wheels in their order, cut so that little is lost when one batch is: 24 of them and 16 MiB, or a single one
    that is larger."""
    cut: list[list[Wheel]] = []
    room = 0
    for wheel in wheels:
        if not cut or len(cut[-1]) == BATCH_WHEELS or wheel.size_bytes > room:
            cut.append([])
            room = BATCH_BYTES
        cut[-1].append(wheel)
        room -= wheel.size_bytes
    return cut


def _place(got: Path, place: Path, wheel: Wheel) -> None:
    if not got.is_file() or _sha256(got) != wheel.sha256:
        raise MoeError(
            f"pip fetched {wheel.name}, and {wheel.file} of the lock is not among what came",
            "let pip's indexes offer that file (pip config list), or supply it: --offline DIR",
        )
    got.replace(place)


def _counted(names: Sequence[str], one: str = "", many: str = "") -> str:
    if not names:
        return ""
    said = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
    return f"{said} {one if len(names) == 1 else many}".rstrip()


def _size(folder: Path) -> int:
    total = 0
    for parent, _, files in os.walk(folder):
        for file in files:
            with suppress(OSError):  # pip moves and removes files meanwhile, folders too: rglob would raise
                total += (Path(parent) / file).stat().st_size
    return total


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
