"""Recognise a start that hangs in its first collective operation over several cards. Pure.

The signature, all of it for `SILENT_S`: the log is silent, nothing is read, each card holds less than `CARD_BYTES` more
than before the start, and the engine's processes burn at least `BUSY_CORES` of a core: ranks that wait for each other
spin. Compiling and capturing look alike but for the cards, which hold the weights by then.
Source: facts/checkpoint-and-offload.md section 5, row 2.

Rule: what is not known is no sign: without figures of the cards there is no verdict.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from appliance.engine.step_limits import LOOK_MAX_S, READ_BYTES

SILENT_S = 120.0
CARD_BYTES = 2 << 30
BUSY_CORES = 0.9


@dataclass(frozen=True, slots=True)
class Usage:
    """What the processes of an engine have used since their first look: processor seconds, bytes read. `pids`: who
    lives, with start times (clock ticks after boot)."""

    cpu_s: float = 0.0
    read_bytes: int = 0
    pids: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Silence:
    """Since the last line of the log: seconds, processor seconds that the engine's processes used, bytes they read."""

    silent_s: float = 0.0
    cpu_s: float = 0.0
    read_bytes: int = 0


def looked(silence: Silence, elapsed_s: float, cpu_s: float, read_bytes: int) -> Silence:
    """After a look `elapsed_s` after the last one; `cpu_s` and `read_bytes`: used and read meanwhile."""
    counted_s = min(elapsed_s, LOOK_MAX_S)
    share = counted_s / elapsed_s if elapsed_s > 0 else 1.0
    return Silence(silence.silent_s + counted_s, silence.cpu_s + cpu_s * share, silence.read_bytes + read_bytes)


def hangs(silence: Silence, grown_bytes: Mapping[int, int] | None) -> bool:
    """Whether it is the signature. `grown_bytes`: by card, what it holds beyond what it held before the start; None or
    empty = not known."""
    return (
        silence.silent_s >= SILENT_S
        and silence.cpu_s >= BUSY_CORES * silence.silent_s
        and silence.read_bytes < READ_BYTES
        and bool(grown_bytes)
        and max((grown_bytes or {}).values()) < CARD_BYTES
    )
