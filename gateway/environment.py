"""Marks the virtual environment of this process as used, so that the package does not remove it. Touches one lock.

The package makes a folder for each installed version, with an empty file `.used` in it, and removes those that nobody
holds: a process imports some modules hours after its start. What the launcher starts is marked by it; a gateway that
takes over after an upgrade is started by the daemon, and marks itself.
"""

from __future__ import annotations

import fcntl
import os
import sys

MARK = ".used"


def hold_environment(prefix: str = sys.prefix) -> int | None:
    """Share the lock of this environment until the process ends; the descriptor. None when it has no mark: then nobody
    removes it."""
    try:
        fd = os.open(os.path.join(prefix, MARK), os.O_RDONLY | os.O_CLOEXEC)  # noqa: PTH118 - before anything heavy
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return None
    return fd
