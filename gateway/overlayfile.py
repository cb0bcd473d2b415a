"""Keeps the operator's overlay in one small file, so that it outlives gateway and box. Touches that file and its copy.

Rules:
- A change counts at once: a key that leaked must not depend on room on the disk. What is kept outlives a
  power loss; while a change is not kept, a finding says so, since a restart would lose it.
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

from gateway.files import read_small, replace_file
from gateway.overlay import Changed, Mode, Overlay
from gateway.state import Finding, Severity

NAME = "overlay.json"
FILE_MAX_BYTES = 1024 * 1024
"""Ten thousand seats that are off."""
KEEP_EVERY_S = 10.0
"""How long until what could not be written is tried again."""
NOBODY = "the box itself"
"""Who drained a box that cannot know what was set."""


@dataclass(slots=True)
class OverlayFile:
    """One per gateway; `value` is what counts now. `unread`: why the file that was there at the start was not used.
    `unkept`: why `value` is not on disk, "" when it is."""

    path: Path
    value: Overlay = field(default_factory=Overlay)
    unread: str = ""
    unkept: str = ""

    @classmethod
    def load(cls, state_dir: Path) -> OverlayFile:
        """The overlay of a state folder; the default one when there is neither file nor copy. Raises nothing."""
        file = cls(state_dir / NAME)
        try:
            file.value = _overlay(read_small(file.path, FILE_MAX_BYTES))
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

    @property
    def look(self) -> str:
        """What to type when it cannot be written."""
        return f"df -h {self.path.parent}"

    def keep(self) -> str:
        """Write `value`. Why that was not possible, "" when it is kept; the former file stays then. Raises nothing."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._write_both(self.value)
        except OSError as error:
            self.unkept = f"{self.path} cannot be written: {error.strerror or error}"
        else:
            self.unkept = self.unread = ""
        return self.unkept

    def findings(self) -> tuple[Finding, ...]:
        """What is wrong with the file. Looks at the disk."""
        return (*self._broken(), *self._unkept())

    def _unkept(self) -> tuple[Finding, ...]:
        if not self.unkept:
            return ()
        return (
            Finding(
                id="overlay.unkept",
                severity=Severity.WARN,
                title="What was set by hand counts, and would be lost at a restart",
                observed=f"{self.unkept}; tried again every {KEEP_EVERY_S:g} s",
                required="a file that outlives gateway and box",
                remedy=self.look,
            ),
        )

    def _broken(self) -> tuple[Finding, ...]:
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
            self.value = _overlay(read_small(self.copy, FILE_MAX_BYTES))
        except (OSError, ValueError):
            self.value = Overlay(mode=Mode.DRAINED, changed=Changed(by=NOBODY, at_s=time.time()))
        with contextlib.suppress(OSError):  # a second name needs no room
            self.aside.unlink(missing_ok=True)
            self.aside.hardlink_to(self.path)
        with contextlib.suppress(OSError):
            _write(self.path, self.value)

    def _write_both(self, value: Overlay) -> None:
        """Raises OSError for the first; an old copy would be worse than none."""
        _write(self.path, value)
        try:
            _write(self.copy, value)
        except OSError:
            with contextlib.suppress(OSError):
                self.copy.unlink(missing_ok=True)


def kept_in(state_dir: Path) -> Overlay | None:
    """What a state folder keeps, for who only looks; None when that cannot be read. Raises nothing."""
    try:
        return _overlay(read_small(state_dir / NAME, FILE_MAX_BYTES))
    except (OSError, ValueError):
        return None


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
