"""What a plan is asked for, and what a plan says of the checkpoint it is for. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from appliance.checkpoint.catalogue import Catalogue
from appliance.checkpoint.tensors import Checkpoint
from appliance.plan import ranges
from appliance.plan.schema import Limits, PlanGeometry, PlanModel, PlanTopology, Profile, Targets

Method = Literal["routing-stats", "uniform", "layers", "manual"]


@dataclass(frozen=True, slots=True)
class Request:
    """`vram_bytes`: of the smallest card. `method`: how experts are chosen. `experts`: how many go to the host; None =
    the least that fits. `layers`: for `layers`, which may go and in which order, each once; empty = all, from the last
    one down. `table`: for `manual`, layer -> its cold experts, each once. `engram`: where the tables are, if the model
    has some. `keep_embedding`: it stays on the cards. `profile`: the validated cap, if there is one."""

    vram_bytes: int
    tp: int = 2
    method: Method = "uniform"
    targets: Targets = field(default_factory=Targets)
    limits: Limits = field(default_factory=Limits)
    experts: int | None = None
    layers: Sequence[int] = ()
    table: Mapping[int, Sequence[int]] = field(default_factory=dict)
    engram: Literal["pinned", "disk", "vram"] = "pinned"
    keep_embedding: bool = False
    profile: Profile | None = None
    gpu_names: tuple[str, ...] = ()
    numa: tuple[int | None, ...] = ()
    link: str | None = None

    @property
    def topology(self) -> PlanTopology:
        """The cards, as a plan says them."""
        return PlanTopology(
            tp=self.tp, gpu_names=self.gpu_names, vram_bytes_each=self.vram_bytes, numa=self.numa, link=self.link
        )


def model_of(checkpoint: Checkpoint, name: str) -> PlanModel:
    """What binds a plan to one checkpoint. `name`: what people call it."""
    return PlanModel(
        name=name,
        revision=checkpoint.revision,
        index_sha256=checkpoint.index_sha256,
        header_sha256=header_hashes(checkpoint),
        tensor_count=checkpoint.tensor_count,
        total_bytes=checkpoint.total_bytes,
    )


def header_hashes(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Of each shard's header, in the order of the shards' names."""
    return tuple(shard.header_sha256 for shard in sorted(checkpoint.shards, key=lambda shard: shard.name))


def geometry_of(catalogue: Catalogue) -> PlanGeometry:
    """The model's shape, as a plan says it."""
    shape = catalogue.geometry
    return PlanGeometry(
        family=catalogue.family,
        layers=shape.layers,
        moe_layers=ranges.spell(shape.moe_layers),
        experts=shape.experts,
        top_k=shape.top_k,
        draft_layers=shape.draft_layers,
        draft_experts=shape.draft_experts,
        draft_top_k=shape.draft_top_k,
        hidden=shape.hidden,
        moe_intermediate=shape.moe_intermediate,
        codebook=shape.codebook,
        bits_per_layer=shape.bits,
    )
