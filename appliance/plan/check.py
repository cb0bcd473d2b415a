"""Checks a plan against the checkpoint's headers and a box, and says in one sentence whether it fits. Pure.

The plan's own figures are never believed: bytes come from the headers. `fits` means that no finding is a FAIL.
What is judged about the plan itself is in plan_checks.py, about its budget in fit_checks.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from appliance.checkpoint.catalogue import Catalogue, TensorClass
from appliance.checkpoint.tensors import Checkpoint
from appliance.errors import PlanError
from appliance.plan.budget import Budget, budget
from appliance.plan.fit_checks import card_findings, host_findings, kv_exact, reserves_exact
from appliance.plan.memory import BoxMemory
from appliance.plan.plan_checks import is_for, plan_findings
from appliance.plan.remedies import Remake, quoted, smallest_card
from appliance.plan.schema import Plan
from appliance.printable import printable
from appliance.units import GIB, gib, size
from gateway.state import BudgetBar, Finding, Moment, PlanState, Severity

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
        "plan.gpus",
        "plan.host",
        "plan.host_kv",
        "plan.model",
        "plan.resident",
        "plan.stale",
        "plan.tensors",
        "plan.tp",
        "plan.unbound",
        "plan.unchecked",
    }
)
"""The ids of all findings about plans, those of inspection.py and of the engine too."""


@dataclass(frozen=True, slots=True)
class Checked:
    """A plan and what came of checking it. `verdict`: one sentence. `remake`: the command that makes such a plan anew,
    without a number of experts."""

    plan: Plan
    findings: tuple[Finding, ...]
    budget: Budget
    fits: bool
    verdict: str
    remake: str

    @property
    def bars(self) -> tuple[BudgetBar, ...]:
        """Cards, then nodes."""
        return (*self.budget.gpus, *self.budget.nodes)

    def to_state(self, file: str, made: bool) -> PlanState:
        """As the daemon shows it. `made`: by the daemon itself."""
        return PlanState(
            plan_id=self.plan.identity,
            file=file,
            name=self.plan.model.name,
            cold_experts=self.plan.cold_count,
            experts=self.plan.expert_count,
            fits=self.fits,
            verdict=self.verdict,
            bars=self.bars,
            made=made,
            remake=self.remake,
        )

    def to_json(self) -> dict[str, Any]:
        """As `plan check --json` prints it; see docs/plans.md. GiB are floats, not rounded."""
        made = self.budget
        return {
            "plan_id": self.plan.identity,
            "fits": self.fits,
            "verdict": self.verdict,
            "per_gpu_gib": made.weights_bytes / GIB,
            "over_gib": made.over_bytes / GIB,
            "short_gib": made.short_bytes / GIB,
            "kv_left_gib": made.kv_left_bytes / GIB,
            "host_gib": made.host_bytes / GIB,
            "host_peak_gib": made.host_peak_bytes / GIB,
            "host_rounded_gib": made.host_rounded_bytes / GIB,
            "cold_experts": self.plan.cold_count,
            "per_gpu": [_bar_json(bar) for bar in made.gpus],
            "per_node": [_bar_json(bar) for bar in made.nodes],
            "findings": [finding.model_dump(mode="json") for finding in self.findings],
        }


def check(
    plan: Plan, checkpoint: Checkpoint, catalogue: Catalogue, memory: BoxMemory, file: str | None = None
) -> Checked:
    """Check `plan`; `file`: the plan's, for the commands that findings end with. Raises PlanError when the checkpoint
    cannot be planned, or nobody can tell what contexts cost."""
    if catalogue.missing:
        raise PlanError(
            f"{printable(checkpoint.origin)}: no plan can be checked: {printable(catalogue.missing)}",
            f"moe-appliance checkpoint show {quoted(checkpoint.origin)}",
        )
    made = budget(catalogue, plan, memory, max((shard.size_bytes for shard in checkpoint.shards), default=0))
    remake = Remake(plan, checkpoint, made, file, other=not is_for(plan, checkpoint, catalogue))
    findings = (
        *plan_findings(plan, checkpoint, catalogue, memory, remake),
        *card_findings(made, remake),
        *host_findings(plan, made, remake),
    )
    fits = all(finding.severity is not Severity.FAIL for finding in findings)
    verdict = _verdict(plan, catalogue, made, findings)
    return Checked(plan, _folded(findings), made, fits, verdict, remake.command())


def _another(findings: Iterable[Finding]) -> Finding | None:
    """The finding that says that the plan is for something else; then the others follow from it."""
    by_id = {finding.id: finding for finding in findings}
    return by_id.get("plan.model") or by_id.get("plan.geometry")


def _folded(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    root = _another(findings)
    if root is None:
        return findings
    alone = {root.id, "plan.digest"}
    return tuple(f if f.id in alone else f.model_copy(update={"depends_on": root.id}) for f in findings)


def _verdict(plan: Plan, catalogue: Catalogue, made: Budget, findings: tuple[Finding, ...]) -> str:
    capacity = smallest_card(made)
    failed = [finding for finding in findings if finding.severity is Severity.FAIL]
    another = _another(findings)
    if another is not None:
        return f"cannot be used: {another.title}"
    elsewhere = ""
    if catalogue.whole_bytes(TensorClass.ENGRAM) and plan.host.engram is not None and plan.host.engram.mode != "vram":
        elsewhere = " without Engram"
    if made.over_bytes:
        return (
            f"does not fit: {size(made.over_bytes)} over with the weights alone"
            f" ({gib(made.weights_bytes)} a card{elsewhere}, {capacity / GIB:.1f} there)"
        )
    if made.short_bytes:
        short = size(made.short_bytes, exact=reserves_exact(made) and kv_exact(made))
        reserves = "" if reserves_exact(made) else "~"
        kv = "" if kv_exact(made) else "~"
        return (
            f"does not fit: {short} short on a card ({made.weights_bytes / GIB:.1f} weights,"
            f" {reserves}{made.reserves_bytes / GIB:.1f} reserves, {kv}{made.kv_bytes / GIB:.1f} KV,"
            f" {capacity / GIB:.1f} there)"
        )
    if failed:
        return f"cannot be used: {failed[0].title}"
    return f"fits: {size(made.kv_left_bytes, exact=reserves_exact(made))} a card left for KV"


def _bar_json(bar: BudgetBar) -> dict[str, Any]:
    return {
        "id": bar.id,
        "capacity_gib": None if bar.capacity_bytes is None else bar.capacity_bytes / GIB,
        "steady_gib": bar.total_bytes(Moment.STEADY) / GIB,
        "peak_gib": bar.total_bytes(Moment.STEADY, Moment.LOAD) / GIB,
        "lines": [line.model_dump(mode="json") for line in bar.lines],
    }
