"""Small file-system acts that several parts need, and the locks of the box's folders. Touches files."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from appliance.errors import AlreadyRunning, ConfigError
from gateway.files import replace_file

FOLDER_MODE = 0o750


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
        raise ConfigError(f"{key}: the folder {path} cannot be written by this user", f"chown it, or correct {key}")


class FolderLock:
    """Holds a folder for this process until `close`. Raises AlreadyRunning, and OSError when it cannot be locked.

    What holds is the lock on the file; the pid inside is for people, so that a full disk does not matter.
    """

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


def _locked(folder: Path) -> int:
    fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        said = os.read(fd, 32).decode(errors="replace").strip()
        os.close(fd)
        raise _in_use(folder, int(said) if said.isdecimal() else None) from None
    except OSError:
        os.close(fd)
        raise
    with contextlib.suppress(OSError):  # a full disk
        os.ftruncate(fd, 0)
        os.write(fd, f"{os.getpid()}\n".encode())
    return fd


def _in_use(folder: Path, pid: int | None) -> AlreadyRunning:
    stop = "moe-appliance stop" + (f", or: kill {pid}" if pid is not None else "")
    return AlreadyRunning(
        f"another moe-appliance (pid {pid or 'unknown'}) runs on the folder {folder}",
        f"stop it first ({stop}), or set another folder",
        pid,
    )
