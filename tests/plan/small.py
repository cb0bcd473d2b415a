"""Small catalogues for budget and planner: sizes around a page, so that all of its rules come up. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from appliance.checkpoint.catalogue import Catalogue, ExpertParameter, Geometry, KvCost, Load, Part, TensorClass
from appliance.checkpoint.tensors import Checkpoint, Format, Shard, Tensor
from appliance.plan.schema import PlanModel, Targets
from appliance.plan.stats import RoutingStats

MIB = 1 << 20
STOCK = ("w13_weight", "w2_weight", "w13_input_scale")
OTHER = ("w13_trellis", "w2_trellis", "w13_suh")
"""Tensors of experts that stock vLLM reads, and that another engine does."""
MODEL = PlanModel(name="lab/small")
NO_RESERVES = Targets(kv_bytes=0, graphs_bytes=0, activation_bytes=0, driver_bytes=0)
NAMED = {
    "embed.weight": (TensorClass.EMBEDDING, Part(8 * MIB)),
    "head.weight": (TensorClass.HEAD, Part(6 * MIB)),
    "norm.weight": (TensorClass.DENSE, Part(MIB, units=1)),
    "layers.0.attn.kv.weight": (TensorClass.ATTENTION, Part(4 * MIB, units=4)),
    "vision.weight": (TensorClass.VISION, Part(3 * MIB, load=Load.VISION)),
    "mtp.embed.weight": (TensorClass.DRAFT, Part(8 * MIB, load=Load.NEVER)),
    "mtp.attn.weight": (TensorClass.DRAFT, Part(2 * MIB, load=Load.DRAFT)),
}
TABLES = {
    "layers.0.engram.embed.weight": (TensorClass.ENGRAM, Part(48 * MIB, units=24)),
    "layers.1.engram.embed.weight": (TensorClass.ENGRAM, Part(24 * MIB, units=24)),
}


def kv(tp: int, dtype: str) -> KvCost:
    """Half a byte more than 1,000 a token, however many ranks."""
    return KvCost(1000.5, 64, exact=True, source="a test")


def catalogue(
    layers: int = 3,
    experts: int = 8,
    top_k: int = 2,
    rows: tuple[int, ...] = (2 * MIB, MIB, 16),
    engram: bool = False,
    names: tuple[str, ...] = STOCK,
) -> Catalogue:
    """`rows`: bytes of one expert's row in each tensor; a 16-byte one is whole on every rank."""
    tensors = tuple(
        ExpertParameter(name, experts, size, size if size == 16 else 0) for name, size in zip(names, rows, strict=False)
    )
    named = NAMED | (TABLES if engram else {})
    classes: dict[TensorClass, tuple[Part, ...]] = dict.fromkeys(TensorClass, ())
    for cls, part in named.values():
        classes[cls] += (part,)
    for tensor in tensors:
        units = 1 if tensor.replicated_bytes else 0
        classes[TensorClass.ROUTED] += (Part(layers * experts * tensor.row_bytes, units),)
    return Catalogue(
        family="small",
        geometry=Geometry(layers, tuple(range(layers)), experts, top_k, 64, 32),
        classes=classes,
        experts=dict.fromkeys(range(layers), tensors),
        draft_experts={},
        named={name: part for name, (_, part) in named.items()},
        dtypes={"BF16": 1},
        kv=kv,
        named_classes={name: cls for name, (cls, _) in named.items()},
    )


def with_draft(found: Catalogue, layers: int = 1, experts: int = 4, row_bytes: int = 4 * MIB) -> Catalogue:
    """The same with a draft model that has experts of its own."""
    drafted = {layer: (ExpertParameter("w13_weight", experts, row_bytes),) for layer in range(layers)}
    more = Part(layers * experts * row_bytes, load=Load.DRAFT)
    classes = {**found.classes, TensorClass.DRAFT: (*found.classes[TensorClass.DRAFT], more)}
    shape = replace(found.geometry, draft_layers=layers, draft_experts=experts, draft_top_k=1)
    return replace(found, draft_experts=drafted, classes=classes, geometry=shape)


def checkpoint(found: Catalogue, **more: Any) -> Checkpoint:
    """Headers that have the catalogue's tensors by name, in one shard."""
    tensors = tuple(
        Tensor(name, "U8", (part.whole_bytes,), "a", 0, part.whole_bytes) for name, part in found.named.items()
    )
    said: dict[str, Any] = {
        "origin": "/models/small",
        "format": Format.SAFETENSORS,
        "shards": (Shard("a", 10 * MIB, 100, "a" * 64, len(tensors)),),
        "tensors": tensors,
        "index_sha256": "b" * 64,
    }
    return Checkpoint(**said | more)


def stats(found: Catalogue, counts: dict[int, tuple[int, ...]], tokens: int = 1000) -> RoutingStats:
    """Counts as if a file had them."""
    return RoutingStats("small", tokens, counts, "c" * 64, "counts.json")


@st.composite
def catalogues(draw: st.DrawFn) -> Catalogue:
    """One to six layers; rows from far below a page to far above it, as staging is in larger pieces."""
    experts = draw(st.integers(2, 7))
    rows = st.sampled_from([16, 999, 300_000, MIB, 3 * MIB + 1, 40 * MIB, 90 * MIB])
    return catalogue(
        layers=draw(st.integers(1, 6)),
        experts=experts,
        top_k=draw(st.integers(1, experts)),
        rows=tuple(draw(st.lists(rows, min_size=1, max_size=3))),
        engram=draw(st.booleans()),
        names=draw(st.sampled_from([STOCK, OTHER])),
    )


@st.composite
def counted(draw: st.DrawFn, found: Catalogue) -> RoutingStats:
    """Counts that the catalogue's model could have."""
    experts, top_k = found.geometry.experts, found.geometry.top_k
    visits = st.lists(st.integers(0, 1000 * top_k // experts), min_size=experts, max_size=experts).map(tuple)
    return stats(found, {layer: draw(visits) for layer in found.experts})
