"""Checks of the ways between cards, and between cards and host memory: nodes, bridges, address translation. Pure."""

from __future__ import annotations

from appliance.box.checks.check import Check, gpus_of, used_of
from appliance.box.checks.deep import copies_are_fast
from appliance.box.facts import Facts, node_of
from appliance.box.host import Bridge
from appliance.box.needs import Needs
from appliance.box.topology_verdict import Grade, verdict
from appliance.printable import printable
from gateway.state import Finding, Severity

_IDENTITY = "identity"
_IOMMU_WORDS = ("iommu=pt", "iommu=off", "amd_iommu=off", "intel_iommu=off", "iommu.passthrough=1")


def topo_pair(facts: Facts, needs: Needs) -> Finding | None:
    """`topo.pair`: cards on two sockets were the slow host of the study."""
    report, gpus = facts.gpus, used_of(facts, needs)
    if report is None or report.relations is None or len(gpus) < 2:
        return None
    nodes = {gpu.index: node_of(gpu, facts.host) for gpu in gpus}
    seen = verdict(report.relations, nodes, [gpu.index for gpu in gpus])
    measured = facts.deep is not None and facts.deep.bandwidth is not None and len(facts.deep.bandwidth.together) > 1
    if seen.grade is Grade.GOOD or (seen.grade is not Grade.SLOW and measured):
        return None
    factor = (
        f"; on such a host each token took {seen.factor[0]} to {seen.factor[1]} times as long" if seen.factor else ""
    )
    return Finding(
        id="topo.pair",
        severity=Severity.WARN if seen.grade is Grade.SLOW else Severity.INFO,
        title="The cards are on different sockets"
        if seen.grade is Grade.SLOW
        else "Nobody can tell from here how fast the cards reach each other",
        observed=printable(seen.observed + factor),
        required="NODE, PHB, PXB, PIX or NV between the cards, all on 1 NUMA node",
        remedy=printable(seen.remedy),
    )


def topo_text(facts: Facts, needs: Needs) -> Finding | None:
    """`topo.text`: the two sources about the ways between cards differ."""
    if facts.gpus is None or not facts.gpus.topo_text_disagrees:
        return None
    return Finding(
        id="topo.text",
        severity=Severity.INFO,
        title="NVML and nvidia-smi differ about the ways between cards",
        observed=printable(facts.gpus.topo_text_disagrees),
        required="the same relation of each of the pairs; NVML's is used",
        remedy="nvidia-smi topo -m; moe-appliance preflight --deep   measures what matters",
    )


def p2p(facts: Facts, needs: Needs) -> Finding | None:
    """`p2p`: cards that cannot read each other go through host memory. That the driver says OK is no proof that bytes
    move: `nccl.smoke` is."""
    report = facts.gpus
    if report is None or not report.p2p or (facts.deep is not None and facts.deep.nccl_p2p):
        return None
    used = {gpu.index for gpu in used_of(facts, needs)}
    without = {pair: said for pair, said in report.p2p.items() if said != "OK" and used.issuperset(pair)}
    if not without:
        return None
    return Finding(
        id="p2p",
        severity=Severity.INFO,
        title="The driver says that cards cannot read each other's memory",
        observed=", ".join(f"gpu{a} and gpu{b}: {printable(said)}" for (a, b), said in sorted(without.items())),
        required="OK; and OK is no proof: moe-appliance preflight --deep moves bytes",
        remedy="NCCL_P2P_DISABLE=1 in the engine's environment, and --disable-custom-all-reduce for vLLM",
    )


def iommu(facts: Facts, needs: Needs) -> Finding | None:
    """`iommu`: translation slows copies down and makes two cards hang in NCCL."""
    host = facts.host
    if host is None or not gpus_of(facts) or not _translates(host.iommu_type, host.iommu_groups, host.cmdline):
        return None
    words = " ".join(word for word in host.cmdline if "iommu" in word) or "no iommu option"
    return Finding(
        id="iommu",
        severity=Severity.WARN,
        title="The IOMMU translates the cards' addresses",
        observed=f"{host.iommu_groups or 'unknown'} groups, type {printable(host.iommu_type or 'unknown')}; "
        f"kernel options: {printable(words)}",
        required="type identity for all cards (iommu=pt), or the IOMMU off",
        remedy="add iommu=pt to GRUB_CMDLINE_LINUX_DEFAULT in /etc/default/grub, then: update-grub && reboot",
    )


def _translates(kind: str | None, groups: int | None, cmdline: tuple[str, ...]) -> bool:
    if kind is not None:
        return kind != _IDENTITY
    return bool(groups) and not any(word in _IOMMU_WORDS for word in cmdline)


def acs(facts: Facts, needs: Needs) -> Finding | None:
    """`acs`: bridges that send card-to-card traffic up to the root make it slow, or hang it."""
    found = facts.host.acs if facts.host is not None else None
    if not found or len(gpus_of(facts)) < 2:
        return None
    return Finding(
        id="acs",
        severity=Severity.WARN,
        title="PCI bridges redirect traffic between cards",
        observed=", ".join(map(_bridge, found)),
        required=f"0 of {len(found)} bridges above cards with ReqRedir or SrcValid on",
        remedy="BIOS: ACS Enable off; until the next boot: "
        + "; ".join(f"setpci -s {printable(bridge.bus_id)} ECAP_ACS+6.w=0000" for bridge in found),
    )


def _bridge(bridge: Bridge) -> str:
    return f"{printable(bridge.bus_id)} ({'+ '.join(bridge.controls)}+)"


def uvm_hmm(facts: Facts, needs: Needs) -> Finding | None:
    """`uvm.hmm`: the driver's handling of ordinary memory may slow down what is pinned; copies that were measured to be
    fast say that it does not."""
    if facts.host is None or facts.host.hmm_disabled is not False or not gpus_of(facts):
        return None
    return Finding(
        id="uvm.hmm",
        severity=Severity.INFO if copies_are_fast(facts, needs) else Severity.WARN,
        title="The driver maps ordinary host memory into the cards (HMM)",
        observed="nvidia_uvm: uvm_disable_hmm = N",
        required="uvm_disable_hmm = Y (1)",
        remedy="echo 'options nvidia_uvm uvm_disable_hmm=1' > /etc/modprobe.d/moe-appliance.conf; then "
        "update-initramfs -u && reboot",
    )


CHECKS = (
    Check(
        "topo.pair",
        "WARN for SYS between nodes; INFO when it cannot be told",
        "NVML's common ancestor of each pair, and each card's NUMA node",
        "SYS and different nodes; SYS within one node only until copies were measured",
        "slots of one socket, or another host",
        "the study's pods 1 and 2: 1.17 to 1.51 times as slow; NVIDIA/go-gpuallocator#17",
        topo_pair,
    ),
    Check(
        "topo.text",
        "INFO",
        "`nvidia-smi topo -m` against NVML",
        "a pair that they call differently",
        "measure with --deep",
        "our own rule: a second source",
        topo_text,
    ),
    Check(
        "p2p",
        "INFO",
        "NVML's P2P read status of each pair; OK is no proof that bytes move, `nccl.smoke` is",
        "anything but OK, unless NCCL ran with peer access",
        "NCCL_P2P_DISABLE=1",
        "noonghunna/club-3090#873, #1125, #1229",
        p2p,
    ),
    Check(
        "iommu",
        "WARN",
        "type of the first card's IOMMU group, number of groups, kernel options",
        "translating",
        "iommu=pt",
        "vllm-project/vllm#33041, NVIDIA/nccl#257",
        iommu,
    ),
    Check(
        "acs",
        "WARN",
        "access control of the bridges above the cards, from PCI configuration space (needs root)",
        "SrcValid, ReqRedir, CmpltRedir or UpstreamFwd on",
        "BIOS: ACS off",
        "NVIDIA/nccl#2079, #606",
        acs,
    ),
    Check(
        "uvm.hmm",
        "WARN; INFO once `--deep` measured fast copies",
        "/sys/module/nvidia_uvm/parameters/uvm_disable_hmm",
        "N",
        "module option uvm_disable_hmm=1",
        "local-inference-lab/rtx6kpro, hardware/pcie-bandwidth.md",
        uvm_hmm,
    ),
)
