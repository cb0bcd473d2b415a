"""The document for our own vLLM plugin, which places single experts. Pure."""

from __future__ import annotations

from appliance.checkpoint.catalogue import Catalogue
from appliance.plan import ranges
from appliance.plan.export.outcome import Outcome, impossible, is_exl3
from appliance.plan.schema import Plan
from appliance.residency.document import Residency, table


def export(plan: Plan, catalogue: Catalogue | None = None) -> Outcome:
    """The plan as the plugin reads it: experts as ranges by layer, whole tensors, the switch for Engram."""
    del catalogue  # the plugin reads sizes off the tensors that it moves
    if is_exl3(plan):
        return impossible("the experts are EXL3, which no method of stock vLLM reads; the plugin places stock tensors")
    if plan.topology.ep > 1:
        return impossible("expert parallelism gives each rank other experts; the plugin refuses it")
    engram = plan.host.engram
    if engram is not None and engram.mode == "disk":
        return impossible("vLLM keeps Engram tables in pinned RAM or on the cards, not on disk")
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
        None if engram is None else engram.mode,
    )
    notes: tuple[str, ...] = ("the plugin refuses, when it loads, quantisation methods that it does not know",)
    if engram is not None:
        notes += ("Engram is moved by vLLM's own --engram-config, not by the plugin",)
    if host.tensors:
        notes += ("a token embedding that is also the head cannot be moved: the plugin refuses it when it loads",)
    reason = "single experts are placed; cold rows on the page where hot ones end, and all scales, stay on the card"
    return Outcome("exact", reason, document=table(residency), notes=notes)
