"""appliance/box/probe_host.py, probe_pci.py and probe_log.py over made-up trees, and once over the real one."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from appliance.box import probe_log
from appliance.box.host import Bridge, Host, PciErrors, Xid
from appliance.box.probe_host import family, probe_host
from appliance.units import GIB
from tests.box.boxes import BOOT_ID, furnish, put
from tests.box.test_acs import config


def probed(root: Path, **environ: str) -> Host:
    return probe_host(root, {"PATH": "/usr/bin", **environ})


def card(root: Path, address: str, above: str = "pci0000:40/0000:40:01.1", node: int = 0) -> None:
    """An NVIDIA display device where sysfs has it: a link into the tree of bridges."""
    place = f"sys/devices/{above}/{address}"
    put(root, {f"{place}/vendor": "0x10de\n", f"{place}/class": "0x030200\n", f"{place}/numa_node": f"{node}\n"})
    devices = root / "sys/bus/pci/devices"
    devices.mkdir(parents=True, exist_ok=True)
    (devices / address).symlink_to(Path("../../..") / f"devices/{above}/{address}")
    for at, part in enumerate(parts := above.split("/")[1:], start=2):
        if not (devices / part).exists():
            (devices / part).symlink_to(Path("../../..") / "devices" / "/".join(above.split("/")[:at]))
    assert parts


def test_an_empty_root_gives_unknowns_and_no_error(tmp_path: Path) -> None:
    assert probed(tmp_path) == Host(numactl=False, acs=())


def test_the_real_machine_is_read_quickly() -> None:
    began = time.monotonic()
    found = probe_host(Path("/"), os.environ)
    assert time.monotonic() - began < 3.5  # 0.05 s; the journal may take its 3 s where the kernel's log is closed
    assert found.boot_id
    assert found.mem_total_bytes


def test_a_furnished_root_is_read_whole(tmp_path: Path) -> None:
    furnish(tmp_path)
    found = probed(tmp_path)
    assert found.boot_id == BOOT_ID
    assert found.cmdline == ("quiet", "iommu=pt")
    assert (found.thp, found.overcommit, found.max_map_count, found.swap_used_bytes) == ("madvise", 0, 1_048_576, 0)
    assert (found.memlock_bytes, found.numactl, found.hmm_disabled, found.xids) == (-1, True, True, ())
    assert [(node.id, node.total_bytes, node.free_bytes) for node in found.nodes] == [(0, 512 * GIB, 480 * GIB)]


def test_only_page_cache_that_can_be_dropped_at_once_is_reclaimable(tmp_path: Path) -> None:
    rows = {"MemTotal": 1000, "MemFree": 100, "FilePages": 500, "Shmem": 100, "Dirty": 20, "Writeback": 5}
    rows |= {"Unevictable": 75, "SReclaimable": 30, "Active(file)": 1}
    text = "".join(f"Node 1 {name}:  {kb} kB\n" for name, kb in rows.items())
    put(
        tmp_path,
        {
            "sys/devices/system/node/node1/meminfo": text,
            "sys/devices/system/node/node1/cpulist": "32-63\n",
            "sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages": "10\n",
            "sys/devices/system/node/node1/hugepages/hugepages-1048576kB/nr_hugepages": "0\n",
        },
    )
    (node,) = probed(tmp_path).nodes
    assert (node.id, node.cpus) == (1, "32-63")
    assert node.reclaimable_bytes == (500 - 100 - 20 - 5 - 75 + 30) * 1024
    assert node.hugepages_bytes == 20 * 1024**2


def test_a_node_without_memory_is_left_out(tmp_path: Path) -> None:
    put(tmp_path, {"sys/devices/system/node/node2/meminfo": "Node 2 MemTotal: 0 kB\nNode 2 MemFree: 0 kB\n"})
    assert probed(tmp_path).nodes == ()


def test_the_least_cgroup_limit_counts_and_version_1_has_a_number_for_none(tmp_path: Path) -> None:
    put(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/a/b\n0::/a/b\n",
            "sys/fs/cgroup/memory/a/b/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "7000\n",
            "sys/fs/cgroup/a/memory.max": "8000\n",
            "sys/fs/cgroup/a/b/memory.max": "max\n",
        },
    )
    assert probed(tmp_path).cgroup_bytes == 7000
    assert probed(tmp_path).cgroup_free_bytes is None  # nobody says what is used of it
    put(
        tmp_path,
        {
            "sys/fs/cgroup/memory/a/memory.usage_in_bytes": "6500\n",
            "sys/fs/cgroup/memory/a/memory.stat": "total_inactive_file 500\n",
            "sys/fs/cgroup/a/memory.current": "7900\n",
        },
    )
    assert probed(tmp_path).cgroup_free_bytes == 100


def test_bridges_above_a_card_are_read_and_those_that_redirect_are_named(tmp_path: Path) -> None:
    card(tmp_path, "0000:41:00.0", "pci0000:40/0000:40:01.1", 0)
    card(tmp_path, "0000:83:00.0", "pci0000:80/0000:80:01.1/0000:81:00.0/0000:82:00.0", 1)
    put(
        tmp_path,
        {
            "sys/devices/pci0000:40/0000:40:01.1/config": config(0x001D),
            "sys/devices/pci0000:80/0000:80:01.1/config": config(0),
            "sys/devices/pci0000:80/0000:80:01.1/0000:81:00.0/config": config(0),
            "sys/devices/pci0000:80/0000:80:01.1/0000:81:00.0/0000:82:00.0/config": config(0x0004),
        },
    )
    found = probed(tmp_path)
    assert found.nvidia_pci == ("0000:41:00.0", "0000:83:00.0")
    assert found.gpu_nodes == {"0000:41:00.0": 0, "0000:83:00.0": 1}
    assert found.acs == (
        Bridge("0000:40:01.1", ("SrcValid", "ReqRedir", "CmpltRedir", "UpstreamFwd")),
        Bridge("0000:82:00.0", ("ReqRedir",)),
    )


def test_a_configuration_space_that_only_root_may_read_is_unknown(tmp_path: Path) -> None:
    card(tmp_path, "0000:41:00.0")
    put(tmp_path, {"sys/devices/pci0000:40/0000:40:01.1/config": config(0x001D)[:64]})
    assert probed(tmp_path).acs is None


def test_errors_of_a_card_and_of_its_port_are_counted(tmp_path: Path) -> None:
    card(tmp_path, "0000:41:00.0")
    put(
        tmp_path,
        {
            "sys/devices/pci0000:40/0000:40:01.1/aer_dev_correctable": "RxErr 1\nBadTLP 2\nTOTAL_ERR_COR 3\n",
            "sys/devices/pci0000:40/0000:40:01.1/0000:41:00.0/aer_dev_correctable": "TOTAL_ERR_COR 0\n",
            "sys/devices/pci0000:40/0000:40:01.1/0000:41:00.0/aer_dev_fatal": "Undefined 0\nTOTAL_ERR_FATAL 1\n",
        },
    )
    assert probed(tmp_path).aer == (PciErrors("0000:41:00.0", 0, 1), PciErrors("0000:40:01.1", 3, 0))


def test_the_iommu_is_told_by_groups_and_by_the_type_of_a_cards_group(tmp_path: Path) -> None:
    card(tmp_path, "0000:41:00.0", node=-1)
    put(
        tmp_path,
        {
            "sys/kernel/iommu_groups/0/type": "DMA\n",
            "sys/kernel/iommu_groups/7/type": "DMA-FQ\n",
            "sys/devices/pci0000:40/0000:40:01.1/0000:41:00.0/iommu_group/type": "DMA-FQ\n",
        },
    )
    found = probed(tmp_path)
    assert (found.iommu_groups, found.iommu_type) == (2, "DMA-FQ")
    assert found.gpu_nodes == {}


def test_device_nodes_are_opened_and_each_says_why_not(tmp_path: Path) -> None:
    put(
        tmp_path,
        {
            "proc/driver/nvidia/version": "x",
            "proc/driver/nvidia/gpus/0000:41:00.0/information": "Model: x\nDevice Minor: \t 1\n",
            "dev/nvidiactl": "",
            "dev/nvidia0": "",
        },
    )
    (tmp_path / "dev/nvidia-uvm").mkdir()
    assert probed(tmp_path).device_nodes == {
        "/dev/nvidia-uvm": "Is a directory",
        "/dev/nvidia0": "",
        "/dev/nvidia1": "No such file or directory",
        "/dev/nvidiactl": "",
    }


def test_preloads_come_from_the_file_and_from_the_environment(tmp_path: Path) -> None:
    put(tmp_path, {"etc/ld.so.preload": "# a note\n/usr/lib/libvgpu.so  # more\n"})
    found = probed(tmp_path, LD_PRELOAD="libjemalloc.so.2:/x/y.so")
    assert found.preloads == ("/usr/lib/libvgpu.so", "libjemalloc.so.2", "/x/y.so")


def test_modes_of_secret_files_are_read_where_there_are_files(tmp_path: Path) -> None:
    seats = tmp_path / "seats.toml"
    seats.touch(0o644)
    seats.chmod(0o644)
    found = probe_host(tmp_path, {}, [seats, tmp_path / "admins.toml"])
    assert found.secret_modes == {str(seats): 0o644}


def test_xids_are_found_once_for_each_number_and_card(tmp_path: Path) -> None:
    lines = (
        "6,1,1,-;nvidia 0000:41:00.0: enabled\n"
        "4,2,2,-;NVRM: Xid (PCI:0000:41:00): 79, pid='<unknown>', GPU has fallen off the bus.\n"
        "4,3,3,-;NVRM: Xid (PCI:0000:41:00): 79, GPU has fallen off the bus, again.\n"
        "4,4,4,-;NVRM: Xid (PCI:0000:C1:00): 119, Timeout waiting for RPC from GSP0!\n"
        " SUBSYSTEM=pci\n"
    )
    put(tmp_path, {"dev/kmsg": lines})
    first = "NVRM: Xid (PCI:0000:41:00): 79, GPU has fallen off the bus, again."
    second = "NVRM: Xid (PCI:0000:C1:00): 119, Timeout waiting for RPC from GSP0!"
    assert probed(tmp_path).xids == (Xid(79, "0000:41:00", first), Xid(119, "0000:c1:00", second))


def test_a_card_that_complains_without_end_is_bounded() -> None:
    found = probe_log.found_in(f"NVRM: Xid (PCI:0000:41:00): {number}, x" for number in range(10_000))
    assert len(found) == probe_log.MOST


def test_without_the_kernels_log_and_without_a_journal_xids_are_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert probe_log.xids(tmp_path) is None
    assert probe_log._journal() is None


@pytest.mark.parametrize(("script", "expected"), [("echo 'NVRM: Xid (PCI:0000:41:00): 48, x'", 1), ("exit 1", 0)])
def test_the_journal_is_read_where_the_kernels_log_is_closed(
    script: str, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, {"journalctl": f"#!/bin/sh\n{script}\n"})
    (tmp_path / "journalctl").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    text = probe_log._journal()
    assert text is not None
    assert len(probe_log.found_in(text.splitlines())) == expected


def test_a_family_is_a_process_and_all_below_it() -> None:
    argv = [sys.executable, "-c", "import subprocess, sys; subprocess.run(['sleep', '60'])"]
    with subprocess.Popen(argv, start_new_session=True) as child:
        try:
            limit = time.monotonic() + 20
            while len(family(Path("/"), child.pid)) < 2 and time.monotonic() < limit:
                time.sleep(0.02)
            assert len(family(Path("/"), child.pid)) == 2
            assert family(Path("/"), child.pid) < family(Path("/"), os.getpid())
        finally:
            os.killpg(child.pid, 9)


def test_records_that_were_overwritten_while_they_were_read_do_not_end_the_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, {"kmsg": ""})
    answers: list[bytes | OSError] = [
        BrokenPipeError(32, "Broken pipe"),
        b"6,1,1,-;NVRM: Xid (PCI:0000:41:00): 79, off the bus\n",
        BlockingIOError(11, "Try again"),
    ]

    def read(_: int, __: int) -> bytes:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(probe_log.os, "read", read)
    assert "Xid" in (probe_log._kmsg(tmp_path / "kmsg") or "")
