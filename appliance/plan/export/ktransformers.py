"""ktransformers under SGLang: how many experts stay on the cards, and by which rule; never which ones. Pure.

Source: kvcache-ai/ktransformers, doc/en/kt-kernel/experts-sched-Tutorial.md: `--kt-gpu-experts-ratio` is a share of
all experts of all layers, `--kt-num-gpu-experts` times the layers is the same as a number.
"""

from __future__ import annotations

from appliance.checkpoint.catalogue import Catalogue
from appliance.plan.export.outcome import Outcome, impossible, is_exl3
from appliance.plan.schema import Plan
from appliance.units import count


def export(plan: Plan, catalogue: Catalogue | None = None) -> Outcome:
    """A number of experts a layer when it is the same in all, a share of all experts when it is not."""
    del catalogue  # nothing here is in bytes
    shape = plan.geometry
    if is_exl3(plan):
        return impossible("ktransformers does not read EXL3")
    if plan.host.engram is not None:
        return impossible("ktransformers has no switch for Engram tables")
    cold = {layer: len(plan.cold(layer)) for layer in plan.moe_layers}
    if not any(cold.values()):
        return impossible("no expert is on the host: there is nothing that it could do")
    why = ["it takes a number and chooses the experts itself"]
    numbers = set(cold.values())
    if len(numbers) == 1:
        argv: tuple[str, ...] = ("--kt-num-gpu-experts", str(shape.experts - numbers.pop()))
    else:
        why.append(f"the plan has {min(numbers)} to {max(numbers)} cold experts a layer, which a number cannot say")
        total = len(cold) * shape.experts
        # Half an expert more than is meant: it rounds down.
        argv = ("--kt-gpu-experts-ratio", f"{(total - sum(cold.values()) + 0.5) / total:.9f}")
    if plan.host.tensors:
        why.append(f"{', '.join(plan.host.tensors)} stays on the cards")
    if plan.cold_draft_count:
        why.append(f"{count(plan.cold_draft_count, 'expert')} of the draft model stay on the cards")
    counted = plan.selection.method == "routing-stats"
    notes: tuple[str, ...] = ("the CPU computes the cold experts, the cards do not read them: the pace is another one",)
    if counted:
        notes += ("frequency reads statistics that SGLang recorded: add --init-expert-location FILE",)
    return Outcome(
        verdict="approximate",
        reason="; ".join(why),
        argv=(*argv, "--kt-expert-placement-strategy", "frequency" if counted else "uniform"),
        notes=notes,
    )
