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
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from appliance.box.facts import Facts

LIBS = ("libgomp.so.1", "libstdc++.so.6")
"""Libraries of the distribution that xllamacpp's wheel links. Source: `ldd xllamacpp.abi3.so`."""
MODULES = ("xllamacpp", "gguf")
_NO_LIMIT = 2**60
"""Version 1 spells "no limit" as a number near 2^63."""
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


class _Names(NamedTuple):
    """Where a version of the cgroups keeps its memory figures."""

    base: str
    limit: str
    use: str
    cache: str


_VERSION_2 = _Names("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file")
_VERSION_1 = _Names("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


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
    free = [value for value in (_meminfo(root), *cgroup_free(root)) if value is not None]
    return min(free, default=None)


def _meminfo(root: Path) -> int | None:
    for line in (_read(root / "proc/meminfo") or "").splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        if name == "MemAvailable" and words and words[0].isdigit():
            return int(words[0]) * 1024
    return None


def cgroup_limits(root: Path) -> tuple[int, ...]:
    """The memory limit of every cgroup from ours up to the top that has one, bytes."""
    limits = ((_read(folder / names.limit) or "").strip() for folder, names in _cgroups(root))
    return tuple(int(limit) for limit in limits if limit.isdigit() and int(limit) < _NO_LIMIT)


def cgroup_free(root: Path) -> list[int]:
    """Limit minus use of every cgroup from ours up to the top."""
    found = (_group_free(folder, names) for folder, names in _cgroups(root))
    return [value for value in found if value is not None]


def _cgroups(root: Path) -> Iterator[tuple[Path, _Names]]:
    """Our cgroup and those above it, with the names of their files: version 2, or version 1's memory controller."""
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            names = _VERSION_2
        elif "memory" in controllers.split(","):
            names = _VERSION_1
        else:
            continue
        top = root / names.base
        group = top / path.strip("/")
        for folder in (group, *group.parents):
            yield folder, names
            if folder == top:
                break


def _group_free(folder: Path, names: _Names) -> int | None:
    most = (_read(folder / names.limit) or "").strip()
    used = (_read(folder / names.use) or "").strip()
    if not most.isdigit() or not used.isdigit():  # "max" = no limit
        return None
    reclaimable = 0
    for line in (_read(folder / "memory.stat") or "").splitlines():
        name, _, value = line.partition(" ")
        if name == names.cache and value.strip().isdigit():
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
