"""The machine around the cards: memory by NUMA node, the kernel's settings, what its log says. Pure.

`probe_host.py` gathers a Host from /proc and /sys under a root that tests replace. What could not be read is None or
missing; a check stays silent about it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Node:
    """One NUMA node, bytes. `free_bytes`: free now; `reclaimable_bytes`: clean page cache and slab that the kernel
    gives back when it is asked; `hugepages_bytes`: set aside and useless to us. `cpus`: a range text."""

    id: int
    total_bytes: int
    free_bytes: int
    reclaimable_bytes: int
    hugepages_bytes: int = 0
    cpus: str = ""


@dataclass(frozen=True, slots=True)
class Bridge:
    """A PCI bridge above a card with access control on: its address, and which of its controls redirect."""

    bus_id: str
    controls: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PciErrors:
    """Corrected and fatal errors that a card's port counted (aer_dev_correctable, aer_dev_fatal)."""

    bus_id: str
    correctable: int
    fatal: int


@dataclass(frozen=True, slots=True)
class Xid:
    """A line of the kernel's log about a card: `NVRM: Xid (PCI:0000:41:00): 79, ...`."""

    number: int
    bus_id: str
    line: str


@dataclass(frozen=True, slots=True)
class Host:
    """See the top of the module. `boot_id`: of this boot. `cmdline`: the kernel's words. `iommu_groups`: how many; 0 =
    no translation. `iommu_type`: `identity` or `DMA...` of the first card's group. `device_nodes`: path -> "" when it
    can be opened for reading and writing, else why not. `hmm_disabled`: of nvidia_uvm. `memlock_bytes`: soft limit, -1
    = none. `cgroup_bytes`: the least of the limits above this process, None = none; `cgroup_free_bytes`: the least that
    one of them still allows, with the cache that it can drop. `shm_free_bytes`: of /dev/shm.
    `nvidia_pci`: addresses of NVIDIA's display devices. `preloads`: libraries in ld.so.preload or LD_PRELOAD.
    `secret_modes`: path -> permission bits of the files with keys and seats that exist.
    """

    boot_id: str = ""
    cmdline: tuple[str, ...] = ()
    nodes: tuple[Node, ...] = ()
    mem_total_bytes: int | None = None
    mem_available_bytes: int | None = None
    cgroup_bytes: int | None = None
    cgroup_free_bytes: int | None = None
    swap_used_bytes: int | None = None
    overcommit: int | None = None
    thp: str | None = None
    max_map_count: int | None = None
    shm_free_bytes: int | None = None
    memlock_bytes: int | None = None
    numactl: bool | None = None
    iommu_groups: int | None = None
    iommu_type: str | None = None
    acs: tuple[Bridge, ...] | None = None
    aer: tuple[PciErrors, ...] = ()
    hmm_disabled: bool | None = None
    device_nodes: Mapping[str, str] = field(default_factory=dict)
    nvidia_pci: tuple[str, ...] = ()
    gpu_nodes: Mapping[str, int] = field(default_factory=dict)
    xids: tuple[Xid, ...] | None = None
    preloads: tuple[str, ...] = ()
    secret_modes: Mapping[str, int] = field(default_factory=dict)
