"""Small files in the state folder that daemon and command line share. Touches them.

The command line may run as root and the daemon as its own user: what root writes there goes to the folder's owner,
who may have put a link or a pipe in its place: no other file is given away through it, and nobody waits for it.
"""

from __future__ import annotations

import os
from pathlib import Path

from appliance.files import open_regular
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
        with open_regular(path) as file:
            return file.read()
    except FileNotFoundError:
        return None
