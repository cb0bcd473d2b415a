"""What the engine showed before it was called ready, as it is shown. Pure.

Rules: what was needed and failed is bad, what failed otherwise warns, and what nobody knows has no colour.
"""

from __future__ import annotations

from gateway.state import EngineState, Finding, ProbeResult, Severity, Verdict
from gateway.status.figures import Tone, View


class ProbeRow(View):
    """One thing that was asked. `verdict`: ok, failed or unknown; `needed`: without it the engine is degraded; `wanted`
    is told where it was not shown; `remedy` "" = nothing is to be done."""

    id: str
    title: str
    verdict: str
    tone: Tone
    observed: str
    wanted: str
    needed: bool
    remedy: str


def probe_rows(engine: EngineState) -> tuple[ProbeRow, ...]:
    """All of them, in the order in which they came."""
    return tuple(_row(result) for result in engine.probes)


def probe_findings(engine: EngineState) -> tuple[Finding, ...]:
    """One for each that failed: a warning where it was needed, and for information where it was not."""
    return tuple(
        Finding(
            id=f"engine.probe.{result.id}",
            severity=Severity.WARN if result.needed else Severity.INFO,
            title=f"The engine did not show what it should: {result.title}",
            observed=result.observed,
            required=result.wanted,
            remedy=result.remedy,
        )
        for result in engine.probes
        if result.verdict is Verdict.FAILED
    )


def _row(result: ProbeResult) -> ProbeRow:
    failed = result.verdict is Verdict.FAILED
    return ProbeRow(
        id=result.id,
        title=result.title,
        verdict=str(result.verdict),
        tone=Tone.OK if not failed else Tone.BAD if result.needed else Tone.WARN,
        observed=result.observed,
        wanted="" if result.verdict is Verdict.OK else result.wanted,
        needed=result.needed,
        remedy=result.remedy,
    )
