"""The document for our own vLLM plugin, which places single experts. Pure."""

from __future__ import annotations

from appliance.checkpoint.catalogue import Catalogue
from appliance.plan import ranges
from appliance.plan.export.outcome import Outcome, impossible, is_exl3
from appliance.plan.schema import Plan
from appliance.residency.decided import VLLM
from appliance.residency.document import Residency, table


def export(plan: Plan, catalogue: Catalogue | None = None) -> Outcome:
    """The plan as the plugin reads it: experts as ranges by layer, and whole tensors."""
    del catalogue  # the plugin reads sizes off the tensors that it moves
    if is_exl3(plan):
        return impossible("the experts are EXL3, which no method of stock vLLM reads; the plugin places stock tensors")
    if plan.topology.ep > 1:
        return impossible("expert parallelism gives each rank other experts; the plugin refuses it")
    if plan.host.engram is not None:
        return impossible(f"vLLM {VLLM}, which the plugin is made for, has no Engram tables")
    shape, host = plan.geometry, plan.host
    residency = Residency(
        plan.identity,
        plan.model.name,
        shape.layers,
        shape.experts,
        shape.top_k,
        plan.topology.tp,
        {int(layer): ranges.parse(experts) for layer, experts in host.experts.items()},
        {int(layer): ranges.parse(experts) for layer, experts in host.draft_experts.items()},
        host.tensors,
    )
    notes: tuple[str, ...] = ("the plugin refuses, when it loads, quantisation methods that it does not know",)
    if host.tensors:
        notes += ("a token embedding that is also the head cannot be moved: the plugin refuses it when it loads",)
    reason = "single experts are placed; cold rows on the page where hot ones end, and all scales, stay on the card"
    return Outcome("exact", reason, document=table(residency), notes=notes)
