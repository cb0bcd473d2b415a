"""What an engine with a plan is taken to do: what `[engine]` says outright, else what the plan validated. Pure."""

from __future__ import annotations

from appliance.engine.settings import DeclaredSettings, EngineSettings
from gateway.state import EngineProfile, Finding, Severity


def planned(settings: EngineSettings, own: EngineProfile, plan: EngineProfile | None) -> EngineProfile:
    """`own` (from `settings`) with the plan's figures wherever the configuration leaves its default."""
    if plan is None or not isinstance(settings, DeclaredSettings):
        return own
    said = {field for field in EngineProfile.model_fields if field in settings.model_fields_set}
    taken = plan.model_dump(exclude={*said, "demo"})
    return own.model_copy(update=taken)


def beyond_validated(streams: int, plan: EngineProfile | None) -> Finding | None:
    """`plan.cap`: more streams than the plan was seen to serve at its floor. `streams`: what is served."""
    if plan is None or streams <= plan.streams:
        return None
    return Finding(
        id="plan.cap",
        severity=Severity.WARN,
        title="More streams are served than the plan was validated for",
        observed=f"{streams} streams",
        required=f"{plan.streams} at {plan.floor_tok_per_s:g} tok/s each, by the plan {plan.name}",
        remedy="leave [engine] streams out, or measure and write what you saw into the plan's profile",
    )
