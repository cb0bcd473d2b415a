"""Judges Facts: one function a check, a Finding or None each. Pure.

Rules:
- A check says nothing about a fact that could not be read. Ids are stable: documentation and scripts use them.
- Several cards with one fault are one finding. One cause is one line: its effects depend on it (`linked`).
- A machine without NVIDIA's driver gets one line about that, and none about cards, links and the plan.
"""

from __future__ import annotations

from collections.abc import Iterable

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
    "Check",
    "admission_streams",
    "cpu_avx2",
    "disk_free",
    "engine_package",
    "judge",
    "kept",
    "lib_gomp",
    "lib_stdcxx",
    "linked",
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
    "vram.total": ("plan.fits",),
    "xid.history": ("gpu.lost", "nvml.load"),
    "mem.node": ("plan.host",),
    "mem.rounded": ("mem.node",),
    "mem.pin": ("mem.node", "mem.cgroup"),
    "bw.together": ("topo.pair",),
    "p2p": ("topo.pair",),
    "topo.text": ("topo.pair",),
    "nccl.smoke": ("iommu", "acs"),
    "pcie.replay": ("pcie.aer",),
}
"""Effect -> what may cause it, likeliest first; findings about a plan name the same bytes with more to say. Checks that
must look at cards to tell set `depends_on` themselves."""
NO_CARDS = ("gpu.count", "gpu.lost", "nvml.mismatch", "nvml.load")
"""Why cards are missing. What follows from that names `gpu.count`, whichever of them it is."""
_WITHOUT_DRIVER = frozenset({"nvml.load", "file.mode"})


def judge(facts: Facts, needs: Needs) -> tuple[Finding, ...]:
    """The findings about the box, for what is needed of it, in the order of CHECKS."""
    bare = facts.gpus is not None and facts.gpus.outcome is Outcome.NO_DRIVER
    checks = (check for check in CHECKS if not bare or check.id in _WITHOUT_DRIVER)
    return kept(*(check.judge(facts, needs) for check in checks if check.judge is not None))


def linked(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """All findings about a box and its plan, each with the cause that is there, if one is."""
    found = tuple(findings)
    present = {finding.id for finding in found}
    return tuple(finding.model_copy(update={"depends_on": _cause(finding, present)}) for finding in found)


def _cause(finding: Finding, present: set[str]) -> str | None:
    if finding.depends_on is None:
        named = CAUSES.get(finding.id, ())
    else:
        named = NO_CARDS if finding.depends_on == "gpu.count" else (finding.depends_on,)
    return next((name for name in named if name in present), None)
