"""What is judged about a plan's budget: do the cards and the nodes hold it. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from appliance.plan.budget import Budget
from appliance.plan.cards import KV
from appliance.plan.remedies import Remake, smallest_card
from appliance.plan.schema import Plan
from appliance.units import GIB, gib, size
from gateway.state import BudgetBar, Finding, Moment, Severity

MARGIN_BYTES = 16 * GIB
PINNED_PERCENT = 30
"""Beside pinned memory at least 16 GiB and 30 % of what is pinned stay free. Source: a public
report of a host of 125 GiB that stopped answering with 97 GiB pinned, and the public rules of 16 GiB and of 1.3 x that
came of it."""


def reserves_exact(made: Budget) -> bool:
    """Whether no reserve of a card is an estimate; weights never are."""
    return all(line.exact for line in made.gpus[0].lines if line.id != KV)


def kv_exact(made: Budget) -> bool:
    """Whether the KV cache that is asked for is no estimate."""
    return all(line.exact for line in made.gpus[0].lines if line.id == KV)


def card_findings(made: Budget, remake: Remake) -> Iterator[Finding]:
    """Whether the cards hold weights, reserves and KV."""
    if not made.short_bytes:
        return
    exact = reserves_exact(made) and kv_exact(made)
    by = f"weights alone are {size(made.over_bytes)} over, " if made.over_bytes else ""
    kv = ("" if kv_exact(made) else "~") + f"{made.kv_bytes / GIB:.1f}"
    yield Finding(
        id="plan.fits",
        severity=Severity.FAIL,
        title=f"The cards are {size(made.short_bytes, exact=exact)} short",
        observed=f"{by}{size(made.needed_bytes, exact=exact)} with reserves and {kv} of KV",
        required=f"at most {gib(smallest_card(made))} on each card",
        remedy=remake.command(),
    )


def host_findings(plan: Plan, made: Budget, remake: Remake) -> Iterator[Finding]:
    """Whether the plan keeps its own bound, and each node holds what is pinned on it."""
    most = plan.limits.max_host_bytes
    if most is not None and made.host_bytes > most:
        yield Finding(
            id="plan.host",
            severity=Severity.FAIL,
            title="The plan pins more host RAM than it allows itself",
            observed=f"{gib(made.host_bytes)} pinned",
            required=f"at most {gib(most)} (limits.max_host_bytes)",
            remedy=remake.command(max_host_gib=-(-made.host_bytes // GIB), keep_experts=True),
        )
    for bar in made.nodes:
        if bar.capacity_bytes is not None:
            yield from _node(plan, bar, bar.capacity_bytes)


def _node(plan: Plan, bar: BudgetBar, capacity: int) -> Iterator[Finding]:
    """Pinned memory is never given back, so that it must fit beside the margin; the page cache is, so that a peak
    beyond the node is a warning, unless the plan itself says what must stay free then. A plan that asks for less than
    the margin is believed, and warned about."""
    least, pinned = plan.limits.min_free_host_bytes, bar.total_bytes(Moment.STEADY)
    margin = max(MARGIN_BYTES, pinned * PINNED_PERCENT // 100)
    peak = bar.total_bytes(Moment.STEADY, Moment.LOAD)
    at_peak = size(peak, exact=all(line.exact for line in bar.lines if line.moment is not Moment.ROUNDED))
    rounded = bar.total_bytes(Moment.STEADY, Moment.ROUNDED)
    if least is not None and peak + least > capacity:
        said = f"{least / GIB:.1f} of {gib(capacity)} stay free while the engine loads (limits.min_free_host_bytes)"
        yield _too_little(bar, "too little memory for this plan", Severity.FAIL, f"{at_peak} then", said, _LESS)
    elif pinned and pinned + margin > capacity:
        said = f"{margin / GIB:.1f} of {gib(capacity)} stay free"
        observed = f"{gib(pinned)} pinned"
        what, severity = "too little memory for this plan", Severity.FAIL
        if least is not None:
            what, severity = "less free memory than is safe; the plan says that it may", Severity.WARN
        yield _too_little(bar, what, severity, observed, said, _LESS)
    elif peak > capacity:
        said = f"{gib(capacity)} hold what is pinned and the shards that are read"
        observed = f"{at_peak} while the engine loads"
        yield _too_little(
            bar,
            "little memory for the load",
            Severity.WARN,
            observed,
            said,
            "stop what else runs there while the engine loads",
        )
    elif rounded > pinned and rounded + MARGIN_BYTES > capacity:
        said = f"{MARGIN_BYTES / GIB:.1f} of {gib(capacity)} stay free"
        observed = f"{gib(rounded)} pinned, each slab as the next power of two"
        what = "too little memory if the engine pins in powers of two"
        yield _too_little(bar, what, Severity.WARN, observed, said, _EXACT)


_LESS = "a box with more RAM; or fewer experts on the host: moe-appliance plan make   with less --kv-gib or --context"
_EXACT = "set VLLM_WEIGHT_OFFLOADING_DISABLE_PIN_MEMORY=1 for the engine, or take one that pins exact sizes"


def _too_little(bar: BudgetBar, what: str, severity: Severity, observed: str, required: str, remedy: str) -> Finding:
    return Finding(
        id="plan.host",
        severity=severity,
        title=f"{bar.label} has {what}",
        observed=observed,
        required=required,
        remedy=remedy,
    )
