"""Reads a small file, and replaces one at once. Touches that file and one beside it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def read_small(path: Path, max_bytes: int) -> bytes:
    """All of `path`. Raises OSError, and ValueError when it is longer than `max_bytes`: it is none of ours then."""
    with path.open("rb") as file:
        raw = file.read(max_bytes + 1)
    if len(raw) > max_bytes:
        raise ValueError(f"longer than {max_bytes} bytes")
    return raw


def replace_file(path: Path, data: bytes, mode: int) -> None:
    """Write `data` to `path`: whoever looks sees the old file or the new one, with `mode` from its first byte.

    Raises OSError, and then leaves nothing beside it.
    """
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(data)
        fresh.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise
