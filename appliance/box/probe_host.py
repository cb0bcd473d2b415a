"""Gathers a Host from /proc, /sys and /dev under a root that tests replace. Reads only; never raises.

- Takes about 50 ms: one short child process, for the device nodes. Opening a card's node wakes its driver, and a driver
  that hangs never gives the opener back: the child is left behind then.
- Without root some of it is unknown: bridges' configuration space, often the kernel's log.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from appliance.box import probe_log, probe_pci
from appliance.box.child import OneChild
from appliance.box.host import Host, Node
from appliance.box.probe import cgroup_free, cgroup_limits
from appliance.box.probe_pci import number, text

_KB = 1024
_OPEN_S = 3.0
"""A card without persistence needs one to two seconds to wake."""
_OPENER = OneChild()
_OPEN = """
import os, sys
for path in sys.argv[1:]:
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        print(path, error.strerror or error, sep="\\t", flush=True)
    else:
        print(path, "", sep="\\t", flush=True)
"""


def probe_host(root: Path, environ: Mapping[str, str], secret_files: Sequence[Path] = ()) -> Host:
    """Everything about the machine around the cards. `environ`: for PATH and LD_PRELOAD. `secret_files`: files whose
    modes are looked at; they are not under `root`."""
    memory = _meminfo(root)
    limits = cgroup_limits(root)
    cards = probe_pci.cards(root)
    groups, kind = probe_pci.iommu(root, cards)
    total, free = memory.get("SwapTotal"), memory.get("SwapFree")
    return Host(
        boot_id=text(root / "proc/sys/kernel/random/boot_id") or "",
        cmdline=tuple((text(root / "proc/cmdline") or "").split()),
        nodes=_nodes(root),
        mem_total_bytes=memory.get("MemTotal"),
        mem_available_bytes=memory.get("MemAvailable"),
        cgroup_bytes=min(limits, default=None),
        cgroup_free_bytes=min(cgroup_free(root), default=None),
        swap_used_bytes=total - free if total is not None and free is not None else None,
        overcommit=number(root / "proc/sys/vm/overcommit_memory"),
        thp=_chosen(text(root / "sys/kernel/mm/transparent_hugepage/enabled")),
        max_map_count=number(root / "proc/sys/vm/max_map_count"),
        shm_free_bytes=_shm_free(root),
        memlock_bytes=_memlock(root),
        numactl=_on_path(root, "numactl", environ),
        iommu_groups=groups,
        iommu_type=kind,
        acs=probe_pci.access_controls(root, cards),
        aer=probe_pci.errors(root, cards),
        hmm_disabled={"Y": True, "N": False}.get(text(root / "sys/module/nvidia_uvm/parameters/uvm_disable_hmm") or ""),
        device_nodes=_device_nodes(root),
        nvidia_pci=cards,
        gpu_nodes=probe_pci.gpu_nodes(root, cards),
        xids=probe_log.xids(root),
        preloads=_preloads(root, environ),
        secret_modes=_modes(secret_files),
    )


def _meminfo(root: Path) -> Mapping[str, int]:
    """Name -> bytes, of what /proc/meminfo gives in kB."""
    rows = (line.partition(":") for line in (text(root / "proc/meminfo") or "").splitlines())
    return {name: int(words[0]) * _KB for name, _, rest in rows if (words := rest.split()) and words[0].isdigit()}


def _nodes(root: Path) -> tuple[Node, ...]:
    try:
        folders = [path for path in (root / "sys/devices/system/node").iterdir() if re.fullmatch(r"node\d+", path.name)]
    except OSError:
        return ()
    nodes = (_node(folder) for folder in sorted(folders, key=lambda path: int(path.name[4:])))
    return tuple(node for node in nodes if node is not None)


def _node(folder: Path) -> Node | None:
    """A node with memory. Its page cache counts as far as the kernel can drop it at once: no shared memory, nothing
    locked, nothing that must be written first."""
    found: dict[str, int] = {}
    for line in (text(folder / "meminfo") or "").splitlines():
        match = re.fullmatch(r"Node \d+ ([\w()]+):\s+(\d+) kB", line.strip())
        if match is not None:
            found[match[1]] = int(match[2]) * _KB
    if not found.get("MemTotal") or "MemFree" not in found:
        return None
    kept = sum(found.get(name, 0) for name in ("Shmem", "Dirty", "Writeback", "Unevictable"))
    cache = max(0, found.get("FilePages", 0) - kept)
    return Node(
        id=int(folder.name[4:]),
        total_bytes=found["MemTotal"],
        free_bytes=found["MemFree"],
        reclaimable_bytes=cache + found.get("SReclaimable", 0),
        hugepages_bytes=_hugepages(folder / "hugepages"),
        cpus=text(folder / "cpulist") or "",
    )


def _hugepages(folder: Path) -> int:
    try:
        sizes = list(folder.iterdir())
    except OSError:
        return 0
    total = 0
    for size in sizes:
        match = re.fullmatch(r"hugepages-(\d+)kB", size.name)
        if match is not None:
            total += int(match[1]) * _KB * (number(size / "nr_hugepages") or 0)
    return total


def _chosen(line: str | None) -> str | None:
    """The word in brackets: `always [madvise] never`."""
    match = re.search(r"\[(\w+)\]", line or "")
    return match[1] if match else None


def _shm_free(root: Path) -> int | None:
    try:
        found = os.statvfs(root / "dev/shm")
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def _memlock(root: Path) -> int | None:
    match = re.search(r"^Max locked memory\s+(\d+|unlimited)\s", text(root / "proc/self/limits") or "", re.M)
    if match is None:
        return None
    return -1 if match[1] == "unlimited" else int(match[1])


def _on_path(root: Path, program: str, environ: Mapping[str, str]) -> bool:
    folders = [root / folder.lstrip("/") for folder in environ.get("PATH", os.defpath).split(os.pathsep) if folder]
    return shutil.which(program, path=os.pathsep.join(map(str, folders))) is not None


def _preloads(root: Path, environ: Mapping[str, str]) -> tuple[str, ...]:
    lines = (line.partition("#")[0] for line in (text(root / "etc/ld.so.preload") or "").splitlines())
    named = " ".join((*lines, environ.get("LD_PRELOAD", "")))
    return tuple(name for name in re.split(r"[:\s]+", named) if name)


def _modes(files: Sequence[Path]) -> Mapping[str, int]:
    found: dict[str, int] = {}
    for path in files:
        try:
            found[str(path)] = stat.S_IMODE(path.stat().st_mode)
        except OSError:
            continue
    return found


def _device_nodes(root: Path) -> Mapping[str, str]:
    """Path as the kernel knows it -> "" or why it cannot be opened; empty where there is no driver and no node."""
    driver = root / "proc/driver/nvidia"
    names = {path.name for path in (root / "dev").glob("nvidia[0-9]*") if path.name[6:].isdecimal()}
    if driver.is_dir() or names:
        names |= {"nvidiactl", "nvidia-uvm"}
    for card in (driver / "gpus").glob("*/information"):
        minor = re.search(r"^Device Minor:\s+(\d+)", text(card) or "", re.M)
        if minor is not None:
            names.add(f"nvidia{minor[1]}")
    paths = {f"/dev/{name}": str(root / "dev" / name) for name in sorted(names)}
    said = _opened(list(paths.values())) if paths else {}
    return {name: said.get(path, f"no answer within {_OPEN_S:.0f} s") for name, path in paths.items()}


def _opened(paths: Sequence[str]) -> Mapping[str, str]:
    """Path -> "" or the error, of those that answered in time."""
    try:
        answer = _OPENER.ask([sys.executable, "-I", "-S", "-c", _OPEN, *paths], os.environ, _OPEN_S)
    except OSError as error:
        return dict.fromkeys(paths, str(error))
    return {path: why for path, tab, why in (line.partition("\t") for line in answer.out.splitlines()) if tab}


def family(root: Path, pid: int) -> frozenset[int]:
    """A process and everything that it started and that still has its parent."""
    children: dict[int, list[int]] = {}
    for folder in (root / "proc").glob("[0-9]*"):
        fields = (text(folder / "stat") or "").rpartition(")")[2].split()  # the name before it may hold anything
        if len(fields) > 1 and fields[1].isdecimal():
            children.setdefault(int(fields[1]), []).append(int(folder.name))
    found, ahead = set[int](), [pid]
    while ahead:
        at = ahead.pop()
        if at not in found:
            found.add(at)
            ahead += children.get(at, [])
    return frozenset(found)
