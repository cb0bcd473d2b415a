"""Small files in the state folder that daemon and command line share. Touches them.

The command line may run as root and the daemon as its own user: what root writes there goes to the folder's owner.
"""

from __future__ import annotations

import os
from pathlib import Path

from gateway.files import replace_file


def keep(path: Path, data: bytes, mode: int) -> None:
    """Replace the file at once. Raises OSError, also when its folder does not exist."""
    replace_file(path, data, mode)
    if os.geteuid() == 0:
        owner = path.parent.stat()
        os.chown(path, owner.st_uid, owner.st_gid)


def read(path: Path) -> bytes | None:
    """Its bytes, None when there is none. Raises OSError."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
