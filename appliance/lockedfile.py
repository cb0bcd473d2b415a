"""A text file that several processes edit: one at a time, each edit whole or not at all.

Touches the file and `<file>.lock` beside it. The lock file stays: removing it would let two in.

- A symlink is followed; its target is what is locked and replaced.
- The new text is on the disk before it takes the file's name: a process killed at any moment leaves the
  old file or the new one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from appliance.errors import ConfigError, MoeError

FILE_MODE = 0o640
_LOCK_WAIT_S = 10.0
"""Longest wait for another command's edit; an edit takes milliseconds."""


@dataclass(frozen=True, slots=True)
class LockedFile:
    """A file whose lock is held: its bytes, and how to replace them."""

    path: Path
    raw: bytes

    @property
    def text(self) -> str:
        """The bytes as text; for callers that know them to be UTF-8."""
        return self.raw.decode("utf-8")

    def replace(self, text: str) -> None:
        """Write the new text beside the file, flush it to the disk, and rename it over the file."""
        temporary = self.path.with_name(f".{self.path.name}.new")
        temporary.unlink(missing_ok=True)  # left by a command that was killed; the lock is ours
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(fd, "wb") as out:
                _give(out.fileno(), self.path if self.path.exists() else self.path.parent)
                os.fchmod(out.fileno(), FILE_MODE)
                out.write(text.encode("utf-8"))
                out.flush()
                os.fsync(out.fileno())
            os.replace(temporary, self.path)  # noqa: PTH105  # tests break it here
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _give(fd: int, like: Path) -> None:
    """Give an open file the owner and group of another, as far as we may."""
    found = like.stat()
    for uid in (found.st_uid, -1):
        with contextlib.suppress(PermissionError):
            os.fchown(fd, uid, found.st_gid)
            return


def read_regular(path: Path) -> bytes | None:
    """The bytes of a file, None when there is none. Raises OSError, and ConfigError for what is no file: reading a
    pipe or a device may never end."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found.st_mode):
        raise ConfigError(f"{path} is not a file", f"see: ls -lL {path}; remove it, or name another file")
    return path.read_bytes()


@contextlib.contextmanager
def locked(path: Path, sudo: str) -> Iterator[LockedFile]:
    """Hold the lock of a file and yield what it contains (nothing when there is none).

    `sudo` is the command that a remedy prefixes with sudo. Raises MoeError.
    """
    with file_errors(path, sudo, "change"):
        read_regular(path)  # a link to a device must not get a lock beside the device
        target = path.resolve()
        lock = target.with_name(target.name + ".lock")
        fresh = not lock.exists()
        fd = os.open(lock, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, FILE_MODE)
        try:
            if fresh:
                _give(fd, target.parent)
            _flock(fd, target)
            yield LockedFile(target, read_regular(target) or b"")
        finally:
            os.close(fd)


def _flock(fd: int, target: Path) -> None:
    end_s = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end_s:
                raise MoeError(
                    f"another command has been editing {target} for {_LOCK_WAIT_S:.0f} s",
                    f"fuser -v {target}.lock   shows which; end it and try again",
                ) from None
            time.sleep(0.02)
        else:
            return


@contextlib.contextmanager
def file_errors(path: Path, sudo: str, verb: str) -> Iterator[None]:
    """Turn errors of the file system into ones with a remedy; `verb` is read or change."""
    try:
        yield
    except FileNotFoundError as exc:
        raise MoeError(
            f"{path} cannot be written: the folder {path.parent} does not exist",
            f"sudo install -d -m 0750 {path.parent}",
        ) from exc
    except PermissionError as exc:
        raise MoeError(
            f"you may not {verb} {path}: {(exc.strerror or str(exc)).lower()}",
            f"sudo {sudo} ...   or run it as the owner of {path.parent}",
        ) from exc
    except (OSError, RuntimeError) as exc:  # RuntimeError: a loop of symlinks
        raise MoeError(f"cannot {verb} {path}: {exc}", f"ls -ld {path} {path.parent}") from exc
