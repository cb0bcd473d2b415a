"""Keeps headers that were fetched, by the hash of their content. Touches the cache folder.

Two kinds of files, both replaced at once: HASH.header, the JSON of a header, and HASH.where, which says for one place
(a URL without credentials and query) the ETag or the hub's hash that its file had, its size, and which header it has.

Rules:
- What is read back is hashed again: a damaged file counts as absent.
- A folder that cannot be used, or that others may write to, means that nothing is kept. It is never an error.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import orjson

from appliance.files import write_private

FOLDER_MODE = 0o700


@dataclass(frozen=True, slots=True)
class Kept:
    """A header of a file that had `size_bytes` and, when it was fetched, this `validator`."""

    validator: str
    size_bytes: int
    data: bytes


class HeaderCache:
    """Headers in `folder`, which is made when it is missing; None keeps nothing."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder if folder is not None and _is_ours(folder) else None

    def find(self, place: str) -> Kept | None:
        """What was kept for a place, None when that is nothing or damaged. Up to its caller: is the validator valid?"""
        if self._folder is None:
            return None
        try:
            where = orjson.loads(self._where(place).read_bytes())
            header = where["header"]
            data = (self._folder / f"{header}.header").read_bytes()
            kept = Kept(where["validator"], where["size_bytes"], data)
            sound = where["place"] == place and sha256(data).hexdigest() == header
        except (OSError, ValueError, TypeError, KeyError):
            return None
        return kept if sound and isinstance(kept.validator, str) and type(kept.size_bytes) is int else None

    def keep(self, place: str, kept: Kept) -> None:
        """Keep a header for a place in place of what was kept there; does nothing when the folder cannot be written."""
        if self._folder is None:
            return
        header = sha256(kept.data).hexdigest()
        where = {"place": place, "validator": kept.validator, "size_bytes": kept.size_bytes, "header": header}
        with contextlib.suppress(OSError):
            write_private(self._folder / f"{header}.header", kept.data)
            write_private(self._where(place), orjson.dumps(where))

    def _where(self, place: str) -> Path:
        assert self._folder is not None
        return self._folder / f"{sha256(place.encode()).hexdigest()}.where"


def cache_folder(environ: Mapping[str, str]) -> Path | None:
    """$CACHE_DIRECTORY/headers (set by systemd; the first of several), else $XDG_CACHE_HOME/moe-appliance/headers,
    else the same in ~/.cache; None without a home."""
    given = environ.get("CACHE_DIRECTORY", "").partition(":")[0]
    if given:
        return Path(given) / "headers"
    base = environ.get("XDG_CACHE_HOME", "")
    home = environ.get("HOME", "")
    if not base.startswith("/"):
        base = f"{home}/.cache" if home.startswith("/") else ""
    return Path(base) / "moe-appliance" / "headers" if base else None


def _is_ours(folder: Path) -> bool:
    try:
        folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError:
        return False
    return status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o022
