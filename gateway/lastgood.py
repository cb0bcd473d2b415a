"""Keeps a copy of the last good seat file, so that a gateway that starts beside a broken one turns nobody away.

Touches one file in the state folder, 0640. It holds digests, like the original.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from gateway.errors import ConfigError
from gateway.keyfile import parse_seats
from gateway.seats import SeatBook


def keep(seats_file: Path, copy: Path) -> None:
    """Copy the seat file as it is now. Without room or permission the former copy stays."""
    fresh = copy.with_name(copy.name + ".new")
    with contextlib.suppress(OSError):
        raw = seats_file.read_bytes()
        copy.parent.mkdir(parents=True, exist_ok=True)
        fresh.unlink(missing_ok=True)
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640), "wb") as file:
            file.write(raw)
        fresh.replace(copy)


def read(copy: Path) -> SeatBook:
    """The seats of the copy; nobody when there is none or it cannot be used."""
    try:
        return parse_seats(copy, copy.read_bytes())
    except (OSError, ConfigError):
        return SeatBook({}, file_missing=True)
