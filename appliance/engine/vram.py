"""Decide whether the cards have given back what a former engine held. Pure.

Rules:
1. Each card must hold no more than before that engine was started, and `MARGIN_BYTES`; and nothing that outlived
   SIGKILL may live. Host memory is given back with it.
2. What processes that are not ours took meanwhile is taken off: they are named, never ended, and no reason to wait. The
   start goes on then, to the checks of the box, which refuse it in their own words and look again.
3. A card, or a driver, that answered before and is silent now has given back nothing that we know of.
4. After `LIMIT_S` the engine must not be started: the kernel or the driver holds what nobody can end. Where a process
   of ours holds it only a reboot helps (`retry` False); where nobody is to be seen it may go by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from appliance.box.gpu import Gpu, GpuProcess, GpuReport, Outcome
from appliance.engine.failures import VramHolder
from appliance.engine.failures.observed import vram_held
from appliance.units import gib
from gateway.state import Cause

LIMIT_S = 120.0
MARGIN_BYTES = 1 << 30
NONE = frozenset({Outcome.NO_DRIVER, Outcome.NO_LIBRARY, Outcome.NOT_LOADED})
AGAIN = "moe-appliance restart (looks first), or: sudo systemctl reboot"
_EVIDENCE_LINES = 3


@dataclass(frozen=True, slots=True)
class Card:
    """A card before a start: what it held, bytes, in all and by process."""

    index: int
    used_bytes: int
    held: Mapping[int, int] = field(default_factory=dict)


Before = Mapping[str, Card]
"""By UUID. Empty = nothing is waited for."""


@dataclass(frozen=True, slots=True)
class Look:
    """What a look gave. `held_bytes`: beyond what was there before, without strangers'; 0 = free. `holders`: who holds
    memory that was not held before. `silent`: why it is not known, "" = it is."""

    held_bytes: int = 0
    holders: tuple[VramHolder, ...] = ()
    silent: str = ""

    @property
    def strangers(self) -> tuple[VramHolder, ...]:
        """Those that are not ours."""
        return tuple(holder for holder in self.holders if not holder.ours)


@dataclass(frozen=True, slots=True)
class Go:
    """The start may go on. `strangers`: who took memory meanwhile."""

    strangers: tuple[VramHolder, ...] = ()


@dataclass(frozen=True, slots=True)
class Wait:
    """Not yet; the step, for people."""

    step: str


@dataclass(frozen=True, slots=True)
class Held:
    """It is not given back."""

    cause: Cause


def before(report: GpuReport) -> tuple[Before, str]:
    """The cards before a start, and why they are not waited for afterwards, "" = they are, or there are none."""
    if report.outcome in NONE:
        return {}, ""
    if report.outcome is not Outcome.OK:
        return {}, report.error or str(report.outcome)
    for gpu in report.gpus:
        if gpu.mig is not None and gpu.mig[0]:
            return {}, f"GPU {gpu.index} is cut by MIG"
        if gpu.used_bytes is None or not gpu.uuid:
            return {}, f"GPU {gpu.index} does not say what it holds"
    return {gpu.uuid: _card(gpu) for gpu in report.gpus}, ""


def _card(gpu: Gpu) -> Card:
    held = {process.pid: process.used_bytes or 0 for process in gpu.processes}
    return Card(gpu.index, gpu.used_bytes or 0, held)


def look(cards: Before, report: GpuReport, own: frozenset[int], visible: frozenset[int]) -> Look:
    """`own`: pids of the former engine that live; `visible`: those of the report that this system knows at all."""
    if report.outcome is not Outcome.OK:
        return Look(silent=f"the driver does not answer ({report.error or report.outcome})")
    there = {gpu.uuid: gpu for gpu in report.gpus}
    held, holders = 0, list[VramHolder]()
    for uuid, card in cards.items():
        gpu = there.get(uuid)
        if gpu is None or gpu.used_bytes is None:
            return Look(silent=f"GPU {card.index} does not answer any more")
        grown = gpu.used_bytes - card.used_bytes
        if grown <= MARGIN_BYTES:
            continue
        mine = [_holder(process, ours=True) for process in gpu.processes if process.pid in own]
        others = [process for process in gpu.processes if process.pid in visible and process.pid not in own]
        took = {process.pid: (process.used_bytes or 0) - card.held.get(process.pid, 0) for process in others}
        new = [p for p in others if took[p.pid] > 0 or (p.used_bytes is None and p.pid not in card.held)]
        holders += mine + [_holder(process, ours=False) for process in new]
        hidden = not mine and any(process.used_bytes is None for process in new)
        rest = 0 if hidden else grown - sum(max(0, more) for more in took.values())
        held += rest if rest > MARGIN_BYTES else 0
    return Look(held, tuple(holders))


def _holder(process: GpuProcess, *, ours: bool) -> VramHolder:
    return VramHolder(process.pid, process.name or "unknown", process.used_bytes or 0, ours)


def decide(seen: Look, stuck: Iterable[str], ended_for_s: float, kernel: tuple[str, ...] | None) -> Go | Wait | Held:
    """`stuck`: what outlived SIGKILL and lives, in words. `ended_for_s`: since the engine's end. `kernel`: what the
    kernel's log said since its start, None = it cannot be read."""
    alive = tuple(stuck)
    if not seen.held_bytes and not seen.silent and not alive:
        return Go(seen.strangers)
    if ended_for_s < LIMIT_S:
        return Wait(_step(seen, alive))
    cause = _cause(seen, alive)
    if kernel is None:
        cause = cause.model_copy(update={"remedy": f"{cause.remedy}; journalctl -k | grep -i xid"})
    return Held(cause.model_copy(update={"evidence": "; ".join((kernel or ())[-_EVIDENCE_LINES:])}))


def _step(seen: Look, alive: tuple[str, ...]) -> str:
    if seen.silent:
        return f"waiting for the cards ({seen.silent})"
    if seen.held_bytes:
        return f"waiting for the cards' memory ({gib(seen.held_bytes)} held)"
    return f"waiting for the former engine's end ({alive[0]})"


def _cause(seen: Look, alive: tuple[str, ...]) -> Cause:
    if seen.silent:
        return Cause(
            id="engine.vram_unknown",
            title=f"Nobody knows whether the cards are free {LIMIT_S:.0f} s after the engine's end: {seen.silent}.",
            remedy=f"nvidia-smi (does it answer?); {AGAIN}",
            retry=not alive,
        )
    if seen.held_bytes:
        own = tuple(holder for holder in seen.holders if holder.ours)
        return vram_held(own, LIMIT_S).model_copy(update={"retry": not own and not alive})
    return Cause(
        id="engine.unkillable",
        title=f"SIGKILL did not end {', '.join(alive)} within {LIMIT_S:.0f} s: the kernel holds it.",
        remedy=AGAIN,
        retry=False,
    )
