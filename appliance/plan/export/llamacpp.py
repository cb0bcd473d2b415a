"""llama.cpp: a layer's experts are one tensor each for gate, up and down, so that only whole layers move. Pure.

Source: llama.cpp, common/arg.cpp and common/common.h: `--n-cpu-moe N` is a list of `-ot` patterns for layers 0 to
N - 1; a pattern is searched for in the tensor's name.
"""

from __future__ import annotations

from appliance.checkpoint.catalogue import Catalogue, TensorClass
from appliance.plan.export.layers import nearest_layers
from appliance.plan.export.outcome import Outcome, impossible, is_exl3
from appliance.plan.schema import Plan
from appliance.units import count

_EMBEDDINGS = frozenset({"token_embd.weight", "model.embed_tokens.weight", "embed.weight"})
_NOTES = (
    "the CPU computes these experts, the cards do not read them: the pace is another one",
    "it gives each card whole layers instead of a part of each: the plan's figures for one card do not hold",
)


def export(plan: Plan, catalogue: Catalogue | None = None) -> Outcome:
    """`--n-cpu-moe` or `-ot` for the layers whose experts are all cold."""
    if is_exl3(plan):
        return impossible("llama.cpp does not read EXL3")
    if plan.host.engram is not None:
        return impossible("llama.cpp knows no Engram tables")
    rounded = nearest_layers(plan, catalogue)
    why = [] if rounded.exact else [f"it moves whole layers; {rounded.said}"]
    others = [name for name in plan.host.tensors if not _is_embedding(name, catalogue)]
    if others:
        why.append(f"tensors have other names in GGUF: {', '.join(others)} stays on the cards")
    if plan.cold_draft_count:
        why.append(f"{count(plan.cold_draft_count, 'expert')} of the draft model stay on the cards")
    exact = "the plan's cold layers are whole" if rounded.layers else "no expert is moved"
    exact += "; the token embedding is in host RAM in any case"
    return Outcome(
        verdict="approximate" if why else "exact",
        reason="; ".join(why) or exact,
        argv=_argv(plan, rounded.layers),
        differs={} if rounded.exact else rounded.differs,
        notes=_NOTES if rounded.layers else (),
    )


def _is_embedding(name: str, catalogue: Catalogue | None) -> bool:
    known = catalogue.named_classes.get(name) if catalogue is not None else None
    return known is TensorClass.EMBEDDING or name in _EMBEDDINGS


def _argv(plan: Plan, layers: tuple[int, ...]) -> tuple[str, ...]:
    if not layers:
        return ()
    if layers == plan.moe_layers[: len(layers)]:  # layers below the first with experts have nothing that would match
        return ("--n-cpu-moe", str(layers[-1] + 1))
    numbers = "|".join(map(str, layers))
    return ("-ot", rf"blk\.({numbers})\.ffn_(up|down|gate|gate_up)_(ch|)exps=CPU")
