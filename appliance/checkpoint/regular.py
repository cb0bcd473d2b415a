"""Opens files that must be regular ones. Touches these files.

A pipe in a folder of strangers would keep a reader for ever, and a device may do anything. Links are followed: a hub's
download cache has nothing else.
"""

from __future__ import annotations

import errno
import os
import stat
from io import FileIO
from pathlib import Path


class NotRegularError(OSError):
    """A pipe, a device, a socket or a folder where a file should be."""


def open_regular(path: Path) -> FileIO:
    """The file for reading, not buffered. Raises NotRegularError, OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise NotRegularError(errno.EINVAL, "not a regular file", str(path))
    return FileIO(fd, "rb")


def read_regular(path: Path, limit_bytes: int) -> bytes:
    """The whole file, or its first `limit_bytes` and one more byte when it is longer. Raises as `open_regular`."""
    with open_regular(path) as file:
        pieces, left = [], limit_bytes + 1
        while left > 0 and (piece := file.read(min(left, 1 << 20))):
            pieces.append(piece)
            left -= len(piece)
    return b"".join(pieces)
