"""Keeps a copy of the last good seat file, so that a gateway that starts beside a broken one turns nobody away.

Touches one file in the state folder, 0640. It holds digests, like the original.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from gateway.errors import ConfigError
from gateway.files import replace_file
from gateway.keyfile import parse_seats
from gateway.seats import SeatBook


def keep(seats_file: Path, copy: Path) -> None:
    """Copy the seat file as it is now. Without room or permission the former copy stays."""
    with contextlib.suppress(OSError):
        copy.parent.mkdir(parents=True, exist_ok=True)
        replace_file(copy, seats_file.read_bytes(), 0o640)


def read(copy: Path) -> SeatBook:
    """The seats of the copy; nobody when there is none or it cannot be used."""
    try:
        return parse_seats(copy, copy.read_bytes())
    except (OSError, ConfigError):
        return SeatBook({}, file_missing=True)
