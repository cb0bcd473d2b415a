"""Checks of the plan's bytes against the cards and the host's memory. Pure.

- A card's bar has a line for what the driver keeps; what the driver reports as kept counts once.
- Host memory is judged before the engine loads. When it is loaded, what is free says nothing: then nothing is said.
"""

from __future__ import annotations

from dataclasses import dataclass

from appliance.box.checks.check import Check, used_of
from appliance.box.facts import Facts
from appliance.box.gpu import Gpu
from appliance.box.needs import Needs
from appliance.printable import printable
from appliance.units import GIB, gib
from gateway.state import BudgetBar, Finding, Moment, Severity

KERNEL_BYTES = 16 * GIB
"""Free memory that the machine keeps while the engine pins its own, over all nodes: with less, sshd stops answering
before the kernel ends anything. Source: satindergrewal's recipe for two RTX PRO 6000, tools/preflight-pin.sh (16 GiB);
MiaAI-Lab/DeepSeek-v4.1-Flash-EXL3-2x-DGX-Sparks keeps 12."""
SPARE_SHARE = 0.10
PINNED_SHARE = 0.30
"""Of a node's memory, and of what is pinned on it, that should stay free. Source: our own rule; the same recipe's rule
after a host of 125 GiB stopped answering with 97 GiB pinned."""
REGION_BYTES = 511 * GIB
REGION_DRIVER = 580
"""From this driver on, registering 512 GiB or more in one call fails. Source: vllm-project/vllm#51080,
NVIDIA/open-gpu-kernel-modules#1234."""
_LESS = "moe-appliance plan make   with fewer experts in host RAM; or add RAM, or stop what else holds it"


def vram_total(facts: Facts, needs: Needs) -> Finding | None:
    """`vram.total`: the out-of-memory boot that is seen before anything loads."""
    over = [
        (gpu, bar)
        for rank, gpu in enumerate(used_of(facts, needs))
        if (bar := needs.bar(f"gpu{rank}")) and _short(gpu, bar) > 0
    ]
    if not over:
        return None
    return Finding(
        id="vram.total",
        severity=Severity.FAIL,
        title="The plan does not fit the cards",
        observed=", ".join(
            f"gpu{gpu.index} has {gib(_usable(gpu, bar))}, {gib(_short(gpu, bar))} too few" for gpu, bar in over
        ),
        required=", ".join(f"gpu{gpu.index} {gib(bar.total_bytes())}" for gpu, bar in over),
        remedy="moe-appliance plan make   moves more experts to host RAM; or fewer streams or a shorter context",
    )


def _usable(gpu: Gpu, bar: BudgetBar) -> int:
    """The card's bytes, less what the driver keeps beyond the plan's line for it."""
    planned = sum(line.bytes for line in bar.lines if line.id == "driver" and line.moment is Moment.STEADY)
    return gpu.total_bytes - max(0, (gpu.reserved_bytes or 0) - planned)


def _short(gpu: Gpu, bar: BudgetBar) -> int:
    return bar.total_bytes() - _usable(gpu, bar)


def mem_node(facts: Facts, needs: Needs) -> Finding | None:
    """`mem.node`: pinned memory comes from the node that the card hangs on, and page cache competes while it loads."""
    tight = [row for row in _rows(facts, needs) if row.needed + row.spare > row.free]
    if not tight:
        return None
    short = [row for row in tight if row.needed + row.kernel > row.free]
    given_back = sum(node.hugepages_bytes for node in facts.host.nodes) if facts.host is not None else 0
    pages = f"sysctl -w vm.nr_hugepages=0   gives back {gib(given_back)}; or: " if given_back else ""
    return Finding(
        id="mem.node",
        severity=Severity.FAIL if short else Severity.WARN,
        title="Host memory is too little for the plan" if short else "Host memory is little for the plan",
        observed=", ".join(f"{row.name} {gib(row.free)} free or reclaimable" for row in short or tight),
        required=", ".join(
            f"{row.name} {gib(row.needed)} at the load's peak and {gib(row.kernel if short else row.spare)} spare"
            for row in short or tight
        ),
        remedy=pages + _LESS,
    )


def mem_rounded(facts: Facts, needs: Needs) -> Finding | None:
    """`mem.rounded`: some engines pin in blocks of powers of two, and then the same plan takes far more."""
    short = [row for row in _rows(facts, needs) if row.rounded + row.kernel > row.free and row.rounded > row.needed]
    if not short:
        return None
    return Finding(
        id="mem.rounded",
        severity=Severity.WARN,
        title="Host memory is too little if the engine rounds what it pins",
        observed=", ".join(f"{row.name} {gib(row.free)} free or reclaimable" for row in short),
        required=", ".join(f"{row.name} {gib(row.rounded)} rounded up, and {gib(row.kernel)} spare" for row in short),
        remedy="VLLM_WEIGHT_OFFLOADING_DISABLE_PIN_MEMORY=1 in the engine's environment, if its version knows it; or: "
        + _LESS,
    )


@dataclass(frozen=True, slots=True)
class _Row:
    """A node, what it has and what the plan asks of it, bytes. `kernel`: its part of KERNEL_BYTES; `spare`: what should
    stay free."""

    name: str
    free: int
    needed: int
    rounded: int
    kernel: int
    spare: int


def _row(bar: BudgetBar, free: int, total: int, nodes: int) -> _Row:
    kernel = KERNEL_BYTES // nodes
    return _Row(
        name=printable(bar.id),
        free=free,
        needed=bar.total_bytes(Moment.STEADY, Moment.LOAD),
        rounded=bar.total_bytes(Moment.STEADY, Moment.LOAD, Moment.ROUNDED),
        kernel=kernel,
        spare=max(kernel, int(total * SPARE_SHARE), int(bar.total_bytes() * PINNED_SHARE)),
    )


def _rows(facts: Facts, needs: Needs) -> list[_Row]:
    """The host's bars whose memory is known."""
    if facts.host is None or needs.own_pids:
        return []
    nodes = facts.host.nodes
    by_name = {f"node{node.id}": (node.free_bytes + node.reclaimable_bytes, node.total_bytes) for node in nodes}
    rows = []
    for bar in needs.host_bars:
        free, total = by_name.get(bar.id, (None, None))
        share = max(1, len(nodes))
        if bar.id == "host":
            share = 1
            free = sum(node.free_bytes + node.reclaimable_bytes for node in nodes) or facts.host.mem_available_bytes
            total = sum(node.total_bytes for node in nodes) or facts.host.mem_total_bytes
        if free is not None and total is not None:
            rows.append(_row(bar, free, total, share))
    return rows


def mem_cgroup(facts: Facts, needs: Needs) -> Finding | None:
    """`mem.cgroup`: a unit's or container's limit ends the engine where the machine has room."""
    limit = facts.host.cgroup_bytes if facts.host is not None else None
    free = facts.host.cgroup_free_bytes if facts.host is not None and not needs.own_pids else None
    needed = sum(bar.total_bytes() for bar in needs.host_bars)
    if limit is None or needed == 0 or needed + KERNEL_BYTES <= min(limit, limit if free is None else free):
        return None
    return Finding(
        id="mem.cgroup",
        severity=Severity.FAIL,
        title="The memory limit of this unit or container is too low for the plan",
        observed=f"limit {gib(limit)}" + (f", {gib(free)} of it free or reclaimable" if free is not None else ""),
        required=f"{gib(needed)} of the plan and {gib(KERNEL_BYTES)} for the engine's processes",
        remedy="systemctl edit moe-appliance: [Service] MemoryMax=infinity; in a container: a larger --memory",
    )


def mem_region(facts: Facts, needs: Needs) -> Finding | None:
    """`mem.region`: one call cannot pin half a TiB on newer drivers."""
    region, driver = needs.largest_region_bytes, facts.gpus.driver if facts.gpus is not None else ""
    major = driver.partition(".")[0]
    if region is None or region < REGION_BYTES or not major.isdecimal() or int(major) < REGION_DRIVER:
        return None
    return Finding(
        id="mem.region",
        severity=Severity.FAIL,
        title="A piece of host memory is too large to be pinned in one call",
        observed=f"{gib(region)} in one piece, driver {printable(driver)}",
        required=f"less than {gib(REGION_BYTES)} from driver {REGION_DRIVER} on",
        remedy="have the engine register it in pieces of 64 GiB, or use a driver of branch 575",
    )


CHECKS = (
    Check(
        "vram.total",
        "FAIL",
        "the plan's bytes on each card, against what the driver reports less what it keeps",
        "more than there is",
        "move more experts to host RAM",
        "the two out-of-memory boots of the first pod",
        vram_total,
    ),
    Check(
        "mem.node",
        "FAIL; WARN when only the spare part is missing",
        "free and reclaimable bytes of each NUMA node, against the plan at the load's peak",
        "less than the plan and 16 GiB (over all nodes); WARN: and 10 % of the node, and 30 % of what is pinned",
        "more RAM, fewer experts in it, huge pages given back",
        "satindergrewal's tools/preflight-pin.sh; 1CatAI/1Cat-vLLM#678",
        mem_node,
    ),
    Check(
        "mem.rounded",
        "WARN",
        "the same, with every pinned piece rounded up to a power of two",
        "less than that and 16 GiB",
        "an engine that does not round",
        "vllm-project/vllm#56410, #58178",
        mem_rounded,
    ),
    Check(
        "mem.cgroup",
        "FAIL",
        "the least memory limit of the control groups above this process, and what they still allow",
        "less than the plan in host RAM and 16 GiB",
        "MemoryMax=infinity",
        "kekzl/imp#2070, vllm-project/vllm#45086",
        mem_cgroup,
    ),
    Check(
        "mem.region",
        "FAIL",
        "the largest piece of host memory that is registered in one call",
        "511 GiB or more, from driver 580 on",
        "register it in pieces",
        "vllm-project/vllm#51080, NVIDIA/open-gpu-kernel-modules#1234",
        mem_region,
    ),
)
