"""Small files in the state folder that daemon and command line share. Touches them.

The command line may run as root and the daemon as its own user: what root writes there goes to the folder's owner,
who may have put a link or a pipe in its place: no other file is given away through it, and nobody waits for it.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from gateway.files import replace_file


def keep(path: Path, data: bytes, mode: int) -> None:
    """Replace the file at once. Raises OSError, also when its folder does not exist."""
    replace_file(path, data, mode)
    if os.geteuid() == 0:
        owner = path.parent.stat()
        os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)


def read(path: Path) -> bytes | None:
    """Its bytes, None when there is none. Raises OSError, also for what is no file: a pipe would never answer."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        with open(fd, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(fd)
