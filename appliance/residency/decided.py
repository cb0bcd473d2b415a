"""What a layer's parameters become: which are permuted, which get host pages, and what a model that does not match the
document is told. Pure.

Rules:
1. Every per-expert parameter is permuted: weights, scales, zero points, biases. Its name begins with w13_ or w2_ and
   its first dimension is the experts.
2. Only weights get host pages: a kernel reads a scale for every tile, and all scales together are small.
3. A model that differs from the document in layers, experts, top-k or ranks is refused: it would be read with another
   model's rows. Of a draft the document says no experts and no top-k; its cold experts must be among those it has.
4. What cannot be told for certain is refused: a per-expert parameter with another number of rows, or weights that the
   names above do not reach. Left alone it would be read with another expert's rows, or stay in VRAM in silence.
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
_PLAN = "make one for this model and these cards: moe-appliance plan make"
VLLM, TORCH = "0.26.0", "2.11."
"""Versions that vllm_0_26.py is made for: exactly the first, the second as a beginning."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A parameter: its name in the layer, its first dimension, the bytes of one step along it, and whether its rows
    follow each other in memory."""

    name: str
    rows: int
    row_bytes: int
    is_contiguous: bool = True


def check_versions(vllm: str, torch: str) -> None:
    """Raise ResidencyError outside of the versions above."""
    if vllm.partition("+")[0] != VLLM or not torch.startswith(TORCH):
        raise ResidencyError(
            f"vLLM {vllm} with torch {torch}, and this is made for {VLLM} with {TORCH}x; "
            "moe-appliance engine install vllm"
        )


def per_expert(shapes: Iterable[Shape], experts: int) -> tuple[Shape, ...]:
    """Those that have a row for each expert; one row is of all experts together. Raises ResidencyError.  (1, 4)"""
    found = [shape for shape in shapes if shape.name.startswith(_PER_EXPERT) and shape.row_bytes]
    if strange := [shape for shape in found if shape.rows not in (1, experts)]:
        raise ResidencyError(
            f"{strange[0].name} has {strange[0].rows} rows for {experts} experts; this model cannot be placed: "
            "run without a plan"
        )
    return tuple(shape for shape in found if shape.rows == experts)


def is_weight(name: str) -> bool:
    """Whether it is one of those that may have host pages.  (2)"""
    return name.partition("_")[2] in _WEIGHTS


def host_pages(shapes: Iterable[Shape], experts: int, cold: int) -> dict[str, Pages]:
    """By name, the pages of those that get some in host RAM, the last `cold` of `experts` rows being cold. Raises
    ResidencyError: there are no weights, or they are not laid out as rows of experts.  (2, 4)"""
    if not cold:
        return {}
    weights = per_expert_weights(shapes)
    strange = [shape.name for shape in weights if shape.rows != experts or not shape.is_contiguous]
    if strange or not weights:
        raise ResidencyError(
            f"{strange[0] if strange else 'no weights'}: not one row after the other for each of {experts} experts; "
            "this model cannot be placed: run without a plan"
        )
    found = {shape.name: pages_of(shape.row_bytes, shape.rows, cold) for shape in weights}
    return {name: pages for name, pages in found.items() if pages is not None}


def per_expert_weights(shapes: Iterable[Shape]) -> tuple[Shape, ...]:
    """The weights among them."""
    return tuple(shape for shape in shapes if shape.name.startswith(_PER_EXPERT) and is_weight(shape.name))


def layer_of(name: str, layers: int) -> int:
    """The number of the layer that a module's name says; a draft's layers are numbered on behind the `layers` of the
    backbone. Raises ResidencyError."""
    found = _LAYER.search(name)
    if found is None or name.startswith("draft_model."):
        said = "a draft with a model of its own" if found else "no layer's number in the name"
        raise ResidencyError(f"{name}: {said}; its experts cannot be placed: run without it, or without a plan")
    number = int(found[1])
    return number + layers if name.startswith("mtp.") else number


def check_model(residency: Residency, layers: int, tp: int) -> None:
    """Raise ResidencyError unless a model has the document's number of layers, on as many ranks.  (3)"""
    _check_equal("the model", (("layers", layers, residency.layers), ("ranks", tp, residency.tp)))


def check_layer(residency: Residency, number: int, name: str, experts: int, top_k: int, tp: int) -> None:
    """Raise ResidencyError unless a layer is one of the document's model.  (3)"""
    _check_equal(name, (("ranks", tp, residency.tp),))
    if number < residency.layers:
        _check_equal(name, (("experts", experts, residency.experts), ("experts a token", top_k, residency.top_k)))
    elif (cold := residency.cold_of(number)) and cold[-1] >= experts:
        raise ResidencyError(f"{name} has {experts} experts, and expert {cold[-1]} is cold in the plan; {_PLAN}")


def _check_equal(name: str, counts: Iterable[tuple[str, int, int]]) -> None:
    for what, here, there in counts:
        if here != there:
            raise ResidencyError(f"{name} has {here} {what}, the plan is for {there}; {_PLAN}")


def check_seen(residency: Residency, seen: Collection[int]) -> None:
    """Raise ResidencyError when a layer with cold experts was never built."""
    drafted = {layer + residency.layers for layer, cold in residency.draft_cold.items() if cold}
    missing = sorted(({layer for layer, cold in residency.cold.items() if cold} | drafted) - set(seen))
    if missing:
        what = f"layer {missing[0]}"
        if missing[0] >= residency.layers:
            what = f"layer {missing[0] - residency.layers} of the draft (is it switched on: --speculative-config?)"
        raise ResidencyError(
            f"{what} has cold experts in the plan, and this model has no experts there ({len(missing)} such layers); "
            f"{_PLAN}"
        )
