"""appliance/box/probe.py over a made-up /proc and /sys, and once over the real ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from appliance.box.facts import Facts
from appliance.box.probe import LIBS, loadable_libs, probe


def put(root: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def all_there(names: Sequence[str]) -> Mapping[str, bool]:
    return dict.fromkeys(names, True)


def probed(root: Path) -> Facts:
    return probe(root / "state", "127.0.0.1", root=root, loadable=all_there)


def test_flags_and_memory_are_read_from_proc(tmp_path: Path) -> None:
    put(
        tmp_path,
        {
            "proc/cpuinfo": "processor\t: 0\nflags\t\t: fpu avx2 fma\n\nprocessor\t: 1\nflags\t\t: fpu\n",
            "proc/meminfo": "MemTotal:       1000 kB\nMemAvailable:    600 kB\n",
        },
    )
    facts = probed(tmp_path)
    assert facts.cpu_flags == {"fpu", "avx2", "fma"}
    assert facts.mem_available_bytes == 600 * 1024


def test_the_tightest_cgroup_above_us_limits_memory(tmp_path: Path) -> None:
    put(
        tmp_path,
        {
            "proc/meminfo": "MemAvailable:    600 kB\n",
            "proc/self/cgroup": "0::/system.slice/moe.service\n",
            "sys/fs/cgroup/system.slice/memory.max": "300000\n",
            "sys/fs/cgroup/system.slice/memory.current": "100000\n",
            "sys/fs/cgroup/system.slice/memory.stat": "anon 5\ninactive_file 20000\n",
            "sys/fs/cgroup/system.slice/moe.service/memory.max": "max\n",
            "sys/fs/cgroup/system.slice/moe.service/memory.current": "5\n",
        },
    )
    assert probed(tmp_path).mem_available_bytes == 220_000


def test_version_1_cgroups_count_too(tmp_path: Path) -> None:
    put(
        tmp_path,
        {
            "proc/self/cgroup": "5:cpu,memory:/docker/x\n3:pids:/docker/x\n",
            "sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes": "1000\n",
            "sys/fs/cgroup/memory/docker/x/memory.usage_in_bytes": "1200\n",
        },
    )
    assert probed(tmp_path).mem_available_bytes == 0


def test_an_empty_root_gives_unknowns_and_no_error(tmp_path: Path) -> None:
    facts = probed(tmp_path)
    assert facts.cpu_flags == frozenset()
    assert facts.mem_available_bytes is None
    assert facts.disk_free_bytes is not None
    assert facts.disk_free_bytes > 0


def test_the_loader_itself_is_asked_for_libraries() -> None:
    assert loadable_libs(["libc.so.6", "libnot-there.so.9"]) == {"libc.so.6": True, "libnot-there.so.9": False}


def test_the_real_box_can_be_probed(tmp_path: Path) -> None:
    facts = probe(tmp_path, "0.0.0.0")
    assert facts.cores >= 1
    assert set(facts.libs) == set(LIBS)
    assert facts.listen_loopback is False
