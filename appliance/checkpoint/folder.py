"""A folder that files are fetched into: its lock, what may be written in it, sums of what is there. Touches files."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from appliance.checkpoint.faults import plain, typed
from appliance.checkpoint.sums import OWN_PREFIX
from appliance.checkpoint.threads import Report
from appliance.errors import CheckpointError
from appliance.files import HeldError, locked, open_regular

READ_BYTES = 4 << 20
"""Read and hashed at once: large enough that a disk streams, small enough for progress."""
_LOCK = f"{OWN_PREFIX}.lock"


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Make the folder and hold its lock. Raises OSError, and CheckpointError when another fetch has it."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        fd = locked(folder / _LOCK)
    except HeldError as held:
        pid = held.pid or "unknown"
        raise CheckpointError(
            f"another fetch (pid {pid}) writes to {plain(folder)}", f"wait for it, or end it: kill {pid}"
        ) from None
    try:
        yield
    finally:
        os.close(fd)


def inside(folder: Path, name: str) -> Path:
    """The path of a safe name. Raises CheckpointError when a symbolic link in the folder leads out of it."""
    path, root = folder, folder.resolve()
    for part in name.split("/"):
        path = path / part
        if path.is_symlink() and not path.resolve().is_relative_to(root):
            raise CheckpointError(
                f"{plain(path)} is a symbolic link that leads out of {plain(folder)}",
                f"remove it: rm {typed(path)}; or use another --to",
            )
    if path.is_dir():
        raise CheckpointError(
            f"{plain(path)} is a folder; a file of the checkpoint has that name", "use another --to DIR"
        )
    return path


def sha256_of(path: Path, report: Report) -> str:
    """SHA-256 of a file, in hex digits; `report` may raise. Raises OSError."""
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while piece := file.read(READ_BYTES):
            digest.update(piece)
            report(len(piece))
    return digest.hexdigest()
