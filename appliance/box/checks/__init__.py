"""Judges Facts: one function a check, a Finding or None each. Pure.

Rules:
- A check says nothing about a fact that could not be read. Ids are stable: documentation and scripts use them.
- Several cards with one fault are one finding. One cause is one line: its effects depend on it (`CAUSES`).
- A machine without NVIDIA's driver gets one line about that, and none about cards, links and the plan.
"""

from __future__ import annotations

from appliance.box.checks import cards, deep, demo, driver, kernel, link, memory, paths, plan
from appliance.box.checks.check import Check, seen_of, used_of
from appliance.box.checks.demo import (
    admission_streams,
    cpu_avx2,
    disk_free,
    engine_package,
    kept,
    lib_gomp,
    lib_stdcxx,
    listen_plain,
    mem_free,
)
from appliance.box.facts import Facts
from appliance.box.gpu import Outcome
from appliance.box.needs import Needs
from gateway.state import Finding

__all__ = [
    "CAUSES",
    "CHECKS",
    "DEMO_CHECKS",
    "IDS",
    "NO_CARDS",
    "PLAN_CAUSES",
    "Check",
    "admission_streams",
    "cpu_avx2",
    "disk_free",
    "engine_package",
    "judge",
    "kept",
    "lib_gomp",
    "lib_stdcxx",
    "listen_plain",
    "mem_free",
    "seen_of",
    "used_of",
]

CHECKS: tuple[Check, ...] = (
    *driver.CHECKS,
    *cards.CHECKS,
    *plan.CHECKS,
    *paths.CHECKS,
    *link.CHECKS,
    *deep.CHECKS,
    *memory.CHECKS,
    *kernel.CHECKS,
)
"""Those of `judge`, in the order of their findings."""
DEMO_CHECKS = demo.CHECKS
"""Those that the embedded engine's adapter, the daemon and preflight.py judge with figures of their own."""
IDS = frozenset(check.id for check in (*CHECKS, *DEMO_CHECKS))
CAUSES = {
    "gpu.count": ("gpu.lost",),
    "xid.history": ("gpu.lost", "nvml.load"),
    "mem.rounded": ("mem.node",),
    "mem.pin": ("mem.node", "mem.cgroup"),
    "bw.together": ("topo.pair",),
    "p2p": ("topo.pair",),
    "topo.text": ("topo.pair",),
    "nccl.smoke": ("iommu", "acs"),
    "pcie.replay": ("pcie.aer",),
}
"""Effect -> what may cause it, likeliest first. Checks that must look at cards to tell set `depends_on` themselves."""
NO_CARDS = ("gpu.lost", "gpu.count", "nvml.mismatch", "nvml.load")
"""Why cards are missing. What follows from that names `gpu.count`, whichever of them it is."""
PLAN_CAUSES = {"vram.total": "plan.fits", "mem.node": "plan.host"}
"""Effect -> a finding of appliance.plan, which is not judged here: it names the same bytes with more to say."""
_WITHOUT_DRIVER = frozenset({"nvml.load", "file.mode"})


def judge(facts: Facts, needs: Needs) -> tuple[Finding, ...]:
    """The findings about the box, for what is needed of it, in the order of CHECKS."""
    bare = facts.gpus is not None and facts.gpus.outcome is Outcome.NO_DRIVER
    checks = (check for check in CHECKS if not bare or check.id in _WITHOUT_DRIVER)
    found = kept(*(check.judge(facts, needs) for check in checks if check.judge is not None))
    present = {finding.id for finding in found}
    return tuple(_folded(finding, present) for finding in found)


def _folded(finding: Finding, present: set[str]) -> Finding:
    """With the cause that is there, if one is, or that another part may have found."""
    named = (finding.depends_on,) if finding.depends_on is not None else CAUSES.get(finding.id, ())
    cause = next((name for name in named if name in present), PLAN_CAUSES.get(finding.id))
    return finding.model_copy(update={"depends_on": cause})
