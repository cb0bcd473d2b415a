"""A commented seats.toml and who it lets in: what the tests of keyedit have in common."""

from __future__ import annotations

import datetime
from datetime import UTC
from pathlib import Path

from gateway.keyfile import load_seats
from gateway.keys import digest_of
from gateway.seats import Seat

NOW = datetime.datetime(2026, 11, 29, 12, tzinfo=UTC)

COMMENTED = f"""\
# seats of the team
# second line

# Ana leads
[seats.ana]   # until spring
max_streams =  3 # agents
digest = "{digest_of("ana")}"   # made by hand
# inside ana

# Ben is from ops
[seats.ben]
digest = '{digest_of("ben")}'

# the end
"""


def who(path: Path, key: str, at: datetime.datetime = NOW) -> str | int:
    """The seat that a key belongs to, or the status that it is refused with."""
    found = load_seats(path).authenticate([(b"x-api-key", key.encode())], at.timestamp())
    return found.name if isinstance(found, Seat) else found.status
