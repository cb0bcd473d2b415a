"""Writes an agent's settings file, whole or not at all. Touches that file, its folder and a copy beside it.

Rules:
- Mode 0600 from the first byte: such files hold keys. So does the copy.
- A copy takes a name that nothing has, not even a link: what was there before our first change stays for ever.
- A symlink is followed: people keep these files elsewhere.
- Values are shown unless they are, or were, secret.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from appliance.errors import MoeError
from appliance.files import write_private
from appliance.lockedfile import read_regular
from gateway.agents.edit import Edited, edit
from gateway.agents.merge import ABSENT, Change, leaves
from gateway.agents.settings import SettingsFile
from gateway.agents.shown import old_value
from gateway.toml_lines import dotted

_COPY = ".bak"


@dataclass(frozen=True, slots=True)
class Written:
    """What was done to `path`; `backup` holds what was there, None when there was nothing or nothing changed."""

    path: Path
    changes: tuple[Change, ...]
    backup: Path | None
    key: str | None

    def lines(self) -> list[str]:
        """The same for people."""
        if not self.changes:
            return [f"{self.path} has these settings already; nothing was changed."]
        kept = "" if self.backup is None else f"; what was there: {self.backup}"
        if self.backup is not None and self.backup.suffix != _COPY:
            kept += " (earlier copies stay, too)"
        return [f"{self.path} is written{kept}", *(f"    {line}" for line in self._settings())]

    def _settings(self) -> Iterator[str]:
        for change in self.changes:
            for path, value in leaves(change.path, change.new):
                shown = "(the key)" if value == self.key else json.dumps(value, ensure_ascii=False)
                old = (
                    "" if change.old is ABSENT or change.old is None else f"   (was {old_value(path[-1], change.old)})"
                )
                yield f"{dotted(path)} = {shown}{old}"

    def json(self) -> dict[str, Any]:
        """The same for programs."""
        settings = [dotted(path) for change in self.changes for path, _ in leaves(change.path, change.new)]
        return {"changed": settings, "backup": None if self.backup is None else str(self.backup)}


def check(file: SettingsFile, path: Path, by_hand: str) -> Edited:
    """Merge without writing. Raises MoeError when the file cannot be read or changed."""
    try:
        raw = read_regular(path) or b""
    except OSError as error:
        raise MoeError(f"cannot read {path}: {error.strerror or error}", f"ls -ld {path} {path.parent}") from error
    return edit(str(path), raw, file.format, file.values, file.kept, by_hand)


def write(file: SettingsFile, path: Path, by_hand: str, key: str | None) -> Written:
    """Merge the settings into the file. `key` is what must not be shown. Raises MoeError, and then it is as it was."""
    edited = check(file, path, by_hand)
    try:
        target = path.resolve()
        _refuse_others_folder(target)
        there = target.exists()
        if not edited.changes:
            if key is not None and target.stat().st_mode & 0o077:
                target.chmod(0o600)
            return Written(path, (), None, key)
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        backup = _copied(target) if there else None
        write_private(target, edited.raw)
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of symlinks
        said = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise MoeError(f"cannot write {path}: {said}", f"ls -ld {path} {path.parent}; df -h {path.parent}") from error
    return Written(path, edited.changes, backup, key)


def _copied(path: Path) -> Path:
    """Copy the file to the first free of `.bak`, `.bak.1`, ... Raises OSError, and then leaves nothing."""
    data = path.read_bytes()
    for number in count():
        copy = path.with_name(f"{path.name}{_COPY}" + (f".{number}" if number else ""))
        try:
            fd = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            continue
        break
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        with contextlib.suppress(OSError):
            copy.unlink()
        raise
    return copy


def _refuse_others_folder(path: Path) -> None:
    """Root, through sudo, must not leave files that their owner cannot read in another's folder."""
    folder = next(parent for parent in path.parents if parent.exists())
    if os.geteuid() == 0 and (path if path.exists() else folder).stat().st_uid != 0:
        owner = (path if path.exists() else folder).stat().st_uid
        raise MoeError(
            f"{path} belongs to user {owner}, who could not read what root writes there",
            f"run it as that user: sudo -u '#{owner}' moe-appliance connect ... --url URL --write",
        )
