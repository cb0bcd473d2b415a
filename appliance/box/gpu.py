"""The box's NVIDIA cards as the driver tells of them. Pure.

`nvml.py` gathers a GpuReport through a child process, checks judge it. A fact that the driver does not give is None.
Bytes are bytes, power is watts, links are generations (1..7) and lanes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Outcome(StrEnum):
    """What came of asking the driver. Only OK has cards."""

    OK = "ok"
    NO_DRIVER = "no_driver"
    """Neither a kernel module nor a library: this is no machine with NVIDIA's driver."""
    NO_LIBRARY = "no_library"
    """A kernel module, and no libnvidia-ml.so.1."""
    NOT_LOADED = "not_loaded"
    """The library says that the kernel module is not loaded."""
    MISMATCH = "mismatch"
    """Library and kernel module are of different versions."""
    FAILED = "failed"
    """The library answered with another error."""
    HUNG = "hung"
    """No answer before the deadline; the child was killed."""
    CRASHED = "crashed"
    """The child died."""


class Relation(StrEnum):
    """How two devices reach each other, as `nvidia-smi topo -m` spells it, best first."""

    SELF = "X"
    NV = "NV"
    PIX = "PIX"
    PXB = "PXB"
    PHB = "PHB"
    NODE = "NODE"
    SYS = "SYS"


@dataclass(frozen=True, slots=True)
class Link:
    """A PCIe link. `gen_now`, `width_now`: at the moment of asking, so that an idle card shows a low generation;
    `gen_max`, `width_max`: the least of card and slot. `replays`: errors that the link repaired since the driver
    was loaded."""

    gen_now: int | None = None
    gen_max: int | None = None
    width_now: int | None = None
    width_max: int | None = None
    replays: int | None = None


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that holds memory of a card. `name`: as the kernel knows it (/proc/PID/comm), "" when it cannot be seen
    from here."""

    pid: int
    used_bytes: int | None
    name: str = ""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One card, in the driver's order.

    `index`: as nvidia-smi counts. `bus_id`: PCI address as sysfs spells it (0000:41:00.0, lower case). `capability`:
    compute capability. `reserved_bytes`: kept by the driver itself; `used_bytes`: by processes, reserved not counted
    unless `reserved_bytes` is None (an old driver, which does not tell them apart).
    `numa_node`: of the host, from sysfs; None = unknown or the machine has one. `cpus`: affinity as a range text.
    `mig`: now, and after the next reset. `remap_failed`, `remap_pending`: rows of memory. `throttle`: reasons by name.
    """

    index: int
    uuid: str
    name: str
    bus_id: str
    total_bytes: int
    reserved_bytes: int | None = None
    used_bytes: int | None = None
    capability: tuple[int, int] | None = None
    processes: tuple[GpuProcess, ...] = ()
    numa_node: int | None = None
    cpus: str = ""
    link: Link = Link()
    bar1_bytes: int | None = None
    mig: tuple[bool, bool] | None = None
    ecc: bool | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    persistence: bool | None = None
    power_limit_w: float | None = None
    power_default_w: float | None = None
    throttle: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuReport:
    """Everything the driver said. `error`: its own words when the outcome is not OK. `driver`: version by the library;
    `module`: version of the loaded kernel module (/proc/driver/nvidia/version). `lost`: cards that are there (by
    the kernel module's list or the driver's count) and do not answer, each with the driver's words. `relations`: (i, j)
    with i < j, by index. `p2p`: the same pairs, what the driver says of direct reads, as `nvidia-smi topo -p2p r`
    spells it (OK, NS, GNS ...). `confidential`: confidential computing is on. `topo_text_disagrees`: where
    `nvidia-smi topo -m` says something else than `relations`, "" = nowhere, or it was not to be had."""

    outcome: Outcome
    error: str = ""
    driver: str = ""
    module: str = ""
    cuda: str = ""
    gpus: tuple[Gpu, ...] = ()
    lost: tuple[str, ...] = ()
    relations: Mapping[tuple[int, int], Relation] | None = None
    p2p: Mapping[tuple[int, int], str] | None = None
    confidential: bool | None = None
    topo_text_disagrees: str = ""


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Copies between pinned memory and cards, GB/s (10^9 bytes), by card index; a card that could not be measured is
    missing. `alone`: host to device, one card at a time, from memory of its own NUMA node; `together`: the same with
    all cards at once, empty for one card; `back`: device to host, alone; `far`: host to device, alone, from memory of
    the most distant node that has CPUs, empty where there is one node. `gen`, `width`: the most that the link showed
    during the copies."""

    alone: Mapping[int, float]
    together: Mapping[int, float]
    gen: Mapping[int, int]
    width: Mapping[int, int]
    back: Mapping[int, float] = field(default_factory=dict)
    far: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeepReport:
    """What `preflight --deep` measured; None = that part was not run, an error text = it failed, a skipped text = why
    it was not run. Texts are one line without control characters.

    `bandwidth` and `bandwidth_error` together: some cards were measured and others failed, each named in the error.
    `cards`: index and UUID of each card that was to be measured.
    `pinned_bytes`: what was pinned in one allocation a card; `pin_s`: how long that took, the slowest one's. `nccl_s`:
    the time of an all-reduce between one process a card, start included; `nccl_gb_s`: its bus bandwidth, GB/s.
    `nccl_p2p`: whether peer access was allowed (False: NCCL_P2P_DISABLE=1); `nccl_p2p_error`: what went wrong with peer
    access when only the second run, without it, was good.
    """

    at_s: float
    cards: tuple[tuple[int, str], ...] = ()
    bandwidth: Bandwidth | None = None
    bandwidth_error: str = ""
    bandwidth_skipped: str = ""
    pinned_bytes: int | None = None
    pin_s: float | None = None
    pin_error: str = ""
    nccl_s: float | None = None
    nccl_gb_s: float | None = None
    nccl_p2p: bool | None = None
    nccl_p2p_error: str = ""
    nccl_error: str = ""
    nccl_skipped: str = ""
