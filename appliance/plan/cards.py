"""What a plan asks of each card: the lines of its bar. Pure.

Rules:
1. Weights are what the fullest rank holds: of experts the hot rows, of a tensor what its cut says, less what the plan
   has in host RAM. A class that is not loaded, or only in part, says so in its line.
2. A model's Engram tables are on the cards unless the plan says where else they are.
3. KV: what the plan says, else streams x (context x bytes a token + bytes a sequence).
4. Reserves: graphs, activations and driver as the plan says, else an estimate; the cold rows that share a page with hot
   ones; and room to stage cold rows for a prefill, which reads each of them many times, and to exchange them.
Where a figure depends on the number of cold experts alone (slabs.py), the planner counts it the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from math import ceil

from appliance.checkpoint.catalogue import Catalogue, ExpertParameter, Load, Part, TensorClass
from appliance.errors import PlanError
from appliance.plan import ranges
from appliance.plan.schema import Plan, Targets
from appliance.plan.slabs import LayerSplit, split, staging_of
from appliance.residency.layout import CHUNK_BYTES
from appliance.residency.staging import PARTS
from gateway.state import BudgetLine

WEIGHTS = "weights."
"""Begins the id of each line that is weights."""
KV = "kv"
HEADERS = "the checkpoint's headers"
PAGES = f"{HEADERS}, in pages of 2 MiB"
GRAPHS_BYTES = 1536 << 20
"""Source: an estimate. Public recipes capture about ten decode sizes for this model on two cards; not measured here."""
ACTIVATION_BYTES = 4 << 30
"""Source: an estimate for prefill steps of 4,096 tokens. The public launch of this model at 72.2 GiB of weights with
8 GiB of KV leaves 7.7 GiB below 92 % of a 95.6 GiB card for graphs and activations, and works."""
IDLE_BYTES = 615 << 20
"""Source: what the driver keeps of an idle H200, measured through NVML, driver 580."""
CONTEXT_BYTES = 512 << 20
"""Source: an estimate of one CUDA context with the libraries' and NCCL's buffers."""
LABELS = {
    TensorClass.ROUTED: "routed experts",
    TensorClass.SHARED: "shared experts",
    TensorClass.ATTENTION: "attention",
    TensorClass.DENSE: "dense layers",
    TensorClass.EMBEDDING: "embedding",
    TensorClass.HEAD: "head",
    TensorClass.ENGRAM: "Engram",
    TensorClass.DRAFT: "draft model",
    TensorClass.VISION: "vision tower",
    TensorClass.OTHER: "other tensors",
}


def is_loaded(part: Part, targets: Targets) -> bool:
    """Whether the plan's engine holds a part at all."""
    match part.load:
        case Load.ALWAYS:
            return True
        case Load.VISION:
            return targets.vision
        case Load.DRAFT:
            return targets.draft
        case Load.NEVER:
            return False


def hosted(catalogue: Catalogue, plan: Plan) -> dict[str, Part]:
    """The tensors that the plan names for host RAM, those that are there and loaded; Engram tables are placed by
    host.engram alone."""
    return {
        name: part
        for name in plan.host.tensors
        if (part := catalogue.named.get(name)) is not None
        and catalogue.named_classes.get(name) is not TensorClass.ENGRAM
        and is_loaded(part, plan.targets)
    }


def layer_splits(catalogue: Catalogue, plan: Plan) -> dict[int, LayerSplit]:
    """Layer -> how one rank's routed experts are split."""
    tp = plan.topology.tp
    return {layer: split(tensors, len(plan.cold(layer)), tp) for layer, tensors in catalogue.experts.items()}


def draft_splits(catalogue: Catalogue, plan: Plan) -> dict[int, LayerSplit]:
    """The same for the draft model's layers; empty when it is not loaded."""
    if not plan.targets.draft:
        return {}
    cold = {int(layer): len(ranges.parse(text)) for layer, text in plan.host.draft_experts.items()}
    tp = plan.topology.tp
    return {layer: split(tensors, cold.get(layer, 0), tp) for layer, tensors in catalogue.draft_experts.items()}


def kv_bytes(catalogue: Catalogue, plan: Plan) -> BudgetLine:
    """The line of the KV cache. Raises PlanError when neither the plan nor the family can tell.  (3)"""
    targets = plan.targets
    if targets.kv_bytes is not None:
        return _line(KV, "KV cache", targets.kv_bytes, f"{targets.kv_bytes:,} B, as asked", "targets.kv_bytes")
    if catalogue.kv is None:
        raise PlanError(
            f"targets.kv_bytes: what a context costs is not known for {catalogue.family}", "say it: --kv-gib 8"
        )
    cost = catalogue.kv(plan.topology.tp, targets.kv_dtype)
    context = ceil(Fraction(cost.per_token_bytes) * targets.context_tokens)
    formula = (
        f"{targets.streams} streams x ({targets.context_tokens:,} tokens x {cost.per_token_bytes:,.12g} B"
        f" + {cost.per_sequence_bytes:,} B)"
    )
    total = targets.streams * (context + cost.per_sequence_bytes)
    return _line(KV, "KV cache", total, formula, cost.source, exact=cost.exact)


def card_lines(catalogue: Catalogue, plan: Plan) -> tuple[BudgetLine, ...]:
    """All lines of a card, weights first, then KV, then reserves. Raises PlanError as `kv_bytes` does."""
    splits = layer_splits(catalogue, plan)
    draft = draft_splits(catalogue, plan)
    return (
        _routed(catalogue, plan, splits),
        *_classes(catalogue, plan, draft),
        kv_bytes(catalogue, plan),
        *_reserves(plan.targets),
        *_pages(splits, draft),
    )


def _routed(catalogue: Catalogue, plan: Plan, splits: dict[int, LayerSplit]) -> BudgetLine:  # 1
    total = plan.geometry.experts * len(catalogue.experts)
    rows = _spread(_row(tensors, plan.topology.tp) for tensors in catalogue.experts.values())
    formula = f"{total - plan.cold_count:,} of {total:,} experts x {rows} B a card"
    bytes_ = sum(part.card_bytes for part in splits.values())
    hot = sum(
        _row(tensors, plan.topology.tp) * (plan.geometry.experts - len(plan.cold(layer)))
        for layer, tensors in catalogue.experts.items()
    )
    if bytes_ > hot:
        formula += f" + {bytes_ - hot:,} B of cold experts' scales, biases and rows that fill no page"
    padded = any(
        tensor.padding is not None and tensor.padding(plan.topology.tp) != 1
        for tensors in catalogue.experts.values()
        for tensor in tensors
    )
    source = f"{HEADERS}, padded as the engine's kernels want it" if padded else HEADERS
    label = LABELS[TensorClass.ROUTED]
    return _line(WEIGHTS + TensorClass.ROUTED, label, bytes_, formula, source, exact=not padded)


def _row(tensors: Iterable[ExpertParameter], tp: int) -> int:
    return sum(tensor.rank_row_bytes(tp) for tensor in tensors)


def _spread(sizes: Iterable[int]) -> str:
    found = sorted(set(sizes)) or [0]
    return f"{found[0]:,}" if len(found) == 1 else f"{found[0]:,} to {found[-1]:,}"


def _classes(catalogue: Catalogue, plan: Plan, draft: dict[int, LayerSplit]) -> Iterable[BudgetLine]:  # 1
    moved: dict[TensorClass, int] = {TensorClass.DRAFT: sum(part.cold_bytes for part in draft.values())}
    for name, part in hosted(catalogue, plan).items():
        cls = catalogue.named_classes.get(name, TensorClass.OTHER)
        moved[cls] = moved.get(cls, 0) + part.rank_bytes(plan.topology.tp)
    for cls in TensorClass:
        if cls is TensorClass.ROUTED or not catalogue.whole_bytes(cls):
            continue
        if cls is TensorClass.ENGRAM and plan.host.engram is not None and plan.host.engram.mode != "vram":  # 2
            where = "pinned in host RAM" if plan.host.engram.mode == "pinned" else "read from disk"
            yield _line(WEIGHTS + cls, LABELS[cls], 0, f"{catalogue.whole_bytes(cls):,} B {where}", HEADERS)
            continue
        yield _class(cls, catalogue.classes[cls], plan, moved.get(cls, 0))


def _class(cls: TensorClass, parts: tuple[Part, ...], plan: Plan, moved: int) -> BudgetLine:
    tp = plan.topology.tp
    held = [part for part in parts if is_loaded(part, plan.targets)]
    left_out = sum(part.whole_bytes for part in parts) - sum(part.whole_bytes for part in held)
    terms = [
        *_term(held, lambda part: part.units == 0, f" / {tp}" if tp > 1 else ""),
        *_term(held, lambda part: part.units == 1, " whole"),
        *_term(held, lambda part: part.units > 1, f" by whole units / {tp}"),
    ]
    formula = " + ".join(terms) or "0 B"
    if moved:
        formula += f" - {moved:,} B in host RAM"
    if left_out:
        formula += f"; {left_out:,} B not loaded"
    label = LABELS[cls] if held else f"{LABELS[cls]} (not loaded)"
    bytes_ = max(0, sum(part.rank_bytes(tp) for part in held) - moved)
    return _line(WEIGHTS + cls, label, bytes_, formula, HEADERS)


def _term(parts: Iterable[Part], wanted: Callable[[Part], bool], how: str) -> list[str]:
    total = sum(part.whole_bytes for part in parts if wanted(part))
    return [f"{total:,} B{how}"] if total else []


def _reserves(targets: Targets) -> Iterable[BudgetLine]:  # 4
    idle = f"{IDLE_BYTES:,} B that an idle card's driver keeps + {CONTEXT_BYTES:,} B for the CUDA context and NCCL"
    yield _reserve("graphs", "CUDA graphs", targets.graphs_bytes, GRAPHS_BYTES, "about ten decode sizes")
    yield _reserve(
        "activation", "activations", targets.activation_bytes, ACTIVATION_BYTES, "a prefill step of 4,096 tokens"
    )
    yield _reserve("driver", "driver", targets.driver_bytes, IDLE_BYTES + CONTEXT_BYTES, idle)


def _reserve(name: str, label: str, asked: int | None, estimate: int, why: str) -> BudgetLine:
    if asked is not None:
        return _line(name, label, asked, f"{asked:,} B, as asked", f"targets.{name}_bytes")
    return _line(name, label, estimate, f"{estimate:,} B: {why}", "estimate of this tool", exact=False)


def _pages(splits: dict[int, LayerSplit], draft: dict[int, LayerSplit]) -> Iterable[BudgetLine]:  # 4
    both = (*splits.values(), *draft.values())
    boundary, staging = sum(part.boundary_bytes for part in both), staging_of(both)
    tensors = sum(len(part.slabs) for part in both)
    shared = f"{boundary:,} B of cold rows in pages where hot ones end, one a tensor at most, {tensors:,} tensors"
    staged = f"{staging.parts_bytes:,} B for the layer with most cold rows"
    if staging.scratch_bytes:
        staged += f", {PARTS} times in chunks of {CHUNK_BYTES:,} B, + {staging.scratch_bytes:,} B to exchange a row"
    yield _line("boundary", "cold rows beside hot ones", boundary, shared, PAGES)
    yield _line("staging", "prefill staging", staging.total_bytes, staged, PAGES)


def _line(name: str, label: str, bytes_: int, formula: str, source: str, *, exact: bool = True) -> BudgetLine:
    return BudgetLine(id=name, label=label, bytes=bytes_, exact=exact, formula=formula, source=source)
