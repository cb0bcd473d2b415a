"""Keeps the operator's overlay in one small file, so that it outlives gateway and box. Touches that file and its copy.

Rules:
- A change is on disk, power loss or not, before anything acts on it. What cannot be written is not done.
- A file that cannot be used is kept aside. Its copy counts then, and when the file alone is gone; without one the box
  is drained: a seat that was off must not come back by itself. A finding says so for as long as the file lies aside.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from gateway.errors import MoeError
from gateway.files import replace_file
from gateway.overlay import Changed, Mode, Overlay
from gateway.state import Finding, Severity

FILE_MAX_BYTES = 1024 * 1024
"""Ten thousand seats that are off."""
NOBODY = "the box itself"
"""Who drained a box that cannot know what was set."""


@dataclass(slots=True)
class OverlayFile:
    """One per gateway; `value` is what counts now. `unread`: why the file that was there at the start was not used."""

    path: Path
    value: Overlay = field(default_factory=Overlay)
    unread: str = ""

    @classmethod
    def load(cls, state_dir: Path) -> OverlayFile:
        """The overlay of a state folder; the default one when there is neither file nor copy. Raises nothing."""
        file = cls(state_dir / "overlay.json")
        try:
            file.value = _overlay(_bytes(file.path))
        except FileNotFoundError:
            if file.copy.exists():
                file._instead("it is gone")
        except OSError as error:
            file._instead(error.strerror or str(error))
        except ValueError as error:
            file._instead(f"it holds no overlay ({_first_line(error)})")
        return file

    @property
    def aside(self) -> Path:
        """Where a file that cannot be used is kept; the latest one."""
        return self.path.with_name(self.path.name + ".broken")

    @property
    def copy(self) -> Path:
        """The same once more."""
        return self.path.with_name("overlay.copy.json")

    def save(self, value: Overlay) -> None:
        """Keep `value`. Raises MoeError, and then the former one stays."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            _write(self.path, value)
        except OSError as error:
            why = f"{self.path} cannot be written: {error.strerror or error}"
            raise MoeError(f"nothing was changed: {why}", f"df -h {self.path.parent}") from error
        self.value, self.unread = value, ""
        self._write_copy()

    def findings(self) -> tuple[Finding, ...]:
        """What is wrong with the file. Looks at the disk."""
        there = self.aside.exists()
        if not (there or self.unread):
            return ()
        drained = self.value.changed is not None and self.value.changed.by == NOBODY
        counts = "the box is drained until somebody resumes it" if drained else "what is set now counts"
        look = f"cat {self.aside}" if there else f"ls -l {self.path}"
        then = "moe-appliance resume" if drained else f"rm {self.aside}"
        return (
            Finding(
                id="overlay.file_broken",
                severity=Severity.FAIL if drained else Severity.WARN,
                title="What was paused, drained or switched off by hand may be lost",
                observed=f"{self.path} could not be used{f': {self.unread}' if self.unread else ''}; {counts}",
                required="a file as the box writes it",
                remedy=f"{look}\n{then}",
            ),
        )

    def _instead(self, why: str) -> None:
        """Use the copy, or drain; the file is replaced only when that can be written, so that the next start knows."""
        self.unread = why
        try:
            self.value = _overlay(_bytes(self.copy))
        except (OSError, ValueError):
            self.value = Overlay(mode=Mode.DRAINED, changed=Changed(by=NOBODY, at_s=time.time()))
        with contextlib.suppress(OSError):  # a second name needs no room
            self.aside.unlink(missing_ok=True)
            self.aside.hardlink_to(self.path)
        with contextlib.suppress(OSError):
            _write(self.path, self.value)

    def _write_copy(self) -> None:
        """An old copy would be worse than none."""
        try:
            _write(self.copy, self.value)
        except OSError:
            with contextlib.suppress(OSError):
                self.copy.unlink(missing_ok=True)


def _bytes(path: Path) -> bytes:
    """Raises OSError, and ValueError when it is too long to be one of ours."""
    with path.open("rb") as file:
        raw = file.read(FILE_MAX_BYTES + 1)
    if len(raw) > FILE_MAX_BYTES:
        raise ValueError(f"longer than {FILE_MAX_BYTES} bytes")
    return raw


def _overlay(raw: bytes) -> Overlay:
    """Raises ValueError; pydantic's own is one."""
    return Overlay.model_validate_json(raw)


def _first_line(error: ValueError) -> str:
    return str(error.errors(include_url=False)[0]["msg"]) if isinstance(error, ValidationError) else str(error)


def _write(path: Path, value: Overlay) -> None:
    """Raises OSError."""
    replace_file(path, value.model_dump_json(indent=2).encode() + b"\n", 0o600)
    for name in (path, path.parent):
        opened = os.open(name, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
