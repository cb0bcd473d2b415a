"""What a look at the box gave, before a start. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gateway.state import Cause, EngineProfile, Finding, PlanState, Severity


@dataclass(frozen=True, slots=True)
class Examined:
    """Everything that speaks for or against a start, the plan as it was checked, and what the engine is taken to do
    with it (None = what the adapter says). `model`: the folder of the checkpoint, "" = not known."""

    findings: tuple[Finding, ...]
    plan: PlanState | None = None
    profile: EngineProfile | None = None
    model: str = ""


def causes_of(findings: Iterable[Finding]) -> tuple[Cause, ...]:
    """What keeps the engine from a start: the failures, those first that follow from no other."""
    failed = [finding for finding in findings if finding.severity is Severity.FAIL]
    ids = {finding.id for finding in failed}
    failed.sort(key=lambda finding: finding.depends_on in ids)
    return tuple(Cause(id=f.id, title=f"{f.title}: {f.observed}", remedy=f.remedy) for f in failed)
