"""What is known about the box, as one value. Pure.

`probe.py` gathers it, `checks.py` judges it. A fact that could not be read is None or missing from its
mapping; a check stays silent about what it does not know.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field

from appliance.box.gpu import DeepReport, Gpu, GpuReport
from appliance.box.host import Host


@dataclass(frozen=True, slots=True)
class Counters:
    """Error counters of PCIe links by PCI address, at one moment (seconds since the epoch): they only tell something
    when they grow. `replays`: of cards; `corrected`: of cards and their ports."""

    at_s: float
    replays: Mapping[str, int] = field(default_factory=dict)
    corrected: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Facts:
    """The box at one moment.

    `machine`: as `uname -m`. `cpu_flags`: as /proc/cpuinfo spells them (empty on aarch64 and when unread).
    `cores`: CPUs this process may use. `mem_available_bytes`: what a new process may take, the cgroup's limit
    included. `disk_free_bytes`: on the file system of the state folder. `libs`: shared library -> can be
    loaded. `modules`: Python module -> is installed. `listen_host`: as configured, without the port.
    `gpus`, `host`: None when nobody asked for them; `deep`: what the last `preflight --deep` of this boot measured;
    `first`: the error counters at the first look of this boot.
    """

    machine: str
    cpu_flags: frozenset[str]
    cores: int
    mem_available_bytes: int | None
    disk_free_bytes: int | None
    python: tuple[int, int, int]
    euid: int
    listen_host: str
    libs: Mapping[str, bool] = field(default_factory=dict)
    modules: Mapping[str, bool] = field(default_factory=dict)
    gpus: GpuReport | None = None
    host: Host | None = None
    deep: DeepReport | None = None
    first: Counters | None = None

    @property
    def listen_loopback(self) -> bool:
        """Whether only this machine can reach the public socket."""
        return is_loopback(self.listen_host)


def node_of(gpu: Gpu, host: Host | None) -> int | None:
    """The NUMA node that a card hangs on, by the driver or by the kernel; None = not known."""
    known = host.gpu_nodes if host is not None else {}
    return gpu.numa_node if gpu.numa_node is not None else known.get(gpu.bus_id)


def is_loopback(host: str) -> bool:
    """Whether `host` (a name, an address, `[::1]`, or a Unix socket's path) is reachable from here only.

    Names other than localhost are taken for reachable: resolving them is not this module's to do.
    """
    name = host.strip().removeprefix("[").removesuffix("]").lower()
    if name.startswith(("/", "unix:")) or name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
