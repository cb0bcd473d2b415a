"""Decide whether a step of a start still shows life. Pure.

Signs of life: a new step, a new percent, bytes that the engine's processes read, memory that the cards give or take.
A line of the log is none: engines that hang go on complaining of it.

Rules:
- Time is counted in looks that are a few seconds apart, and a look counts for `LOOK_MAX_S` at most: a daemon that was
  stopped, or a machine that slept, has no long silence behind it when it goes on. (The monotonic clock stands still in
  suspend anyhow.)
- Bytes are summed up until they are `READ_BYTES`: each process reads a little of /proc now and then.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from appliance.engine.adapter import Step
from gateway.state import Cause

LOOK_MAX_S = 6.0
"""Three of the looks of run.py."""
READ_BYTES = 1 << 20
CARD_BYTES = 64 << 20
"""What a change of a card's memory must be, bytes; drivers breathe a little."""
FIRST_FACTOR = 3.0
"""A first start compiles what later ones find in caches: its steps may be silent for so many times as long."""


_NONE = Step("")


@dataclass(frozen=True, slots=True)
class Life:
    """A step and how long it has shown nothing, seconds. `read_bytes`: read since its last sign of life;
    `card_bytes`: what the cards held at that time, None = not known."""

    step: Step = _NONE
    silent_s: float = 0.0
    read_bytes: int = 0
    card_bytes: int | None = None


def announced(life: Life, step: Step) -> Life:
    """The log says that a step goes on. The same percent again is no sign of life."""
    same = (step.name, step.progress) == (life.step.name, life.step.progress)
    return replace(life, step=step) if same else Life(step, card_bytes=life.card_bytes)


def looked(life: Life, elapsed_s: float, read_bytes: int, card_bytes: int | None) -> Life:
    """After a look: what its processes read since the last one, and what the cards hold together, None = not known."""
    read = life.read_bytes + read_bytes
    known = life.card_bytes is not None and card_bytes is not None
    moved = known and abs((card_bytes or 0) - (life.card_bytes or 0)) >= CARD_BYTES
    if read >= READ_BYTES or moved:
        return Life(life.step, card_bytes=card_bytes)
    held = card_bytes if life.card_bytes is None else life.card_bytes
    return Life(life.step, life.silent_s + min(elapsed_s, LOOK_MAX_S), read, held)


def timeout(life: Life, *, first: bool) -> Cause | None:
    """`engine.step_timeout` when the step has shown nothing for longer than it may. `first`: nothing like it was ever
    started here."""
    if life.step.limit_s is None:
        return None
    limit_s = life.step.limit_s * (FIRST_FACTOR if first else 1.0)
    if life.silent_s < limit_s:
        return None
    return Cause(
        id="engine.step_timeout",
        title=f"The engine's start stands still: {life.step.name} showed no progress for {limit_s:g} s.",
        remedy="moe-appliance status (shows its last log lines)",
    )
