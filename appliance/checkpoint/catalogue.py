"""What each tensor of a checkpoint is for, and what each rank must hold of it. Pure.

A family (families/) says what a name means; this module adds the bytes up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class TensorClass(StrEnum):
    """What a tensor is for."""

    ROUTED = "routed_experts"
    SHARED = "shared_experts"
    ATTENTION = "attention"
    DENSE = "dense"
    EMBEDDING = "embedding"
    HEAD = "head"
    ENGRAM = "engram"
    DRAFT = "draft"
    VISION = "vision"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Place:
    """What one tensor is.

    `layer`: counted from 0 among the backbone's layers (among the draft's, for DRAFT). `expert`: which one of the
    layer; None when the tensor is no expert's, or holds all of them along its first axis (`fused`: how many then).
    `parameter`: the engine's name of the tensor that all experts of a layer share (`w13_weight`), "" for others.
    `ways`: into how many parts tensor parallelism may cut it: 0 = as many as there are ranks, 1 = every rank holds all
    of it, n = n at most (a key/value projection has no more parts than heads).
    """

    cls: TensorClass
    layer: int | None = None
    expert: int | None = None
    fused: int = 0
    parameter: str = ""
    ways: int = 0


@dataclass(frozen=True, slots=True)
class Geometry:
    """The shape of a mixture-of-experts model, from its configuration.

    `layers`: all of the backbone's; `moe_layers`: which of them have routed experts, ascending. `experts`: routed ones
    a layer; `top_k`: that a token visits. `draft_layers`, `draft_experts`: of a built-in draft model, 0 without one.
    `bits`: of the routed experts by layer where a quantiser chose them, None for the checkpoint's own.
    """

    layers: int
    moe_layers: tuple[int, ...]
    experts: int
    top_k: int
    hidden: int
    moe_intermediate: int
    draft_layers: int = 0
    draft_experts: int = 0
    codebook: str | None = None
    bits: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class KvCost:
    """What a context takes on each rank. `per_token_bytes`: for each cached token; `per_sequence_bytes`: for each
    running sequence besides. `exact`: by arithmetic over the shape, not measured on somebody's engine."""

    per_token_bytes: float
    per_sequence_bytes: int
    exact: bool
    source: str


@dataclass(frozen=True, slots=True)
class Part:
    """Some bytes of one class that are cut alike: `whole_bytes` in `ways` parts at most (see Place)."""

    whole_bytes: int
    ways: int

    def rank_bytes(self, tp: int) -> int:
        """What one of `tp` ranks holds, rounded up."""
        parts = tp if self.ways == 0 else min(tp, self.ways)
        return -(-self.whole_bytes // parts)


@dataclass(frozen=True, slots=True)
class Catalogue:
    """A checkpoint by purpose.

    `classes`: class -> its parts; every class is present. `experts`: layer -> bytes of each routed expert, whole, by
    expert; layers without are missing. `draft_experts`: the same for the draft's layers (its bytes are part of DRAFT).
    `parameters`: how many engine tensors hold the experts of one layer (each can have a page with hot and cold rows).
    `named`: name -> Part of each tensor that is no routed expert's, for plans that name tensors. `dtypes`: dtype ->
    bytes. `kv`: None = the family cannot tell. `missing`: what keeps it from being planned, "" when nothing does; a checkpoint
    of no known family has family "unknown", all its bytes in OTHER, and says so here.
    """

    family: str
    geometry: Geometry
    classes: Mapping[TensorClass, tuple[Part, ...]]
    experts: Mapping[int, tuple[int, ...]]
    draft_experts: Mapping[int, tuple[int, ...]]
    parameters: int
    named: Mapping[str, Part]
    dtypes: Mapping[str, int]
    kv: KvCost | None
    missing: str = ""

    def whole_bytes(self, cls: TensorClass) -> int:
        """All bytes of a class."""
        return sum(part.whole_bytes for part in self.classes.get(cls, ()))

    def rank_bytes(self, cls: TensorClass, tp: int) -> int:
        """What one of `tp` ranks holds of a class when all of it is in VRAM."""
        return sum(part.rank_bytes(tp) for part in self.classes.get(cls, ()))
