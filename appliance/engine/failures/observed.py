"""Causes that no line of a log tells: what was measured, in words. Pure.

Rules:
- A process that is not ours is named and never ended by us.
- Figures are of the moment when it was decided.
"""

from __future__ import annotations

from collections.abc import Sequence

from appliance.engine.failures.context import VramHolder
from appliance.engine.failures.rows_cards import NCCL_REMEDY
from appliance.printable import printable
from appliance.units import MIB, gib
from gateway.state import Cause

COLLECTIVE_HANG_ID = "engine.collective_hang"
VRAM_HELD_ID = "engine.vram_held"


def collective_hang(card_bytes: Sequence[int], cpu_percent: float, silent_s: float, step: str = "") -> Cause:
    """The cards wait for each other: almost nothing on them, a processor busy, the log silent. `card_bytes`: what the
    engine holds of each card; `cpu_percent`: of its busiest process; `step`: where the start stands."""
    at = f" at {step!r}" if step else ""
    held = ", ".join(gib(held) for held in card_bytes)
    return Cause(
        id=COLLECTIVE_HANG_ID,
        title=f"The cards wait for each other for ever{at}: {held} on them, {cpu_percent:.0f} % of a processor, and no "
        f"line in the log for {silent_s:.0f} s.",
        remedy=f"{NCCL_REMEDY}; with peer to peer off also FlashInfer's autotuning: moe-appliance engine command shows "
        "what is set",
    )


def vram_held(holders: Sequence[VramHolder], waited_s: float) -> Cause:
    """The cards' memory did not fall after the engine's end. `holders`: who holds it; none = the
    driver names nobody."""
    named = "; ".join(f"process {one.pid} ({printable(one.command)}) {-(-one.bytes // MIB):,} MiB" for one in holders)
    foreign = [str(one.pid) for one in holders if not one.ours]
    ours = any(one.ours for one in holders)
    if foreign:
        remedy = f"it is not ours: ps -o pid,args -p {','.join(foreign)}, end it yourself, then: moe-appliance restart"
    elif ours:
        remedy = "it hangs in the driver and no signal ends it: reboot"
    else:
        remedy = "nvidia-smi; nobody is named, so the driver has lost it: reboot"
    whose = "a process that is not ours" if foreign else "the engine's own process" if ours else "nobody"
    title = f"The cards' memory was not free {waited_s:.0f} s after the engine's end; {whose} holds it"
    return Cause(id=VRAM_HELD_ID, title=f"{title}: {named}." if named else f"{title}.", remedy=remedy, retry=False)
