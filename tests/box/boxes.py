"""Facts and file trees of boxes, for the tests of checks, probes and the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from appliance.box.facts import Facts
from appliance.box.gpu import Bandwidth, DeepReport, Gpu, GpuReport, Link, Outcome, Relation
from appliance.box.host import Host, Node
from appliance.units import GIB
from gateway.state import BudgetBar, BudgetLine, Moment

BOOT_ID = "0b0071d0-0000-4000-8000-000000000001"
NAME = "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"
CARD_BYTES = 97_887 * 1024**2


def gpu(index: int, **changes: Any) -> Gpu:
    """A good card."""
    good = Gpu(
        index=index,
        uuid=f"GPU-{index}",
        name=NAME,
        bus_id=("0000:41:00.0", "0000:81:00.0", "0000:c1:00.0", "0000:e1:00.0")[index],
        total_bytes=CARD_BYTES,
        reserved_bytes=615 * 1024**2,
        used_bytes=0,
        capability=(12, 0),
        numa_node=0,
        cpus="0-31",
        link=Link(gen_now=5, gen_max=5, width_now=16, width_max=16, replays=0),
        bar1_bytes=128 * GIB,
        mig=(False, False),
        ecc=True,
        remap_pending=False,
        remap_failed=False,
        persistence=True,
        power_limit_w=600.0,
        power_default_w=600.0,
        throttle=("idle",),
    )
    return replace(good, **changes)


def report(*gpus: Gpu, **changes: Any) -> GpuReport:
    """A driver that answers, with two good cards unless others are given."""
    cards = gpus or (gpu(0), gpu(1))
    pairs = {(a.index, b.index): Relation.NODE for a in cards for b in cards if a.index < b.index}
    good = GpuReport(
        outcome=Outcome.OK,
        driver="580.95.05",
        module="580.95.05",
        cuda="13.0",
        gpus=cards,
        relations=pairs,
        p2p=dict.fromkeys(pairs, "OK"),
        confidential=False,
    )
    return replace(good, **changes)


def node(id_: int = 0, **changes: Any) -> Node:
    """A node with 512 GiB, nearly all of it free."""
    good = Node(id_, total_bytes=512 * GIB, free_bytes=480 * GIB, reclaimable_bytes=20 * GIB, cpus="0-63")
    return replace(good, **changes)


def host(**changes: Any) -> Host:
    """A machine that nothing is wrong with."""
    good = Host(
        boot_id=BOOT_ID,
        cmdline=("quiet", "iommu=pt"),
        nodes=(node(),),
        mem_total_bytes=512 * GIB,
        mem_available_bytes=490 * GIB,
        swap_used_bytes=0,
        overcommit=0,
        thp="madvise",
        max_map_count=1_048_576,
        shm_free_bytes=256 * GIB,
        memlock_bytes=-1,
        numactl=True,
        iommu_groups=90,
        iommu_type="identity",
        acs=(),
        hmm_disabled=True,
        device_nodes={"/dev/nvidia-uvm": "", "/dev/nvidia0": "", "/dev/nvidia1": "", "/dev/nvidiactl": ""},
        nvidia_pci=("0000:41:00.0", "0000:81:00.0"),
        gpu_nodes={"0000:41:00.0": 0, "0000:81:00.0": 0},
        xids=(),
        secret_modes={"/var/lib/moe-appliance/seats.toml": 0o640},
    )
    return replace(good, **changes)


def deep(**changes: Any) -> DeepReport:
    """Good measurements."""
    good = DeepReport(
        at_s=1_796_000_000.0,
        bandwidth=Bandwidth(
            alone={0: 55.0, 1: 54.0}, together={0: 54.0, 1: 53.0}, gen={0: 5, 1: 5}, width={0: 16, 1: 16}
        ),
        pinned_bytes=GIB,
        pin_s=0.04,
        nccl_s=6.0,
        nccl_gb_s=40.0,
        nccl_p2p=True,
    )
    return replace(good, **changes)


def facts(**changes: Any) -> Facts:
    """A box that nothing is wrong with."""
    good = Facts(
        machine="x86_64",
        cpu_flags=frozenset({"avx2"}),
        cores=64,
        mem_available_bytes=490 * GIB,
        disk_free_bytes=10**12,
        python=(3, 11, 7),
        euid=999,
        listen_host="127.0.0.1",
        gpus=report(),
        host=host(),
    )
    return replace(good, **changes)


def bar(
    id_: str, steady_gib: float, load_gib: float = 0.0, rounded_gib: float = 0.0, driver_gib: float = 0.0
) -> BudgetBar:
    """A bar with a line a moment; `driver_gib` is a line of its own."""
    lines = (
        ("weights", steady_gib, Moment.STEADY),
        ("driver", driver_gib, Moment.STEADY),
        ("cache", load_gib, Moment.LOAD),
        ("rounding", rounded_gib, Moment.ROUNDED),
    )
    return BudgetBar(
        id=id_,
        label=id_,
        capacity_bytes=None,
        lines=tuple(
            BudgetLine(id=name, label=name, bytes=int(gib * GIB), exact=True, formula="", source="", moment=moment)
            for name, gib, moment in lines
            if gib
        ),
    )


def put(root: Path, files: Mapping[str, str | bytes]) -> None:
    """Write files under `root`."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def meminfo(id_: int, gib: int = 512, free_gib: int = 480, cache_gib: int = 20) -> str:
    """/sys/devices/system/node/nodeN/meminfo."""
    rows = {"MemTotal": gib, "MemFree": free_gib, "FilePages": cache_gib, "Shmem": 0, "Dirty": 0, "SReclaimable": 0}
    return "".join(f"Node {id_} {name}: {value * 1024**2:>12} kB\n" for name, value in rows.items())


def furnish(root: Path, nodes: int = 1) -> None:
    """Put a good machine around the cards of a fake box: memory, kernel settings, device nodes, programs."""
    put(
        root,
        {
            "proc/sys/kernel/random/boot_id": f"{BOOT_ID}\n",
            "proc/cmdline": "quiet iommu=pt\n",
            "proc/meminfo": "MemTotal: 536870912 kB\nMemAvailable: 510000000 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n",
            "proc/sys/vm/overcommit_memory": "0\n",
            "proc/sys/vm/max_map_count": "1048576\n",
            "proc/self/limits": "Max locked memory         unlimited            unlimited            bytes     \n",
            "proc/self/cgroup": "0::/\n",
            "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
            "sys/module/nvidia_uvm/parameters/uvm_disable_hmm": "Y\n",
            "dev/nvidia-uvm": "",
            "dev/nvidia0": "",
            "dev/nvidia1": "",
            "dev/kmsg": "6,1,1,-;Linux version 6.18\n",
            "usr/bin/numactl": "#!/bin/sh\n",
            **{
                f"sys/devices/system/node/node{id_}/meminfo": meminfo(id_, 512 // nodes, 480 // nodes, 20 // nodes)
                for id_ in range(nodes)
            },
        },
    )
    (root / "usr/bin/numactl").chmod(0o755)
