"""Checks of the PCIe links between cards and host. Pure.

- A link's width is told by an idle card as well; its generation only under load, since idle cards lower it.
- Error counters tell something only when they grow: they are compared with the first look of this boot.
"""

from __future__ import annotations

from appliance.box.checks.check import Check, each, used_of
from appliance.box.facts import Facts
from appliance.box.gpu import Gpu, Link
from appliance.box.needs import Needs
from appliance.printable import printable
from appliance.units import gib
from gateway.state import Finding, Severity

LANES = 16
LANES_LEAST = 8
"""Below this a card is of no use for experts in host RAM. Source: local-inference-lab/rtx6kpro#15 (x8 works)."""
GENERATION = 5
"""53 to 57 GB/s measured at x16. Source: local-inference-lab/rtx6kpro, hardware/pcie-bandwidth.md."""


def pcie_width(facts: Facts, needs: Needs) -> Finding | None:
    """`pcie.width`: half the lanes, half the pace of everything that is read from host RAM."""
    narrow = narrow_cards(facts, needs)
    if not narrow:
        return None
    least = min(width_of(facts, gpu) or LANES for gpu in narrow)
    fixed = [gpu for gpu in narrow if gpu.link.width_max is not None and gpu.link.width_max < LANES]
    return Finding(
        id="pcie.width",
        severity=Severity.FAIL if least < LANES_LEAST else Severity.WARN,
        title="A card has fewer PCIe lanes than it could",
        observed=each(narrow, lambda gpu: f"({gpu.bus_id}) x{width_of(facts, gpu)}{_most(gpu.link)}"),
        required=f"x{LANES} for each card",
        remedy="a slot with 16 lanes, or BIOS: PCIe bifurcation of that slot to x16"
        if len(fixed) == len(narrow)
        else "reseat the card and its riser; another slot; BIOS: PCIe bifurcation of that slot to x16",
    )


def _most(link: Link) -> str:
    return "" if link.width_max is None else f" (card and slot can do x{link.width_max})"


def narrow_cards(facts: Facts, needs: Needs) -> list[Gpu]:
    """Those with fewer lanes than 16."""
    return [gpu for gpu in used_of(facts, needs) if (width_of(facts, gpu) or LANES) < LANES]


def width_of(facts: Facts, gpu: Gpu) -> int | None:
    """The most lanes that were seen: under load if that was measured."""
    measured = facts.deep.bandwidth.width if facts.deep is not None and facts.deep.bandwidth is not None else {}
    return max((width for width in (measured.get(gpu.index), gpu.link.width_now) if width), default=None)


def pcie_gen(facts: Facts, needs: Needs) -> Finding | None:
    """`pcie.gen`: judged by what the link showed while something was copied."""
    slow = slow_cards(facts, needs)
    if slow:
        return Finding(
            id="pcie.gen",
            severity=Severity.WARN,
            title="A card's PCIe link is slow under load",
            observed=each(slow, lambda gpu: f"({gpu.bus_id}) Gen{_loaded(facts, gpu)} while copying{_can(gpu)}"),
            required=f"Gen{GENERATION} while copying",
            remedy="BIOS: PCIe speed of that slot to Gen5; another riser; kernel: pcie_aspm=off pcie_port_pm=off",
        )
    unknown = [gpu for gpu in used_of(facts, needs) if _loaded(facts, gpu) is None]
    idle = [gpu for gpu in unknown if (gpu.link.gen_now or GENERATION) < GENERATION]
    if not idle:
        return None
    return Finding(
        id="pcie.gen",
        severity=Severity.INFO,
        title="A card's PCIe link is slow at the moment; idle cards do that",
        observed=each(idle, lambda gpu: f"({gpu.bus_id}) Gen{gpu.link.gen_now} now{_can(gpu)}"),
        required=f"Gen{GENERATION} under load",
        remedy="moe-appliance preflight --deep   measures it under load",
    )


def _can(gpu: Gpu) -> str:
    return "" if gpu.link.gen_max is None else f" (card and slot can do Gen{gpu.link.gen_max})"


def slow_cards(facts: Facts, needs: Needs) -> list[Gpu]:
    """Those whose link stayed below Gen5 while something was copied."""
    return [gpu for gpu in used_of(facts, needs) if (_loaded(facts, gpu) or GENERATION) < GENERATION]


def _loaded(facts: Facts, gpu: Gpu) -> int | None:
    if facts.deep is None or facts.deep.bandwidth is None:
        return None
    return facts.deep.bandwidth.gen.get(gpu.index)


def pcie_replay(facts: Facts, needs: Needs) -> Finding | None:
    """`pcie.replay`: a link that repairs its errors again and again has a bad contact or cable."""
    first = facts.first.replays if facts.first is not None else {}
    gpus = used_of(facts, needs)
    grown = {gpu.index: (gpu.link.replays or 0) - first.get(gpu.bus_id, gpu.link.replays or 0) for gpu in gpus}
    bad = [gpu for gpu in gpus if grown[gpu.index] > 0]
    if not bad:
        return None
    return Finding(
        id="pcie.replay",
        severity=Severity.WARN,
        title="A card's PCIe link repairs errors",
        observed=each(bad, lambda gpu: f"({gpu.bus_id}) {grown[gpu.index]} more replays since the boot's first look"),
        required="0 more",
        remedy="reseat the card; another riser or cable; another slot",
    )


def pcie_aer(facts: Facts, needs: Needs) -> Finding | None:
    """`pcie.aer`: the bus itself counts errors; a fatal one is never ordinary."""
    first = facts.first.corrected if facts.first is not None else {}
    said = []
    for port in facts.host.aer if facts.host is not None else ():
        grown = port.correctable - first.get(port.bus_id, port.correctable)
        parts = [f"{grown} more corrected since the first look of this boot"] if grown > 0 else []
        parts += [f"{port.fatal} fatal"] if port.fatal > 0 else []
        if parts:
            said.append(f"{printable(port.bus_id)} {' and '.join(parts)}")
    if not said:
        return None
    return Finding(
        id="pcie.aer",
        severity=Severity.WARN,
        title="The PCIe bus reports errors at a card",
        observed="; ".join(said),
        required="0 fatal errors, and corrected ones that do not grow",
        remedy="reseat the card; another riser or cable; another slot; BIOS: PCIe speed of that slot one step lower",
    )


def bar1(facts: Facts, needs: Needs) -> Finding | None:
    """`bar1`: without a resizable BAR the host sees 256 MiB of a card at a time, and cards do not see each other."""
    small = [gpu for gpu in used_of(facts, needs) if gpu.bar1_bytes is not None and gpu.bar1_bytes < gpu.total_bytes]
    if not small:
        return None
    return Finding(
        id="bar1",
        severity=Severity.WARN,
        title="The window into a card's memory is smaller than the memory",
        observed=each(small, lambda gpu: f"{gib(gpu.bar1_bytes or 0)}"),
        required=each(small, lambda gpu: f"{gib(gpu.total_bytes)}"),
        remedy="BIOS: Above 4G Decoding on, Re-Size BAR Support on",
    )


CHECKS = (
    Check(
        "pcie.width",
        "WARN; FAIL below x8",
        "lanes of each card's link, the most that was seen",
        "fewer than 16",
        "reseat, riser, slot, BIOS bifurcation",
        "local-inference-lab/rtx6kpro#15, noonghunna/club-3090#895",
        pcie_width,
    ),
    Check(
        "pcie.gen",
        "WARN under load (`--deep`); INFO while idle",
        "generation of each card's link, the most that was seen during a copy",
        "below Gen5",
        "BIOS, riser, pcie_aspm=off pcie_port_pm=off",
        "local-inference-lab/rtx6kpro#88, tinygrad/open-gpu-kernel-modules#6",
        pcie_gen,
    ),
    Check(
        "pcie.replay",
        "WARN",
        "the driver's count of replays since the first look of this boot",
        "it grew",
        "reseat, riser, cable",
        "local-inference-lab/rtx6kpro",
        pcie_replay,
    ),
    Check(
        "pcie.aer",
        "WARN",
        "aer_dev_correctable and aer_dev_fatal of each card and the port above it",
        "corrected ones grew since the first look of this boot, or a fatal one",
        "reseat, riser, cable",
        "local-inference-lab/rtx6kpro",
        pcie_aer,
    ),
    Check(
        "bar1",
        "WARN",
        "size of BAR1 against the card's memory",
        "smaller",
        "BIOS: Above 4G Decoding, Re-Size BAR",
        "local-inference-lab/rtx6kpro, hardware/pcie-bandwidth.md",
        bar1,
    ),
)
