"""Checks of what `preflight --deep` measured. Pure.

The link's width and generation under load are judged in link.py.
"""

from __future__ import annotations

from collections.abc import Iterable

from appliance.box.checks.check import Check, used_of
from appliance.box.checks.link import narrow_cards, slow_cards
from appliance.box.facts import Facts
from appliance.box.gpu import Bandwidth
from appliance.box.needs import Needs
from appliance.printable import printable
from gateway.state import Finding, Severity

COPY_GB_S = 45.0
COPY_LEAST_GB_S = 20.0
"""Gen5 x16 gives 53 to 57 on the card's own node, 39 to 51 across sockets; x8 about 27. Source:
local-inference-lab/rtx6kpro, hardware/pcie-bandwidth.md."""
TOGETHER_SHARE = 0.80
"""Of the sum of the cards alone. Source: our own rule, after the first pod's slow host."""
_WITHOUT_PEERS = (
    "NCCL_P2P_DISABLE=1 in the engine's environment and --disable-custom-all-reduce; then iommu=pt, and ACS off in the "
    "BIOS"
)


def copies_are_fast(facts: Facts, needs: Needs) -> bool:
    """Whether copies to each card that is used were measured, and are as fast as they should be."""
    measured = facts.deep.bandwidth.alone if facts.deep is not None and facts.deep.bandwidth is not None else {}
    return all(measured.get(gpu.index, 0.0) >= COPY_GB_S for gpu in used_of(facts, needs))


def bw_h2d(facts: Facts, needs: Needs) -> Finding | None:
    """`bw.h2d`: what a visit to an expert in host RAM costs."""
    deep = facts.deep
    if deep is None:
        return None
    used = {gpu.index for gpu in used_of(facts, needs)}
    measured = deep.bandwidth.alone if deep.bandwidth is not None else {}
    alone = {index: rate for index, rate in measured.items() if index in used}
    slow = sorted(index for index, rate in alone.items() if rate < COPY_GB_S)
    if not slow and not deep.bandwidth_error:
        return None
    rates = ", ".join(f"gpu{index} {alone[index]:.1f} GB/s" for index in slow)
    failed = f"not measured: {printable(deep.bandwidth_error)}" if deep.bandwidth_error else ""
    return Finding(
        id="bw.h2d",
        severity=Severity.FAIL if any(alone[index] < COPY_LEAST_GB_S for index in slow) else Severity.WARN,
        title="Copies from host memory are slow" if slow else "Copies from host memory could not be measured",
        observed="; ".join(part for part in (rates, failed) if part),
        required=f"{COPY_GB_S:.0f} GB/s for each card alone",
        remedy="moe-appliance preflight --deep   once more, with nothing else on the machine; then look at the slot, "
        "its PCIe settings in the BIOS, the NUMA node, iommu=pt",
        depends_on=_cause(facts, needs, slow),
    )


def _cause(facts: Facts, needs: Needs, slow: Iterable[int]) -> str | None:
    """The fault of the link that explains all slow cards."""
    wanted = set(slow)
    for check, cards in (("pcie.width", narrow_cards(facts, needs)), ("pcie.gen", slow_cards(facts, needs))):
        if wanted and wanted <= {gpu.index for gpu in cards}:
            return check
    return None


def bw_together(facts: Facts, needs: Needs) -> Finding | None:
    """`bw.together`: all cards at once share a link, a socket's memory, or the way between sockets."""
    rates = facts.deep.bandwidth if facts.deep is not None else None
    if rates is None or len(rates.together) < 2:
        return None
    together, alone = sum(rates.together.values()), _alone(rates)
    if alone <= 0 or together >= TOGETHER_SHARE * alone:
        return None
    return Finding(
        id="bw.together",
        severity=Severity.WARN,
        title="The cards slow each other down",
        observed=f"{together:.1f} GB/s together, {together / alone:.0%} of {alone:.1f} GB/s alone",
        required=f"{TOGETHER_SHARE:.0%} of the sum at least",
        remedy="cards in slots of their own root ports, on the NUMA node that their rank is bound to (--numa-bind)",
    )


def _alone(rates: Bandwidth) -> float:
    return sum(rates.alone.get(index, 0.0) for index in rates.together)


def mem_pin(facts: Facts, needs: Needs) -> Finding | None:
    """`mem.pin`: a pin that fails poisons later ones of the same process."""
    if facts.deep is None or not facts.deep.pin_error:
        return None
    return Finding(
        id="mem.pin",
        severity=Severity.WARN,
        title="Host memory could not be pinned",
        observed=printable(facts.deep.pin_error),
        required="1 GiB in one call of cudaHostAlloc",
        remedy="stop other programs that pin memory, then reboot; journalctl -k -b | grep -i nvrm   says more",
    )


def nccl_smoke(facts: Facts, needs: Needs) -> Finding | None:
    """`nccl.smoke`: two ranks that add up a buffer; the one proof that cards can talk to each other."""
    deep = facts.deep
    if deep is None:
        return None
    if deep.nccl_error:
        return Finding(
            id="nccl.smoke",
            severity=Severity.FAIL,
            title="The cards cannot talk to each other through NCCL",
            observed=printable(deep.nccl_error),
            required="an all-reduce with right sums within 60 s",
            remedy=_WITHOUT_PEERS,
        )
    if deep.nccl_p2p is False and deep.nccl_p2p_error:
        return Finding(
            id="nccl.smoke",
            severity=Severity.WARN,
            title="NCCL works only without peer access",
            observed=f"with peer access: {printable(deep.nccl_p2p_error)}; without: good",
            required="an all-reduce with right sums within 60 s, with peer access",
            remedy=_WITHOUT_PEERS,
        )
    return None


CHECKS = (
    Check(
        "bw.h2d",
        "WARN; FAIL below 20 GB/s",
        "pinned copies to each card alone (`--deep`)",
        "less than 45 GB/s, or not measurable",
        "slot, BIOS, NUMA node, IOMMU",
        "local-inference-lab/rtx6kpro, hardware/pcie-bandwidth.md",
        bw_h2d,
    ),
    Check(
        "bw.together",
        "WARN",
        "pinned copies to all cards at once (`--deep`)",
        "less than 80 % of the sum alone",
        "slots of their own root ports; ranks bound to their nodes",
        "our own rule, after the first pod's slow host",
        bw_together,
    ),
    Check(
        "mem.pin",
        "WARN",
        "1 GiB through cudaHostAlloc in a child process (`--deep`)",
        "an error",
        "reboot; other programs that pin",
        "quda#1065",
        mem_pin,
    ),
    Check(
        "nccl.smoke",
        "FAIL; WARN when it works without peer access",
        "an all-reduce with one process a card, in the engine's environment, 60 s (`--deep`)",
        "no end, an error, or wrong sums",
        "NCCL_P2P_DISABLE=1 and --disable-custom-all-reduce, then IOMMU and ACS",
        "NVIDIA/nccl#1999, local-inference-lab/rtx6kpro#15, vllm-project/vllm#30317",
        nccl_smoke,
    ),
)
