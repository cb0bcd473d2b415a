"""Small file-system acts that several parts need, and the locks of the box's folders. Touches files."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from io import BufferedReader, FileIO
from pathlib import Path

from appliance.errors import AlreadyRunning, ConfigError
from gateway.files import replace_file

FOLDER_MODE = 0o750


class NotRegularError(OSError):
    """A pipe, a device, a socket or a folder where a file should be."""


def open_regular(path: Path) -> BufferedReader:
    """The file for reading; links are followed. A pipe would keep its reader for ever, and a device may do anything.

    Raises NotRegularError, OSError.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise NotRegularError(errno.EINVAL, "not a regular file", str(path))
    return BufferedReader(FileIO(fd, "rb"))


def read_regular(path: Path, limit_bytes: int) -> bytes:
    """The whole file, or its first `limit_bytes` and one more byte when it is longer. Raises as `open_regular`."""
    with open_regular(path) as file:
        return file.read(limit_bytes + 1)


def write_private(path: Path, data: bytes) -> None:
    """Write `data` to `path`, 0600 from the first byte, replacing what was there at once."""
    replace_file(path, data, 0o600)


@contextlib.contextmanager
def usable(folder: Path, key: str) -> Iterator[None]:
    """Turn an OSError into a ConfigError that names the setting and its folder."""
    try:
        yield
    except OSError as error:
        message = f"{key}: the folder {folder} cannot be used: {error.strerror or error}"
        raise ConfigError(message, f"df -h {folder}; ls -ld {folder}   shows why; or set another {key}") from error


def make_folder(path: Path, key: str, mode: int = FOLDER_MODE) -> None:
    """Make a folder of ours. Raises ConfigError naming the setting when it cannot be made or written."""
    with usable(path, key):
        path.mkdir(mode=mode, parents=True, exist_ok=True)
    if not os.access(path, os.W_OK | os.X_OK):
        if os.statvfs(path).f_flag & os.ST_RDONLY:
            raise ConfigError(
                f"{key}: {path} is on a file system that is mounted read-only",
                f"mount it to be written, or correct {key}",
            )
        raise ConfigError(f"{key}: the folder {path} cannot be written by this user", f"chown it, or correct {key}")


class HeldError(Exception):
    """A lock that another process holds; its pid, None when it does not say."""

    def __init__(self, pid: int | None) -> None:
        super().__init__(pid)
        self.pid = pid


class FolderLock:
    """Holds a folder for this process until `close`. Raises AlreadyRunning, and OSError when it cannot be locked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._fd = _locked(folder)

    def renew(self) -> bool:
        """Lock the folder anew when somebody removed it or the lock in it, and say whether that was so."""
        mine = os.fstat(self._fd)
        with contextlib.suppress(FileNotFoundError):
            there = (self.folder / "lock").stat()
            if (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino):
                return False
        self.folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        fresh = _locked(self.folder)
        os.close(self._fd)
        self._fd = fresh
        return True

    def close(self) -> None:
        """Let others have the folder."""
        os.close(self._fd)


def locked(path: Path) -> int:
    """Make the file if need be and lock it; the lock lasts as long as the descriptor. Raises HeldError, OSError.

    What holds is the lock on the file; the pid inside is for people, so that a full disk does not matter.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o640)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        said = os.read(fd, 32).decode(errors="replace").strip()
        os.close(fd)
        raise HeldError(int(said) if said.isdecimal() else None) from None
    except OSError:
        os.close(fd)
        raise
    with contextlib.suppress(OSError):  # a full disk
        os.ftruncate(fd, 0)
        os.write(fd, f"{os.getpid()}\n".encode())
    return fd


def _locked(folder: Path) -> int:
    try:
        return locked(folder / "lock")
    except HeldError as held:
        raise _in_use(folder, held.pid) from None


def _in_use(folder: Path, pid: int | None) -> AlreadyRunning:
    stop = "moe-appliance stop" + (f", or: kill {pid}" if pid is not None else "")
    return AlreadyRunning(
        f"another moe-appliance (pid {pid or 'unknown'}) runs on the folder {folder}",
        f"stop it first ({stop}), or set another folder",
        pid,
    )
