"""Reads a small file, and replaces one at once. Touches that file and one beside it."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path


def read_small(path: Path, max_bytes: int) -> bytes:
    """All of `path`. Raises OSError, also for a pipe or a device, which may keep its reader for ever, and ValueError
    when it is longer than `max_bytes`: it is none of ours then."""
    with open(path, "rb", opener=_at_once) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        raw = file.read(max_bytes + 1)
    if len(raw) > max_bytes:
        raise ValueError(f"longer than {max_bytes} bytes")
    return raw


def _at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


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
