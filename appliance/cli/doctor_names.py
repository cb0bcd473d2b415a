"""What a support bundle must not tell of this box: secrets, and the names of seats, admins and whoever acted.

Touches the box's files, and its gateway's socket or ledger for who acted. What cannot be read names nobody.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from appliance import keyedit
from appliance.cli.box import Box
from appliance.cli.events import kept
from appliance.errors import MoeError
from appliance.files import open_regular
from appliance.redact import Redactor
from gateway.keyfile import FILE_MAX_BYTES
from gateway.ledger import reading
from gateway.ledger.writing import NAME
from gateway.overlayfile import NOBODY, kept_in

HEAD_BYTES = 64 * 1024
WEEK_S = 7 * 86400.0
_TABLE = re.compile(rb"(?m)^\s*\[\s*(seats|admins)\s*\.\s*[\"']?([A-Za-z0-9._-]+)")
_NO_PERSON = frozenset({"", "root", "moe-appliance", "nobody", NOBODY})


def head(path: Path) -> str:
    """The beginning of a file. Raises OSError; /proc files have no length and are read all the same."""
    with open_regular(path) as file:
        return file.read(HEAD_BYTES).decode("utf-8", "replace")


def redactor_of(box: Box, *, engine_log: bool = False) -> Redactor:
    """What this box must not tell."""
    names = _tables(box)
    seats = names["seats"] | _ledgers_seats(box)
    return Redactor(_secrets(box), seats, names["admins"], _persons(box), last_words=engine_log)


def _tables(box: Box) -> dict[str, set[str]]:
    """The names in both files and in the copy of the last good one, whether or not they can be read as TOML."""
    found: dict[str, set[str]] = {"seats": set(), "admins": set()}
    try:
        files = [box.seats_file, box.admins_file, box.paths.state_dir / "seats.last-good.toml"]
    except MoeError:
        return found
    found["seats"] |= {row.name for row in _rows(lambda: keyedit.list_seats(box.seats_file))}
    found["admins"] |= {row.name for row in _rows(lambda: keyedit.list_admins(box.admins_file))}
    for file in files:
        try:
            with open_regular(file) as opened:
                raw = opened.read(FILE_MAX_BYTES)
        except OSError:
            continue
        for kind, name in _TABLE.findall(raw):
            found[kind.decode()].add(name.decode())
    return found


def _ledgers_seats(box: Box) -> set[str]:
    """Also those that are gone from the file; their names stand in what happened."""
    try:
        return {row.seat for _, row in reading.months(box.paths.state_dir / NAME)}
    except (MoeError, OSError):
        return set()


def _persons(box: Box) -> set[str]:
    """Who acted: users of this machine, by what is kept of them; and the one who asks."""
    found = {os.environ.get(name, "") for name in ("SUDO_USER", "USER", "LOGNAME")}
    try:
        if (overlay := kept_in(box.paths.state_dir)) is not None:
            found |= set(overlay.off.values()) | ({overlay.changed.by} if overlay.changed is not None else set())
        found |= {event.who for event in kept(box, time.time() - WEEK_S)}
    except (MoeError, OSError, ValueError):
        pass
    return found - _NO_PERSON


def _rows(look: Callable[[], tuple[keyedit.Listed, ...]]) -> tuple[keyedit.Listed, ...]:
    try:
        return look()
    except (MoeError, OSError):
        return ()


def _secrets(box: Box) -> Iterator[str]:
    """The contents of key files, and of the engine's environment."""
    try:
        config, paths = box.config, box.paths
    except MoeError:
        return
    yield from dict(getattr(config.engine, "env", None) or {}).values()
    files = [paths.admins_file.with_name("first-admin-token"), *sorted(paths.runtime_dir.glob("*.key"))]
    if (key_file := getattr(config.engine, "key_file", None)) is not None:
        files.append(key_file)
    for file in files:
        try:
            yield head(file).strip()
        except OSError:
            continue
    try:
        with open_regular(paths.state_dir / "cookie.secret") as secret:
            yield secret.read(HEAD_BYTES).decode("latin-1")
    except OSError:
        return
