"""The words in which a family answers: what a tensor is for, how it is cut, what shape the model has. Pure."""

from __future__ import annotations

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
    `codebook`: of an EXL3 pack. `bits`: of the routed experts, one for each of `moe_layers`, where a quantiser chose
    them, None for the checkpoint's own. `block`: of an expert's width that shares a scale which is not cut.
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
    block: int = 1


@dataclass(frozen=True, slots=True)
class KvCost:
    """What a context takes on each rank. `per_token_bytes`: for each cached token; `per_sequence_bytes`: for each
    running sequence besides. `exact`: by arithmetic over the shape, not measured on somebody's engine."""

    per_token_bytes: float
    per_sequence_bytes: int
    exact: bool
    source: str
