"""What a look at the box gave, before a start. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.state import EngineProfile, Finding, PlanState


@dataclass(frozen=True, slots=True)
class Examined:
    """Everything that speaks for or against a start, the plan as it was checked, and what the engine is taken to do
    with it (None = what the adapter says)."""

    findings: tuple[Finding, ...]
    plan: PlanState | None = None
    profile: EngineProfile | None = None
