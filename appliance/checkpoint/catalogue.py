"""What each tensor of a checkpoint is for, and what each rank must hold of it. Pure.

A family (families/) says what a name means; this module adds the bytes up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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


class Load(StrEnum):
    """When an engine holds a tensor: always, only with its vision tower or its draft model, or never (a copy of one
    that it shares)."""

    ALWAYS = "always"
    VISION = "vision"
    DRAFT = "draft"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Place:
    """What one tensor is.

    `layer`: counted from 0 among the backbone's layers (among the draft's, for DRAFT). `expert`: which one of the
    layer; None when the tensor is no expert's, or holds all of them along its first axis (`fused`: how many then).
    `parameter`: the engine's name of the tensor that all experts of a layer share (`w13_weight`), "" for others.
    `units`: what tensor parallelism cuts it by: 0 = evenly into any number of parts, 1 = every rank holds all of it, n
    = whole units (heads, hash columns), so that a rank holds ceil(n / ranks) of n, and one at least.
    `load`: when the engine holds it at all.
    """

    cls: TensorClass
    layer: int | None = None
    expert: int | None = None
    fused: int = 0
    parameter: str = ""
    units: int = 0
    load: Load = Load.ALWAYS


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
    draft_top_k: int = 0
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
    """Some bytes of one class that are cut alike and loaded alike; `units` and `load` as in Place."""

    whole_bytes: int
    units: int = 0
    load: Load = Load.ALWAYS

    def rank_bytes(self, tp: int) -> int:
        """What the fullest of `tp` ranks holds, rounded up."""
        if self.units == 0:
            return -(-self.whole_bytes // tp)
        held = -(-self.units // tp)
        return -(-self.whole_bytes * held // self.units)


@dataclass(frozen=True, slots=True)
class ExpertParameter:
    """One tensor of the engine that holds a row of every expert of a layer. `row_bytes`: of one expert, whole;
    `replicated_bytes`: how much of that every rank holds all of (EXL3's input scales of a column-parallel matrix)."""

    name: str
    rows: int
    row_bytes: int
    replicated_bytes: int = 0

    def rank_row_bytes(self, tp: int) -> int:
        """What one of `tp` ranks holds of one expert's row."""
        return -(-(self.row_bytes - self.replicated_bytes) // tp) + self.replicated_bytes


@dataclass(frozen=True, slots=True)
class Catalogue:
    """A checkpoint by purpose.

    `classes`: class -> its parts; every class is present. `experts`: layer -> the engine's tensors that hold its routed
    experts; layers without are missing. `draft_experts`: the same for the draft's layers (its bytes are part of DRAFT).
    The ROUTED parts say the same bytes as `experts`.
    `named`: name -> Part of each tensor that is no routed expert's, for plans that name tensors. `dtypes`: dtype ->
    bytes. `kv`: what a context costs by (tp, KV dtype: auto, fp8, bf16); None = the family cannot tell. `missing`: what
    keeps it from being planned, "" when nothing does; a checkpoint of no known family has family "unknown", all its
    bytes in OTHER, and says so here.
    """

    family: str
    geometry: Geometry
    classes: Mapping[TensorClass, tuple[Part, ...]]
    experts: Mapping[int, tuple[ExpertParameter, ...]]
    draft_experts: Mapping[int, tuple[ExpertParameter, ...]]
    named: Mapping[str, Part]
    dtypes: Mapping[str, int]
    kv: Callable[[int, str], KvCost] | None
    missing: str = ""

    def whole_bytes(self, cls: TensorClass) -> int:
        """All bytes of a class."""
        return sum(part.whole_bytes for part in self.classes.get(cls, ()))

    def rank_bytes(self, cls: TensorClass, tp: int) -> int:
        """What the fullest of `tp` ranks holds of a class when all of it is loaded and in VRAM."""
        return sum(part.rank_bytes(tp) for part in self.classes.get(cls, ()))

    def expert_bytes(self, layer: int) -> int:
        """One routed expert of a layer, whole."""
        return sum(parameter.row_bytes for parameter in self.experts[layer])
