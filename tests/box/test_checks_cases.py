"""appliance/box/checks: each check on a box with that one fault, and on its limit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from appliance.box.checks import judge, linked
from appliance.box.checks.driver import EMBEDDED_LINES
from appliance.box.facts import Counters, Facts
from appliance.box.gpu import Bandwidth, GpuProcess, GpuReport, Link, Outcome, Relation
from appliance.box.host import Bridge, PciErrors, Xid
from appliance.box.needs import Needs
from appliance.units import GIB
from gateway.state import Finding, Severity
from tests.box.boxes import bar, deep, facts, gpu, host, node, report

TWO = Needs(gpus=2)
FAIL, WARN, INFO = Severity.FAIL, Severity.WARN, Severity.INFO


def host_with(**changes: Any) -> Facts:
    return facts(host=host(**changes))


def second(**changes: Any) -> Facts:
    """Two cards, the second with a fault."""
    return facts(gpus=report(gpu(0), gpu(1, **changes)))


def both(**changes: Any) -> Facts:
    return facts(gpus=report(gpu(0, **changes), gpu(1, **changes)))


def link(**changes: Any) -> Link:
    return replace(gpu(0).link, **changes)


def rates(**changes: Any) -> Facts:
    bandwidth = deep().bandwidth
    assert bandwidth is not None
    return facts(deep=deep(bandwidth=replace(bandwidth, **changes)))


def failed(outcome: Outcome, **changes: Any) -> GpuReport:
    return GpuReport(outcome, **changes)


HELD = GpuProcess(4711, 2 * GIB, "VLLM::Worker")
SMALL = GpuProcess(4712, 300 * 1024**2, "python3")
DISPLAY = GpuProcess(900, 4 * 1024**2, "Xorg")
CASES: dict[str, tuple[Facts, Needs, str, Severity, str]] = {
    "hung": (facts(gpus=failed(Outcome.HUNG, error="no answer within 2 s")), TWO, "nvml.load", FAIL, "no answer"),
    "failed": (facts(gpus=failed(Outcome.FAILED, error="Unknown Error")), TWO, "nvml.load", FAIL, "Unknown Error"),
    "no library": (facts(gpus=failed(Outcome.NO_LIBRARY, module="580.1")), TWO, "nvml.load", FAIL, "compute-580"),
    "not loaded": (facts(gpus=failed(Outcome.NOT_LOADED)), TWO, "nvml.load", FAIL, "modprobe nvidia"),
    "mismatch": (facts(gpus=failed(Outcome.MISMATCH, driver="2", module="1")), TWO, "nvml.mismatch", FAIL, "reboot"),
    "versions": (facts(gpus=report(driver="580.2", module="580.1")), TWO, "nvml.mismatch", FAIL, "580.2"),
    "node shut": (
        host_with(device_nodes={"/dev/nvidia0": "Operation not permitted", "/dev/nvidiactl": ""}),
        TWO,
        "dev.nodes",
        FAIL,
        "/dev/nvidia0: Operation not permitted",
    ),
    "lost": (facts(gpus=report(gpu(0), lost=("card 1: GPU is lost",))), Needs(), "gpu.lost", WARN, "GPU is lost"),
    "one": (facts(gpus=report(gpu(0))), TWO, "gpu.count", FAIL, "1 card answers: gpu0 (0000:41:00.0)"),
    "none": (facts(gpus=report().__class__(Outcome.OK)), TWO, "gpu.count", FAIL, "0 cards answer: none"),
    "three": (facts(gpus=report(gpu(0), gpu(1), gpu(2))), TWO, "gpu.count", INFO, "CUDA_VISIBLE_DEVICES=0,1"),
    "name": (facts(), Needs(gpu_names=("RTX 6000 Ada",)), "gpu.model", WARN, "RTX PRO 6000"),
    "capability": (both(capability=(9, 0)), Needs(capability=(12, 0)), "gpu.model", WARN, "capability 9.0"),
    "mixed": (second(name="NVIDIA L40S"), TWO, "gpu.model", WARN, "not of one kind"),
    "mig": (second(mig=(True, True)), TWO, "mig.off", FAIL, "gpu1 MIG on"),
    "mig later": (second(mig=(False, True)), TWO, "mig.off", FAIL, "gpu1 MIG off, on after a reset"),
    "confidential": (facts(gpus=report(confidential=True)), TWO, "cc.off", WARN, "SEV-SNP"),
    "held": (second(used_bytes=2 * GIB, processes=(HELD,)), TWO, "vram.free", FAIL, "pid 4711 (VLLM::Worker): 2.0 GiB"),
    "held unseen": (second(used_bytes=2 * GIB), TWO, "vram.free", FAIL, "nobody visible"),
    "small": (second(used_bytes=300 * 1024**2, processes=(SMALL,)), TWO, "vram.free", WARN, "kill 4712"),
    "ecc": (second(ecc=False), TWO, "ecc.mode", INFO, "gpu1 ECC off"),
    "remap pending": (second(remap_pending=True), TWO, "gpu.remap", WARN, "--gpu-reset -i 1"),
    "remap failed": (second(remap_failed=True), TWO, "gpu.remap", FAIL, "exchanged: gpu1"),
    "power": (second(power_limit_w=300.0), TWO, "power", INFO, "gpu1 300 W"),
    "throttle": (
        second(throttle=("power cap", "thermal (hardware)")),
        TWO,
        "throttle",
        WARN,
        "gpu1 thermal (hardware)",
    ),
    "persistence": (both(persistence=False), TWO, "persistence", WARN, "gpu0 persistence off, gpu1 persistence off"),
    "vram": (facts(), Needs(bars=(bar("gpu0", 72), bar("gpu1", 102.1))), "vram.total", FAIL, "7.1 GiB too few"),
    "node memory": (facts(), Needs(bars=(bar("node0", 490, 20),)), "mem.node", FAIL, "node0 500.0 GiB free"),
    "kernel's margin": (facts(), Needs(bars=(bar("node0", 300, 184.1),)), "mem.node", FAIL, "16.0 GiB spare"),
    "tenth": (facts(), Needs(bars=(bar("node0", 100, 349),)), "mem.node", WARN, "51.2 GiB spare"),
    "a third of what is pinned": (facts(), Needs(bars=(bar("node0", 400),)), "mem.node", WARN, "120.0 GiB spare"),
    "all nodes": (facts(), Needs(bars=(bar("host", 600),)), "mem.node", FAIL, "host 500.0 GiB"),
    "rounded": (facts(), Needs(bars=(bar("node0", 250, 10, 300),)), "mem.rounded", WARN, "560.0 GiB rounded up"),
    "cgroup": (host_with(cgroup_bytes=64 * GIB), Needs(bars=(bar("host", 50),)), "mem.cgroup", FAIL, "limit 64.0 GiB"),
    "region": (facts(), Needs(largest_region_bytes=512 * GIB), "mem.region", FAIL, "512.0 GiB in one piece"),
    "sockets": (
        facts(gpus=report(gpu(0), gpu(1, numa_node=1), relations={(0, 1): Relation.SYS})),
        TWO,
        "topo.pair",
        WARN,
        "1.17 to 1.51 times",
    ),
    "one socket, SYS": (facts(gpus=report(relations={(0, 1): Relation.SYS})), TWO, "topo.pair", INFO, "--deep"),
    "topo text": (facts(gpus=report(topo_text_disagrees="GPU0 and GPU1")), TWO, "topo.text", INFO, "GPU0 and GPU1"),
    "p2p": (facts(gpus=report(p2p={(0, 1): "NS"})), TWO, "p2p", INFO, "gpu0 and gpu1: NS"),
    "x8": (second(link=link(width_now=8)), TWO, "pcie.width", WARN, "gpu1 (0000:81:00.0) x8"),
    "x4": (second(link=link(width_now=4, width_max=4)), TWO, "pcie.width", FAIL, "a slot with 16 lanes"),
    "gen1 idle": (both(link=link(gen_now=1)), TWO, "pcie.gen", INFO, "Gen1 now"),
    "gen3 under load": (rates(gen={0: 5, 1: 3}), TWO, "pcie.gen", WARN, "gpu1 (0000:81:00.0) Gen3 while copying"),
    "replays": (
        replace(second(link=link(replays=9)), first=Counters(0.0, {"0000:41:00.0": 0, "0000:81:00.0": 4})),
        TWO,
        "pcie.replay",
        WARN,
        "5 more replays",
    ),
    "corrected errors": (
        replace(host_with(aer=(PciErrors("0000:40:01.1", 9, 0),)), first=Counters(0.0, {}, {"0000:40:01.1": 2})),
        TWO,
        "pcie.aer",
        WARN,
        "7 more corrected",
    ),
    "fatal error": (host_with(aer=(PciErrors("0000:40:01.1", 0, 1),)), TWO, "pcie.aer", WARN, "1 fatal"),
    "bar1": (second(bar1_bytes=256 * 1024**2), TWO, "bar1", WARN, "Above 4G"),
    "iommu": (host_with(iommu_type="DMA-FQ", cmdline=("amd_iommu=on",)), TWO, "iommu", WARN, "amd_iommu=on"),
    "iommu by groups": (host_with(iommu_type=None, cmdline=()), TWO, "iommu", WARN, "no iommu option"),
    "acs": (host_with(acs=(Bridge("0000:40:01.1", ("ReqRedir",)),)), TWO, "acs", WARN, "setpci -s 0000:40:01.1"),
    "hmm": (host_with(hmm_disabled=False), TWO, "uvm.hmm", WARN, "uvm_disable_hmm=1"),
    "slow copies": (rates(alone={0: 55.0, 1: 44.9}), TWO, "bw.h2d", WARN, "gpu1 44.9 GB/s"),
    "very slow copies": (rates(alone={0: 55.0, 1: 19.9}), TWO, "bw.h2d", FAIL, "gpu1 19.9 GB/s"),
    "no copies": (facts(deep=deep(bandwidth=None, bandwidth_error="CUDA 999")), TWO, "bw.h2d", WARN, "CUDA 999"),
    "together": (rates(together={0: 40.0, 1: 40.0}), TWO, "bw.together", WARN, "73% of 109.0 GB/s"),
    "pin": (facts(deep=deep(pin_error="out of memory")), TWO, "mem.pin", WARN, "out of memory"),
    "nccl": (facts(deep=deep(nccl_error="no end after 60 s")), TWO, "nccl.smoke", FAIL, "NCCL_P2P_DISABLE=1"),
    "nccl without peers": (
        facts(deep=deep(nccl_p2p=False, nccl_p2p_error="no end after 60 s")),
        TWO,
        "nccl.smoke",
        WARN,
        "without: good",
    ),
    "memlock": (host_with(memlock_bytes=8 * 1024**2), TWO, "memlock", INFO, "8192 KiB"),
    "shm": (host_with(shm_free_bytes=64 * 1024**2), TWO, "shm", WARN, "0.1 GiB free"),
    "thp": (host_with(thp="never"), TWO, "thp", INFO, "never"),
    "swap": (host_with(swap_used_bytes=3 * GIB), TWO, "swap", INFO, "3.0 GiB used"),
    "overcommit": (host_with(overcommit=2), TWO, "overcommit", INFO, "= 2"),
    "maps": (host_with(max_map_count=65_530), TWO, "max_map_count", WARN, "65530"),
    "xid": (
        host_with(xids=(Xid(79, "0000:41:00", "NVRM: Xid (PCI:0000:41:00): 79, fallen off"), Xid(13, "x", "x"))),
        TWO,
        "xid.history",
        WARN,
        "0000:41:00: Xid 79, the card fell off the bus (79, fallen off)",
    ),
    "numactl": (host_with(numactl=False, nodes=(node(0), node(1))), TWO, "numactl", WARN, "2 NUMA nodes"),
    "shim": (host_with(preloads=("/usr/lib/libvgpu.so",)), TWO, "ld.preload", WARN, "libvgpu.so"),
    "preload": (host_with(preloads=("/usr/lib/libjemalloc.so.2",)), TWO, "ld.preload", INFO, "libjemalloc"),
    "readable": (host_with(secret_modes={"/x/seats.toml": 0o644}), TWO, "file.mode", WARN, "mode 0644"),
    "writable": (host_with(secret_modes={"/x/seats.toml": 0o666}), TWO, "file.mode", FAIL, "chmod o= /x/seats.toml"),
}


def said(finding: Finding) -> str:
    return " | ".join((finding.title, finding.observed, finding.required, finding.remedy))


@pytest.mark.parametrize("case", CASES)
def test_one_fault_is_one_finding(case: str) -> None:
    box, needs, id_, severity, fragment = CASES[case]
    (found,) = judge(box, needs)
    assert (found.id, found.severity) == (id_, severity)
    assert fragment in said(found)


def test_a_good_box_has_no_findings_also_after_it_was_measured() -> None:
    needs = Needs(gpus=2, gpu_names=("RTX PRO 6000 Blackwell",), capability=(12, 0), plan="two")
    plan = replace(needs, bars=(bar("gpu0", 72.4), bar("gpu1", 72.4), bar("node0", 160, 40)), largest_region_bytes=GIB)
    assert judge(facts(), needs) == ()
    assert judge(facts(deep=deep()), plan) == ()


GOOD = {
    "a display server holds little": second(used_bytes=4 * 1024**2, processes=(DISPLAY,)),
    "a power cap is ordinary": second(throttle=("power cap", "idle")),
    "limits are met exactly": rates(alone={0: 45.0, 1: 45.0}, together={0: 36.0, 1: 36.0}),
    "an idle Gen1 link was Gen5 under load": replace(rates(), gpus=report(gpu(0, link=link(gen_now=1)), gpu(1))),
    "SYS on one node was measured": replace(rates(), gpus=report(relations={(0, 1): Relation.SYS})),
    "cards without P2P status ran NCCL with peers": facts(gpus=report(p2p={(0, 1): "NS"}), deep=deep()),
    "counters that do not grow": replace(second(link=link(replays=900)), first=Counters(0.0, {"0000:81:00.0": 900})),
    "a program's own Xid": host_with(xids=(Xid(31, "0000:41:00", "x"),)),
    "numactl on one node": host_with(numactl=False),
    "the IOMMU passes through": host_with(iommu_type=None, cmdline=("iommu=pt",)),
    "no IOMMU": host_with(iommu_type=None, iommu_groups=0, cmdline=()),
    "parts of deep were skipped": facts(deep=deep(bandwidth=None, bandwidth_skipped="busy", nccl_skipped="busy")),
}


@pytest.mark.parametrize("case", GOOD)
def test_what_is_no_fault_is_not_told(case: str) -> None:
    assert judge(GOOD[case], TWO) == ()


def test_only_the_ways_between_the_cards_that_are_used_count() -> None:
    cards = (gpu(0), gpu(1), gpu(2, numa_node=1))
    far = {(0, 1): Relation.NODE, (0, 2): Relation.SYS, (1, 2): Relation.SYS}
    box = facts(gpus=report(*cards, relations=far, p2p={(0, 1): "OK", (0, 2): "NS", (1, 2): "NS"}))
    assert [finding.id for finding in judge(box, TWO)] == ["gpu.count"]
    assert [finding.id for finding in judge(box, Needs(gpus=3))] == ["topo.pair", "p2p"]
    assert [finding.id for finding in judge(box, Needs())] == ["topo.pair", "p2p"]


def test_what_the_driver_keeps_counts_once() -> None:
    """The card has 95.6 GiB, of which the driver keeps 0.6: the plan's own line for it is not added to that."""
    planned = Needs(bars=(bar("gpu0", 94.9, driver_gib=0.61),))
    unplanned = Needs(bars=(bar("gpu0", 95.3),))
    assert judge(facts(), planned) == ()
    assert [finding.id for finding in judge(facts(), unplanned)] == ["vram.total"]


def test_what_our_own_engine_holds_is_not_held_against_the_box() -> None:
    loaded = second(used_bytes=80 * GIB, processes=(replace(HELD, used_bytes=80 * GIB),))
    plan = Needs(gpus=2, bars=(bar("node0", 510),), own_pids=frozenset({4711}))
    assert judge(loaded, plan) == ()
    unknown = second(used_bytes=80 * GIB, processes=(replace(HELD, used_bytes=None),))
    assert judge(unknown, plan) == ()
    other = second(used_bytes=83 * GIB, processes=(replace(HELD, used_bytes=80 * GIB), replace(HELD, pid=5)))
    assert [finding.id for finding in judge(other, plan)] == ["vram.free"]


def test_huge_pages_that_would_help_are_given_back_by_a_command() -> None:
    box = host_with(nodes=(node(free_bytes=100 * GIB, hugepages_bytes=300 * GIB),))
    (found,) = judge(box, Needs(bars=(bar("node0", 150),)))
    assert found.remedy.startswith("sysctl -w vm.nr_hugepages=0   gives back 300.0 GiB")


def test_the_kernels_margin_is_shared_by_the_nodes() -> None:
    box = host_with(nodes=(node(0), node(1)))
    needs = Needs(bars=(bar("node0", 300, 193), bar("node1", 100)))
    (found,) = judge(box, needs)
    assert found.severity is FAIL
    assert found.required == "node0 493.0 GiB at the load's peak and 8.0 GiB spare"


def test_no_driver_and_a_wish_for_cards_is_exactly_one_finding_with_the_two_lines_to_type() -> None:
    bad_host = host(max_map_count=65_530, memlock_bytes=0, hmm_disabled=False, swap_used_bytes=GIB)
    box = facts(gpus=GpuReport(Outcome.NO_DRIVER), host=bad_host)
    (found,) = judge(box, Needs(gpus=2, bars=(bar("gpu0", 999), bar("node0", 999))))
    assert (found.id, found.severity) == ("nvml.load", FAIL)
    assert found.remedy.splitlines()[1:] == ["[engine]", 'kind = "embedded"'] == EMBEDDED_LINES.splitlines()
    (note,) = judge(box, Needs())
    assert (note.id, note.severity) == ("nvml.load", INFO)
    assert note.title == "There is no NVIDIA driver"


def caused(box: Facts, needs: Needs = TWO) -> dict[str, str | None]:
    return {finding.id: finding.depends_on for finding in linked(judge(box, needs))}


def test_one_cause_is_one_line() -> None:
    lost = report(gpu(0), lost=("card 1: GPU is lost",))
    fell = (Xid(79, "0000:81:00", "NVRM: Xid (PCI:0000:81:00): 79, x"),)
    assert caused(facts(gpus=lost, host=host(xids=fell))) == {
        "gpu.lost": None,
        "gpu.count": "gpu.lost",
        "xid.history": "gpu.lost",
    }
    shut = host(device_nodes={"/dev/nvidiactl": "Permission denied"})
    missing = host(device_nodes={"/dev/nvidiactl": "No such file or directory"})
    broken = GpuReport(Outcome.FAILED, error="Insufficient Permissions")
    assert caused(facts(gpus=broken, host=shut)) == {"nvml.load": "dev.nodes", "dev.nodes": None}
    assert caused(facts(gpus=broken, host=missing)) == {"nvml.load": None, "dev.nodes": "nvml.load"}
    assert caused(facts(host=missing)) == {"dev.nodes": None}


def test_slow_copies_follow_from_a_link_only_when_it_explains_every_slow_card() -> None:
    narrow = report(gpu(0), gpu(1, link=link(width_now=8)))
    slow_one = Bandwidth(alone={0: 55.0, 1: 26.0}, together={}, gen={0: 5, 1: 5}, width={0: 16, 1: 8})
    slow_both = replace(slow_one, alone={0: 30.0, 1: 26.0})
    assert caused(facts(gpus=narrow, deep=deep(bandwidth=slow_one)))["bw.h2d"] == "pcie.width"
    assert caused(facts(gpus=narrow, deep=deep(bandwidth=slow_both)))["bw.h2d"] is None
    low = replace(slow_one, gen={0: 5, 1: 3}, width={0: 16, 1: 16})
    assert caused(facts(deep=deep(bandwidth=low)))["bw.h2d"] == "pcie.gen"


def test_nccl_and_shared_copies_name_what_may_be_behind_them() -> None:
    hang = deep(nccl_error="no end")
    assert caused(facts(host=host(iommu_type="DMA"), deep=hang)) == {"iommu": None, "nccl.smoke": "iommu"}
    bridge = (Bridge("0000:40:01.1", ("ReqRedir",)),)
    assert caused(facts(host=host(acs=bridge), deep=hang)) == {"acs": None, "nccl.smoke": "acs"}
    far = report(gpu(0), gpu(1, numa_node=1), relations={(0, 1): Relation.SYS})
    shared = deep(bandwidth=Bandwidth(alone={0: 50.0, 1: 50.0}, together={0: 30.0, 1: 30.0}, gen={}, width={}))
    assert caused(facts(gpus=far, deep=shared)) == {"topo.pair": None, "bw.together": "topo.pair"}


def test_what_the_plans_own_findings_say_is_named_as_the_cause() -> None:
    found = judge(facts(), Needs(bars=(bar("gpu0", 200), bar("node0", 600, rounded_gib=1))))
    of_plan = [found[0].model_copy(update={"id": id_}) for id_ in ("plan.fits", "plan.host")]
    assert {finding.id: finding.depends_on for finding in linked((*found, *of_plan))} == {
        "vram.total": "plan.fits",
        "mem.node": "plan.host",
        "mem.rounded": "mem.node",
        "plan.fits": None,
        "plan.host": None,
    }
    assert {finding.id: finding.depends_on for finding in linked(found)} == {
        "vram.total": None,
        "mem.node": None,
        "mem.rounded": "mem.node",
    }, "a plan that fits has caused nothing"


def test_words_of_others_reach_no_terminal_as_they_are() -> None:
    evil = "\x1b[2Jboom\u202e"
    box = facts(
        gpus=report(gpu(0, name=evil), gpu(1, name="b", used_bytes=2 * GIB, processes=(GpuProcess(1, GIB, evil),))),
        host=host(
            xids=(Xid(79, evil, evil),),
            preloads=(f"/libcuda{evil}",),
            device_nodes={f"/dev/{evil}": evil},
            iommu_type=evil,
            cmdline=(f"iommu{evil}",),
            aer=(PciErrors(evil, 0, 1),),
        ),
    )
    found = judge(box, Needs(gpus=2, gpu_names=(evil,), plan=evil))
    assert len(found) >= 6
    assert all(char not in said(finding) for finding in found for char in ("\x1b", "\u202e"))
