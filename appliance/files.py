"""Small file-system acts that several parts need. Touches files."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import IO

from appliance.errors import AlreadyRunning, ConfigError


def write_private(path: Path, data: bytes) -> None:
    """Write `data` to `path`, 0600 from the first byte, replacing what was there at once."""
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
    fresh.replace(path)


def make_folder(path: Path, key: str, mode: int = 0o750) -> None:
    """Make a folder of ours. Raises ConfigError naming the setting when it cannot be made or written."""
    try:
        path.mkdir(mode=mode, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{key}: the folder {path} cannot be made: {error.strerror}", f"correct {key}") from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise ConfigError(f"{key}: the folder {path} cannot be written by this user", f"chown it, or correct {key}")


def lock_folder(path: Path) -> IO[str]:
    """Hold the folder for this process until the returned file is closed. Raises AlreadyRunning."""
    file = (path / "lock").open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.seek(0)
        pid = file.read().strip() or "unknown"
        file.close()
        raise AlreadyRunning(
            f"another moe-appliance (pid {pid}) runs on the folder {path}",
            f"stop it first (moe-appliance stop, or: kill {pid}), or set another state_dir",
        ) from error
    file.truncate(0)
    file.write(f"{os.getpid()}\n")
    file.flush()
    return file
