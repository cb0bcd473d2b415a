"""The folder of the engine's Unix socket: ours alone, and empty of what a former engine left. Touches files.

Rule: everything is done through the folder's own descriptor, so that a link that is put in its place meanwhile leads
nowhere.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path

from gateway.state import UNIX
from gateway.unixserver import PATH_MAX_BYTES

FOLDER_MODE = 0o700


def path_of(url: str) -> Path | None:
    """The socket's path of an engine's URL; None = it is served over TCP."""
    return Path(url.removeprefix(UNIX)) if url.startswith(UNIX) else None


def prepare(path: Path) -> None:
    """Make the folder 0700 and remove the socket. Raises OSError: the folder is a link or somebody else's, or the path
    is too long for a socket."""
    if len(os.fsencode(path)) > PATH_MAX_BYTES:
        why = f"the path of a socket has {PATH_MAX_BYTES} bytes at most; set a shorter runtime_dir"
        raise OSError(errno.ENAMETOOLONG, why, str(path))
    path.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        there = os.fstat(fd)
        if there.st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "the folder of the engine's socket is somebody else's", str(path.parent))
        if stat.S_IMODE(there.st_mode) != FOLDER_MODE:
            os.fchmod(fd, FOLDER_MODE)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path.name, dir_fd=fd)
    finally:
        os.close(fd)


def remove(path: Path) -> None:
    """Remove the socket of an engine that has ended; vLLM leaves it. Raises nothing."""
    with contextlib.suppress(OSError):
        path.unlink()
