"""The KV tier in host RAM: why it is off, what is said of it, whether the box has the memory for it. Pure.

Rules:
- What was not proven is not used: a tier that gives back other bytes would give people other answers, silently.
- A tier that is off costs a load of the model to find out, so that the reason is kept over restarts of the daemon, for
  as long as the configuration stays. `moe-appliance restart` tries again.
"""

from __future__ import annotations

from appliance.engine.adapter import HostTier
from appliance.units import GIB, gib, size
from gateway.state import Cause, Finding, Severity

ID = "engine.host_kv"
AGAIN = "moe-appliance restart"
OFF = "host_kv_gib = 0"
SEE_ARGS = 'with kind = "command" see that host_kv_args are what your engine wants'
SEE_LOG = "moe-appliance status (shows the engine's last log lines)"
PINNED_PERCENT = 30
"""Beside pinned memory as much of it should stay free. Source: plan/fit_checks.py."""
EXACT = "VLLM_USE_SIMPLE_KV_OFFLOAD"
"""With it vLLM pins the size itself; else each layer's part as the next power of two, up to twice as much. Source:
measured, vLLM 0.26 (docs/measurements.md)."""
TOLERANCE_BYTES = 1 << 20
"""GiB in appliance.toml are not whole bytes."""


def off(why: str, remedy: str) -> Cause:
    """Why the tier is not used: a sentence without its subject, and what would change it."""
    return Cause(id=ID, title=why, remedy=remedy)


def blamed(cause: Cause) -> Cause:
    """Why the tier is not used after the engine ended with it."""
    if cause.id == ID:
        return cause
    return off(f"the engine ended with it: {cause.title}", f"{cause.remedy}; {SEE_ARGS}")


def off_finding(tier: HostTier, cause: Cause) -> Finding:
    """`engine.host_kv`: the engine runs without the tier that the configuration asks for."""
    return Finding(
        id=ID,
        severity=Severity.WARN,
        title=f"The KV tier of {gib(tier.bytes)} in host RAM is off",
        observed=cause.title,
        required="at warm-up a prompt that comes back from host RAM, with the same answer",
        remedy=f"{cause.remedy}; then: {AGAIN}   or, to do without: [engine] {OFF}",
    )


def fits_memory(tier: HostTier, available_bytes: int | None) -> Finding | None:
    """`mem.host_kv`, where no plan counts the node's memory: the tier is pinned and never given back.
    `available_bytes`: what a new process may take; None = not known."""
    if available_bytes is None:
        return None
    percent = 100 * tier.most_bytes // tier.bytes + PINNED_PERCENT
    if tier.bytes * percent // 100 <= available_bytes:
        return None
    short = tier.bytes > available_bytes
    rounded = f", {gib(tier.most_bytes)} if the engine pins powers of two," if tier.most_bytes > tier.bytes else ""
    exact = f', or: env = {{ {EXACT} = "1" }}' if tier.most_bytes > tier.bytes else ""
    return Finding(
        id="mem.host_kv",
        severity=Severity.FAIL if short else Severity.WARN,
        title="The KV tier does not fit into host RAM" if short else "The KV tier leaves little of the host RAM",
        observed=f"{gib(available_bytes)} available",
        required=f"{gib(tier.bytes)} for [engine] host_kv_gib{rounded} and {PINNED_PERCENT} % to spare",
        remedy=f"set [engine] host_kv_gib to {available_bytes * 100 // percent // GIB} at most{exact}",
    )


def fits_plan(tier: HostTier | None, planned_bytes: int) -> Finding | None:
    """`plan.host_kv`: the plan counts other bytes than the engine is told. `planned_bytes`: targets.kv_tier_bytes."""
    asked = tier.bytes if tier is not None else 0
    if abs(asked - planned_bytes) <= TOLERANCE_BYTES or 0 < asked < planned_bytes:
        return None
    more = asked > planned_bytes
    key = f"[engine] host_kv_gib = {planned_bytes / GIB:.12g}"
    in_plan = f"or have the plan count it: targets.kv_tier_bytes = {asked}, then: moe-appliance plan check"
    return Finding(
        id="plan.host_kv",
        severity=Severity.FAIL if more else Severity.INFO,
        title="The KV tier is larger than the plan counts" if more else "The plan's KV tier is not used",
        observed=f"{gib(asked)} by [engine] host_kv_gib",
        required=f"{size(planned_bytes)} by the plan's targets.kv_tier_bytes",
        remedy=f"set {key}, {in_plan}" if more else f"set {key}",
    )
