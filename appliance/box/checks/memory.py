"""Checks of the kernel's settings for memory. Pure. The plan's bytes are judged in plan.py."""

from __future__ import annotations

from appliance.box.checks.check import Check
from appliance.box.facts import Facts
from appliance.box.needs import Needs
from appliance.units import GIB, gib
from gateway.state import Finding, Severity

SHM_BYTES = 8 * GIB
"""Least room for what engines share between their processes. Source: our own rule; recipes give 16 to 32 GiB."""
MAP_COUNT = 262_144
"""Each registered region takes mappings. Source: QMCPACK/qmcpack#5557, where 65,530 ran out."""
SWAP_BYTES = GIB // 10
"""The kernel swaps idle pages of any machine that is up for long. Source: our own rule."""
_NEVER_OVERCOMMIT = 2


def memlock(facts: Facts, needs: Needs) -> Finding | None:
    """`memlock`: CUDA pins memory past this limit; loaders with io_uring and RDMA do not."""
    limit = facts.host.memlock_bytes if facts.host is not None else None
    if limit is None or limit == -1:
        return None
    return Finding(
        id="memlock",
        severity=Severity.INFO,
        title="Locked memory is limited",
        observed=f"{limit / 1024:.0f} KiB for this process; CUDA's pinned memory does not count",
        required="unlimited, for loaders with io_uring and for RDMA",
        remedy="systemctl edit moe-appliance: [Service] LimitMEMLOCK=infinity; in a container: --ulimit memlock=-1",
    )


def shm(facts: Facts, needs: Needs) -> Finding | None:
    """`shm`: engines share buffers between their processes there; containers often get 64 MiB."""
    free = facts.host.shm_free_bytes if facts.host is not None else None
    if free is None or free >= SHM_BYTES:
        return None
    return Finding(
        id="shm",
        severity=Severity.WARN,
        title="Little room in /dev/shm",
        observed=f"{gib(free)} free",
        required=gib(SHM_BYTES),
        remedy="mount -o remount,size=32G /dev/shm; in a container: --shm-size 32g",
    )


def thp(facts: Facts, needs: Needs) -> Finding | None:
    """`thp`: for diagnosis; no difference was measured when memory is pinned."""
    if facts.host is None or facts.host.thp != "never":
        return None
    return Finding(
        id="thp",
        severity=Severity.INFO,
        title="Transparent huge pages are off",
        observed="never: host memory is in pages of 4 KiB",
        required="madvise or always; pinning takes as long either way",
        remedy="echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
    )


def swap(facts: Facts, needs: Needs) -> Finding | None:
    """`swap`: something was pushed out already, before the engine takes its memory."""
    used = facts.host.swap_used_bytes if facts.host is not None else None
    if used is None or used < SWAP_BYTES:
        return None
    return Finding(
        id="swap",
        severity=Severity.INFO,
        title="Swap is in use",
        observed=f"{gib(used)} used",
        required=f"less than {gib(SWAP_BYTES)} used",
        remedy="swapoff -a && swapon -a   takes it back when there is room",
    )


def overcommit(facts: Facts, needs: Needs) -> Finding | None:
    """`overcommit`: mode 2 refuses the large reservations that engines make and never fill."""
    if facts.host is None or facts.host.overcommit != _NEVER_OVERCOMMIT:
        return None
    return Finding(
        id="overcommit",
        severity=Severity.INFO,
        title="The kernel refuses to overcommit memory",
        observed="vm.overcommit_memory = 2",
        required="0 or 1: engines reserve address space that they never fill",
        remedy="sysctl -w vm.overcommit_memory=0",
    )


def max_map_count(facts: Facts, needs: Needs) -> Finding | None:
    """`max_map_count`: bounds how many regions of host memory can be pinned."""
    count = facts.host.max_map_count if facts.host is not None else None
    if count is None or count >= MAP_COUNT:
        return None
    return Finding(
        id="max_map_count",
        severity=Severity.WARN,
        title="Few memory mappings are allowed",
        observed=f"vm.max_map_count = {count}",
        required=f"{MAP_COUNT} at least: each pinned region takes mappings",
        remedy=f"echo 'vm.max_map_count = {MAP_COUNT}' > /etc/sysctl.d/60-moe-appliance.conf; sysctl --system",
    )


CHECKS = (
    Check(
        "memlock",
        "INFO",
        "RLIMIT_MEMLOCK of this process",
        "not unlimited",
        "LimitMEMLOCK=infinity",
        "measured on two H200, driver 580.159.04: cudaHostAlloc and cudaHostRegister ignore it",
        memlock,
    ),
    Check("shm", "WARN", "free bytes of /dev/shm", "less than 8 GiB", "a larger /dev/shm", "our own rule", shm),
    Check(
        "thp",
        "INFO",
        "/sys/kernel/mm/transparent_hugepage/enabled",
        "never",
        "madvise",
        "measured on two H200: registering 4 GiB takes 0.14 to 0.15 s with and without",
        thp,
    ),
    Check("swap", "INFO", "SwapTotal less SwapFree", "0.1 GiB or more", "swapoff -a", "our own rule", swap),
    Check("overcommit", "INFO", "vm.overcommit_memory", "2", "sysctl", "our own rule", overcommit),
    Check(
        "max_map_count",
        "WARN",
        "vm.max_map_count",
        "less than 262,144",
        "a line in /etc/sysctl.d",
        "QMCPACK/qmcpack#5557",
        max_map_count,
    ),
)
