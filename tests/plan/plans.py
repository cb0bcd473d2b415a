"""Plans for tests: a small one to change, and any that the schema allows."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from appliance.checkpoint.catalogue import Catalogue, ExpertParameter, Geometry, Part, TensorClass
from appliance.plan import ranges
from appliance.plan.schema import (
    HostEngram,
    Limits,
    Plan,
    PlanGeometry,
    PlanHost,
    PlanModel,
    PlanTopology,
    Profile,
    Selection,
    Targets,
)

EXPERTS = 8
LAYERS = 4


def plan(experts: dict[str, str] | None = None, **more: Any) -> Plan:
    """Four layers of eight experts, top-2, on two cards of 1 GiB; `more` replaces parts or keys of the geometry."""
    shape = {"family": "test", "layers": LAYERS, "moe_layers": "0-3", "experts": EXPERTS, "top_k": 2}
    shape |= {key: more.pop(key) for key in list(more) if key in PlanGeometry.model_fields}
    host = {key: more.pop(key) for key in list(more) if key in PlanHost.model_fields}
    parts: dict[str, Any] = {
        "model": PlanModel(name="lab/tiny"),
        "geometry": PlanGeometry(**shape),
        "topology": PlanTopology(tp=2, vram_bytes_each=2**30),
        "host": PlanHost(experts=experts or {}, **host),
        "selection": Selection(method="manual"),
    }
    return Plan(**parts | more)


def catalogue(row_bytes: int = 1000, layers: int = LAYERS, experts: int = EXPERTS) -> Catalogue:
    """The checkpoint that `plan` is for: two tensors of experts a layer, and an embedding."""
    held = (ExpertParameter("w13_weight", experts, row_bytes), ExpertParameter("w2_weight", experts, row_bytes // 2))
    return Catalogue(
        family="test",
        geometry=Geometry(layers, tuple(range(layers)), experts, 2, 64, 32),
        classes={cls: () for cls in TensorClass},
        experts=dict.fromkeys(range(layers), held),
        draft_experts={},
        named={"embed.weight": Part(4096)},
        dtypes={},
        kv=None,
    )


def cold_sets(experts: int = EXPERTS) -> st.SearchStrategy[str]:
    """Ranges of some of a layer's experts."""
    return st.sets(st.integers(0, experts - 1)).map(ranges.spell)


words = st.text(st.characters(codec="utf-8"), max_size=12)
_counts = st.integers(0, 2**63 - 1)
_positive = st.integers(1, 2**40)
_digests = st.none() | st.from_regex(r"[0-9a-f]{64}", fullmatch=True)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Any plan of up to six layers."""
    layers = draw(st.integers(1, 6))
    experts = draw(st.integers(1, 12))
    moe = draw(st.sets(st.integers(0, layers - 1)))
    drafts = draw(st.integers(0, 2))
    engram = st.builds(HostEngram, mode=st.sampled_from(["pinned", "disk", "vram"]), row_bytes=_counts)
    return Plan(
        created=draw(words),
        tool_version=draw(words),
        note=draw(words),
        model=PlanModel(name=draw(words), index_sha256=draw(_digests), total_bytes=draw(_counts)),
        geometry=PlanGeometry(
            family=draw(words),
            layers=layers,
            moe_layers=ranges.spell(moe),
            experts=experts,
            top_k=draw(st.integers(1, experts)),
            draft_layers=drafts,
            draft_experts=experts,
            codebook=draw(st.none() | st.just("mcg")),
            bits_per_layer=draw(st.none() | st.lists(st.floats(1, 16), max_size=3).map(tuple)),
        ),
        topology=PlanTopology(tp=draw(st.integers(1, 8)), vram_bytes_each=draw(_positive), numa=(0, None)),
        host=PlanHost(
            experts={str(layer): draw(cold_sets(experts)) for layer in moe},
            engram=draw(st.none() | engram),
            tensors=tuple(draw(st.lists(words, max_size=3))),
            draft_experts={str(layer): draw(cold_sets(experts)) for layer in range(drafts)},
        ),
        selection=Selection(
            method=draw(st.sampled_from(["routing-stats", "uniform", "layers", "manual"])),
            expected_cold_hits_per_token=draw(st.none() | st.floats(0, 1000)),
        ),
        targets=Targets(kv_bytes=draw(st.none() | _counts), streams=draw(st.integers(1, 64))),
        limits=Limits(max_host_bytes=draw(st.none() | _counts)),
        profile=draw(st.none() | st.builds(Profile, name=words, validated=words)),
        budget=draw(st.none() | st.just({"per_gpu": [{"weights": 1, "free": None}]})),
    )
