"""What a layer's parameters become: which are permuted, which get host pages, and what a model that does not match the
document is told. Pure.

Rules:
1. Every per-expert parameter is permuted: weights, scales, zero points, biases. Its name begins with w13_ or w2_ and
   its first dimension is the experts.
2. Only weights get host pages: a kernel reads a scale for every tile, and all scales together are small.
3. A model that differs from the document in layers, experts, top-k or ranks is refused: it would be read with another
   model's rows.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from .document import Residency
from .errors import ResidencyError
from .layout import Pages, pages_of

_PER_EXPERT = ("w13_", "w2_")
_WEIGHTS = frozenset({"weight", "qweight", "weight_packed"})
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)(?=\.|$)")


@dataclass(frozen=True, slots=True)
class Shape:
    """A parameter: its name in the layer, its first dimension, and the bytes of one step along it."""

    name: str
    rows: int
    row_bytes: int


def per_expert(shapes: Iterable[Shape], experts: int) -> tuple[Shape, ...]:
    """Those that have a row for each expert.  (1)"""
    return tuple(
        shape for shape in shapes if shape.name.startswith(_PER_EXPERT) and shape.rows == experts and shape.row_bytes
    )


def is_weight(name: str) -> bool:
    """Whether it is one of those that may have host pages.  (2)"""
    return name.partition("_")[2] in _WEIGHTS


def host_pages(shapes: Iterable[Shape], cold: int) -> dict[str, Pages]:
    """By name, the pages of those that get some in host RAM, `cold` of their rows being cold."""
    found = {shape.name: pages_of(shape.row_bytes, shape.rows, cold) for shape in per_expert_weights(shapes)}
    return {name: pages for name, pages in found.items() if pages is not None}


def per_expert_weights(shapes: Iterable[Shape]) -> tuple[Shape, ...]:
    """The weights among them."""
    return tuple(shape for shape in shapes if shape.name.startswith(_PER_EXPERT) and is_weight(shape.name))


def layer_of(name: str, layers: int) -> int:
    """The number of the layer that a module's name says; a draft's layers are numbered on behind the `layers` of the
    backbone. Raises ResidencyError."""
    found = _LAYER.search(name)
    if found is None:
        raise ResidencyError(f"{name}: no layer's number in the name; this model cannot be placed")
    number = int(found[1])
    return number + layers if name.startswith("mtp.") else number


def check_layer(residency: Residency, name: str, experts: int, top_k: int, tp: int) -> None:
    """Raise ResidencyError unless a layer is one of the document's model.  (3)"""
    for what, here, there in (
        ("experts", experts, residency.experts),
        ("experts a token", top_k, residency.top_k),
        ("ranks", tp, residency.tp),
    ):
        if here != there:
            raise ResidencyError(
                f"{name} has {here} {what}, the plan is for {there}; make one for this model and these cards: "
                f"moe-appliance plan make"
            )


def check_seen(residency: Residency, seen: Collection[int]) -> None:
    """Raise ResidencyError when a layer with cold experts was never built."""
    drafted = {layer + residency.layers for layer, cold in residency.draft_cold.items() if cold}
    missing = sorted(({layer for layer, cold in residency.cold.items() if cold} | drafted) - set(seen))
    if missing:
        raise ResidencyError(
            f"layer {missing[0]} has cold experts in the plan, and this model has no experts there "
            f"({len(missing)} such layers); make a plan for this model: moe-appliance plan make"
        )
