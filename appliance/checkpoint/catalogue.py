"""What each tensor of a checkpoint is for, and what each rank must hold of it. Pure.

A family (families/) says what a name means; this module adds the bytes up, and says what the checkpoint lacks: a plan
for one that lost a tensor would be wrong by that much.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import ceil

from appliance.checkpoint.families import Unfit, find
from appliance.checkpoint.families.base import MARKERS, Family
from appliance.checkpoint.families.experts import Bank, Banks
from appliance.checkpoint.families.kinds import Geometry, KvCost, Load, Place, TensorClass
from appliance.checkpoint.families.whole import faults
from appliance.checkpoint.tensors import Checkpoint

__all__ = [
    "Catalogue",
    "ExpertParameter",
    "Geometry",
    "KvCost",
    "Load",
    "Part",
    "Place",
    "TensorClass",
    "catalogue_of",
]


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
    `replicated_bytes`: how much of that every rank holds all of (EXL3's input scales of a column-parallel matrix).
    `padding`: ranks -> how much larger the engine makes a rank's row for its kernel; None = it does not."""

    name: str
    rows: int
    row_bytes: int
    replicated_bytes: int = 0
    padding: Callable[[int], Fraction] | None = field(default=None, compare=False)

    def rank_row_bytes(self, tp: int) -> int:
        """What one of `tp` ranks holds of one expert's row, padding included."""
        row = -(-(self.row_bytes - self.replicated_bytes) // tp) + self.replicated_bytes
        return row if self.padding is None else ceil(row * self.padding(tp))


@dataclass(frozen=True, slots=True)
class Catalogue:
    """A checkpoint by purpose.

    `classes`: class -> its parts; every class is present. `experts`: layer -> the engine's tensors that hold its routed
    experts; layers without are missing. `draft_experts`: the same for the draft's layers (its bytes are part of DRAFT).
    The ROUTED parts say the same bytes as `experts`.
    `named`: name -> Part of each tensor that is no routed expert's, for plans that name tensors; `named_classes`: the
    same names -> what each is for. `dtypes`: dtype -> bytes. `kv`: what a context costs by (tp, KV dtype: auto, fp8,
    bf16); None = the family cannot tell. `missing`: what keeps it from being planned, "" when nothing does; a
    checkpoint of no known family has family "unknown", all its bytes in OTHER, and says so here.
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
    named_classes: Mapping[str, TensorClass] = field(default_factory=dict)

    def whole_bytes(self, cls: TensorClass) -> int:
        """All bytes of a class."""
        return sum(part.whole_bytes for part in self.classes.get(cls, ()))

    def rank_bytes(self, cls: TensorClass, tp: int) -> int:
        """What the fullest of `tp` ranks holds of a class when all of it is loaded and in VRAM."""
        return sum(part.rank_bytes(tp) for part in self.classes.get(cls, ()))

    def expert_bytes(self, layer: int) -> int:
        """One routed expert of a layer, whole."""
        return sum(parameter.row_bytes for parameter in self.experts[layer])


_Sums = dict[tuple[TensorClass, int, Load], int]


def catalogue_of(checkpoint: Checkpoint) -> Catalogue:
    """Places every tensor. Never raises: what keeps the checkpoint from being planned is in `missing`."""
    found = find(checkpoint)
    if isinstance(found, Unfit):
        return _unknown(checkpoint, found.reason)
    banks = Banks(found)
    named: dict[str, Part] = {}
    classes: dict[str, TensorClass] = {}
    for tensor in checkpoint.tensors:
        if banks.take(tensor):
            continue
        place = found.place(tensor.name, tensor.shape) or Place(TensorClass.OTHER, units=1)
        named[tensor.name] = Part(tensor.nbytes, place.units, place.load)
        classes[tensor.name] = place.cls
    routed, drafted = banks.of(draft=False), banks.of(draft=True)
    family = found if drafted or TensorClass.DRAFT in classes.values() else found.without_draft()
    return Catalogue(
        family=family.name,
        geometry=_measured(family, routed),
        classes=_classes(banks, named, classes),
        experts={layer: _parameters(bank, family) for layer, bank in routed.items()},
        draft_experts={layer: _parameters(bank, family) for layer, bank in drafted.items()},
        named=named,
        dtypes=_dtypes(checkpoint),
        kv=family.kv,
        missing=faults(family, banks, classes),
        named_classes=classes,
    )


def _unknown(checkpoint: Checkpoint, reason: str) -> Catalogue:
    whole = Part(checkpoint.total_bytes, units=1)
    return Catalogue(
        family="unknown",
        geometry=Geometry(layers=0, moe_layers=(), experts=0, top_k=0, hidden=0, moe_intermediate=0),
        classes={cls: (whole,) if cls is TensorClass.OTHER else () for cls in TensorClass},
        experts={},
        draft_experts={},
        named={tensor.name: Part(tensor.nbytes, units=1) for tensor in checkpoint.tensors},
        dtypes=_dtypes(checkpoint),
        kv=None,
        missing=reason,
        named_classes=dict.fromkeys((tensor.name for tensor in checkpoint.tensors), TensorClass.OTHER),
    )


def _dtypes(checkpoint: Checkpoint) -> dict[str, int]:
    dtypes: dict[str, int] = defaultdict(int)
    for tensor in checkpoint.tensors:
        dtypes[tensor.dtype] += tensor.nbytes
    return dict(dtypes)


def _classes(
    banks: Banks, named: Mapping[str, Part], classes: Mapping[str, TensorClass]
) -> dict[TensorClass, tuple[Part, ...]]:
    sums: _Sums = defaultdict(int, banks.sums())
    for name, part in named.items():
        sums[classes[name], part.units, part.load] += part.whole_bytes
    parts: dict[TensorClass, tuple[Part, ...]] = dict.fromkeys(TensorClass, ())
    for (cls, units, load), whole_bytes in sorted(sums.items()):
        parts[cls] += (Part(whole_bytes, units, load),)
    return parts


def _parameters(bank: Bank, family: Family) -> tuple[ExpertParameter, ...]:
    """Rows that differ are counted as the largest; `missing` says so."""
    largest = {name: max(rows.sizes.values()) for name, rows in sorted(bank.items())}
    return tuple(
        ExpertParameter(
            name,
            len(bank[name].sizes),
            row_bytes,
            row_bytes if bank[name].units == 1 else 0,
            family.padding(name, bank.keys()),
        )
        for name, row_bytes in largest.items()
    )


def _measured(family: Family, routed: Mapping[int, Bank]) -> Geometry:
    """The shape with what the tensors say: FP8's block; EXL3's bits by layer and the codebook."""
    shape = family.shape
    if any("w13_weight_scale_inv" in bank for bank in routed.values()):
        return replace(shape, block=family.fp8_block)
    numbers = 3 * shape.hidden * shape.moe_intermediate
    bits = []
    for layer in shape.moe_layers:
        trellis = [rows for name, rows in routed.get(layer, {}).items() if name.endswith("_trellis")]
        bits.append(round(8 * sum(max(rows.sizes.values()) for rows in trellis) / max(1, numbers), 3))
    if not bits or 0 in bits:
        return shape
    names = {name.rpartition("_")[2] for bank in routed.values() for name in bank}
    return replace(shape, bits=tuple(bits), codebook=next(iter(sorted(MARKERS & names)), None))
