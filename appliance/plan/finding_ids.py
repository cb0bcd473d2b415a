"""The ids of the findings about plans. Pure. A test compares them with what the checks use."""

from __future__ import annotations

PLAN_IDS = frozenset(
    {
        "plan.bits",
        "plan.cap",
        "plan.checkpoint",
        "plan.digest",
        "plan.engram",
        "plan.file",
        "plan.fits",
        "plan.geometry",
        "plan.host",
        "plan.model",
        "plan.resident",
        "plan.stale",
        "plan.tensors",
        "plan.tp",
        "plan.unbound",
        "plan.unchecked",
    }
)
