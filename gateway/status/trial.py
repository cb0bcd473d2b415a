"""The plan or environment on trial, as a finding. Pure.

Rule: while it lasts, what serves may change by itself; whoever looks at the page must not wonder why.
"""

from __future__ import annotations

from gateway.state import EngineState, Finding, Severity


def trial_findings(engine: EngineState) -> tuple[Finding, ...]:
    """`engine.trial`: streams end before another pair is tried, or it is on trial; none otherwise."""
    if engine.trial is None:
        return ()
    title = "A plan or engine environment is on trial"
    if engine.leaving:
        title = "Running streams end, and nothing new is sent: a plan or engine environment is tried next"
    return (
        Finding(
            id="engine.trial",
            severity=Severity.INFO,
            title=title,
            observed=engine.trial.shown,
            required="an engine that is ready for 5 minutes; else what served before returns by itself",
            remedy="wait; to try another one instead: moe-appliance plan use PLAN, moe-appliance engine use NAME",
        ),
    )
