"""What the operator changed by hand while the box runs: a mode, and seats that are off. Pure.

It lies over the files, which stay the operator's: a seat that is off here is off whatever seats.toml says, and one that
is disabled there stays so. It outlives a restart, so that a box in maintenance does not begin to serve by itself.
"""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict


class Mode(StrEnum):
    """SERVING: as ever. PAUSED: running streams go on, who comes waits in line, nobody is let through. DRAINED: running
    streams go on, who comes is refused with a time to come back."""

    SERVING = "serving"
    PAUSED = "paused"
    DRAINED = "drained"


class _Kept(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Changed(_Kept):
    """Who changed it and when, wall-clock seconds."""

    by: str
    at_s: float


class Overlay(_Kept):
    """`changed` tells of the mode, None while it is SERVING; `seats`: those that are off."""

    mode: Mode = Mode.SERVING
    changed: Changed | None = None
    seats: dict[str, Changed] = {}

    def in_mode(self, mode: Mode, by: str, at_s: float) -> Overlay:
        """The same with another mode; who set the one that is on already stays its author."""
        if mode is self.mode:
            return self
        changed = None if mode is Mode.SERVING else Changed(by=by, at_s=at_s)
        return self.model_copy(update={"mode": mode, "changed": changed})

    def with_seat(self, name: str, off: Changed | None) -> Overlay:
        """The same with a seat off, or, with None, on; one that is off already keeps who did it."""
        seats = {other: changed for other, changed in self.seats.items() if other != name}
        if off is not None:
            seats[name] = self.seats.get(name, off)
        return self.model_copy(update={"seats": seats})

    @property
    def off(self) -> dict[str, str]:
        """The seats that are off, and who did it."""
        return {name: changed.by for name, changed in self.seats.items()}
