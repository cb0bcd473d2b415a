"""vLLM's own offload (UVA): whole parameters, from the first layer on, until a budget is used. Pure.

Source: vllm/model_executor/offloader/uva.py as read in vLLM 0.32, not run by us. It goes through the layers as they
are built and moves each parameter whose name has one of the segments, until what it has moved is not below the budget.
So a budget of a little less than some layers' bytes moves exactly those layers. The segment is `experts`, which all
routed experts' parameters have and shared experts' have not: quantisers name what follows it as they like.
EXL3 markers are no parameters of the engine (vllm-exl3, docs/CPU_OFFLOAD.md names the six that are).
"""

from __future__ import annotations

from appliance.checkpoint.catalogue import Catalogue
from appliance.checkpoint.families.base import MARKERS
from appliance.plan.export.layers import Rounded, first_layers, gib
from appliance.plan.export.outcome import Outcome, engram_argv, impossible
from appliance.plan.schema import Plan
from appliance.units import GIB, count

PADDED = "gpt-oss"
"""The family with MXFP4 experts. Source: vllm/model_executor/layers/quantization/mxfp4.py rounds both of an expert's
sides up, to 64, 128 or 256 by the kernel, where it makes the parameters."""


def export(plan: Plan, catalogue: Catalogue | None = None) -> Outcome:
    """`--offload-backend uva` with its budget per card, and Engram's own switch."""
    engram = plan.host.engram
    if engram is not None and engram.mode == "disk":
        return impossible("vLLM keeps Engram tables in pinned RAM or on the cards, not on disk")
    rounded = first_layers(plan, catalogue)
    missed, differs = _missed(plan, catalogue)
    why = [] if rounded.exact else [f"it moves whole layers, the first ones only; {rounded.said}"]
    why += missed
    if rounded.layers and plan.geometry.family == PADDED:
        why.append(
            "vLLM pads MXFP4 experts to its kernels' tiles, so that it may use the budget up before the last layer"
        )
    differs = {} if not why else rounded.differs | differs
    exact = "the plan's experts are all those of the first layers" if rounded.layers else "no expert is moved"
    argv: tuple[str, ...] = ()
    needs, moved = "", None
    if rounded.layers and catalogue is None:
        needs = "the budget is in bytes of a card, which only the checkpoint tells"
    elif rounded.layers and catalogue is not None:
        argv, moved = _argv(plan, rounded, catalogue)
    return Outcome(
        verdict="approximate" if why else "exact",
        reason="; ".join(why) or exact,
        argv=() if needs else argv + engram_argv(plan),
        needs=needs,
        differs=differs,
        notes=_notes(plan, rounded),
        host_bytes=moved,
    )


def _missed(plan: Plan, catalogue: Catalogue | None) -> tuple[list[str], dict[str, int]]:
    """What stays on the cards since only the backbone's layers are looked at."""
    said: list[str] = []
    differs: dict[str, int] = {}
    if plan.host.tensors:
        parts = [catalogue.named.get(name) for name in plan.host.tensors] if catalogue is not None else []
        size = sum(part.rank_bytes(plan.topology.tp) for part in parts if part is not None)
        each = f" ({gib(size)} on each card)" if size else ""
        said.append(f"it moves nothing outside the layers: {', '.join(plan.host.tensors)} stays on the cards{each}")
        differs = {"card_bytes": size} if size else {}
    if plan.cold_draft_count:
        said.append(f"{count(plan.cold_draft_count, 'expert')} of the draft model stay on the cards")
    return said, differs


def _argv(plan: Plan, rounded: Rounded, catalogue: Catalogue) -> tuple[tuple[str, ...], int]:
    """The arguments, and the bytes that all cards together move."""
    tp = plan.topology.tp
    every = (parameter for layer in rounded.layers for parameter in catalogue.experts[layer])
    parameters = [parameter for parameter in every if parameter.name.rpartition("_")[2] not in MARKERS]
    sizes = [parameter.rank_row_bytes(tp) * parameter.rows for parameter in parameters]
    budget = sum(sizes) - min(sizes) // 2
    gib_text = f"{budget / GIB:.9f}".rstrip("0").rstrip(".")
    argv = ("--offload-backend", "uva", "--cpu-offload-gb", gib_text, "--cpu-offload-params", "experts")
    return argv, tp * sum(sizes)


def _notes(plan: Plan, rounded: Rounded) -> tuple[str, ...]:
    if not rounded.layers:
        return ()
    return (
        f"the budget is for one card at --tensor-parallel-size {plan.topology.tp}",
        "vLLM's second model runner, which speculative decoding brings with it, ignores it without a word: look for "
        "the offloaded bytes in the engine's log, or set VLLM_USE_V2_MODEL_RUNNER=0",
    )
