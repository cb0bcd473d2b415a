"""Gathers Facts from /proc, the cgroup, the file system and the loader. Reads only; never raises for a
file that is not there.

Blocking for about 0.1 s (one short child process): call it in a thread.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from appliance.box.facts import Facts

LIBS = ("libgomp.so.1", "libstdc++.so.6")
"""Libraries of the distribution that xllamacpp's wheel links. Source: `ldd xllamacpp.abi3.so`."""
MODULES = ("xllamacpp", "gguf")
_DLOPEN_S = 10.0
_DLOPEN = """
import ctypes, sys
for name in sys.argv[1:]:
    try:
        ctypes.CDLL(name)
    except OSError:
        print(0, name)
    else:
        print(1, name)
"""


def probe(
    state_dir: Path,
    listen_host: str,
    *,
    root: Path = Path("/"),
    loadable: Callable[[Sequence[str]], Mapping[str, bool]] | None = None,
) -> Facts:
    """Everything the checks look at; `root` is where /proc and /sys are found (tests give a folder)."""
    return Facts(
        machine=platform.machine(),
        cpu_flags=_cpu_flags(root),
        cores=_cores(),
        mem_available_bytes=_mem_available(root),
        disk_free_bytes=_disk_free(state_dir),
        python=sys.version_info[:3],
        euid=os.geteuid(),
        listen_host=listen_host,
        libs=(loadable or loadable_libs)(LIBS),
        modules={name: importlib.util.find_spec(name) is not None for name in MODULES},
    )


def loadable_libs(names: Sequence[str]) -> Mapping[str, bool]:
    """Asks the loader itself, in a short child: right in slim images without ldconfig or its cache, and with
    LD_LIBRARY_PATH. An empty mapping when the child did not answer.
    """
    try:
        answer = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _DLOPEN, *names],
            capture_output=True,
            text=True,
            timeout=_DLOPEN_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    pairs = (line.split(" ", 1) for line in answer.stdout.splitlines() if " " in line)
    return {name: found == "1" for found, name in pairs}


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _cpu_flags(root: Path) -> frozenset[str]:
    for line in (_read(root / "proc/cpuinfo") or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _mem_available(root: Path) -> int | None:
    """The smallest of MemAvailable and what each cgroup above this process still allows, bytes."""
    free = [value for value in (_meminfo(root), *_cgroup_free(root)) if value is not None]
    return min(free, default=None)


def _meminfo(root: Path) -> int | None:
    for line in (_read(root / "proc/meminfo") or "").splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        if name == "MemAvailable" and words and words[0].isdigit():
            return int(words[0]) * 1024
    return None


def _cgroup_free(root: Path) -> list[int]:
    """Limit minus use of every cgroup from ours up to the top; version 2, or version 1's memory controller."""
    found: list[int] = []
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            base, limit, use, cache = "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            base, limit, use = "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
            cache = "total_inactive_file"
        else:
            continue
        top = root / base
        group = top / path.strip("/")
        for folder in (group, *group.parents):
            value = _group_free(folder, limit, use, cache)
            if value is not None:
                found.append(value)
            if folder == top:
                break
    return found


def _group_free(folder: Path, limit: str, use: str, cache: str) -> int | None:
    most = (_read(folder / limit) or "").strip()
    used = (_read(folder / use) or "").strip()
    if not most.isdigit() or not used.isdigit():  # "max" = no limit
        return None
    reclaimable = 0
    for line in (_read(folder / "memory.stat") or "").splitlines():
        name, _, value = line.partition(" ")
        if name == cache and value.strip().isdigit():
            reclaimable = int(value)
    return max(0, int(most) - int(used) + reclaimable)


def _disk_free(folder: Path) -> int | None:
    """Free bytes where `folder` is, or will be: its nearest parent that exists."""
    for place in (folder, *folder.absolute().parents):
        try:
            return shutil.disk_usage(place).free
        except FileNotFoundError:
            continue
        except OSError:
            return None
    return None
