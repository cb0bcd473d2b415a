"""What a plan asks of host RAM: the lines of each NUMA node's bar. Pure.

Each rank pins its own share on the node of its card.

Rules:
1. Pinned (STEADY): each rank's slabs of cold experts, its share of the Engram tables, of the other tensors that the
   plan names, of the draft's cold experts, and of the KV tier. Experts and other tensors are in whole pages.
2. Loading (LOAD): the page cache holds the shard that is read and the one that is read ahead, once on each node, since
   all ranks read the same files. It is an estimate: the kernel may keep more, and gives it back.
3. Rounded (ROUNDED): what is lost if each slab is pinned as the next power of two; a slab is the host pages of one
   tensor of one layer, one Engram table, or one other tensor, each as one rank holds it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from appliance.checkpoint.catalogue import Catalogue, Part, TensorClass
from appliance.plan.cards import HEADERS, PAGES, draft_splits, hosted, is_loaded, layer_splits
from appliance.plan.schema import Plan
from appliance.plan.slabs import LayerSplit, rounded
from appliance.residency.layout import in_pages
from appliance.units import count
from gateway.state import BudgetBar, BudgetLine, Moment

PLACED = frozenset({"host.experts", "host.draft_experts", "host.embedding", "host.tensors"})
"""Lines of a node that stand for cold rows and whole tensors."""
SHARDS_IN_CACHE = 2
"""Shards in the page cache while the engine loads. Source: an estimate, one read and one read ahead."""


@dataclass(frozen=True, slots=True)
class Pinned:
    """One kind of pinned memory of one rank: its slabs, bytes each."""

    id: str
    label: str
    slabs: tuple[int, ...]
    source: str = PAGES

    @property
    def exact_bytes(self) -> int:
        """As it is."""
        return sum(self.slabs)

    @property
    def rounded_bytes(self) -> int:
        """With each slab as the next power of two."""
        return sum(rounded(slab) for slab in self.slabs)


def pinned(catalogue: Catalogue, plan: Plan) -> tuple[Pinned, ...]:
    """What each rank pins, the KV tier aside; kinds without bytes are left out.  (1)"""
    return tuple(kind for kind in _kinds(catalogue, plan) if kind.exact_bytes)


def node_lines(catalogue: Catalogue, plan: Plan, ranks: int, largest_shard_bytes: int) -> tuple[BudgetLine, ...]:
    """All lines of a node that `ranks` ranks pin on. `largest_shard_bytes`: of the checkpoint's files."""
    kinds = pinned(catalogue, plan)
    steady = [
        _line(
            kind.id,
            kind.label,
            ranks * kind.exact_bytes,
            f"{count(ranks, 'rank')} x {kind.exact_bytes:,} B in {count(len(kind.slabs), 'slab')}",
            kind.source,
        )
        for kind in kinds
    ]
    tier = -(-plan.targets.kv_tier_bytes * ranks // plan.topology.tp)
    if tier:
        share = f"{plan.targets.kv_tier_bytes:,} B x {ranks} of {plan.topology.tp} ranks"
        steady.append(_line("host.kv_tier", "KV tier", tier, share, "targets.kv_tier_bytes"))
        steady.append(_tier_lost(tier))
    read = SHARDS_IN_CACHE * largest_shard_bytes
    ahead = f"{SHARDS_IN_CACHE} shards x {largest_shard_bytes:,} B, the largest"
    load = _line("host.page_cache", "page cache", read, ahead, "estimate of this tool", Moment.LOAD, exact=False)
    return (*steady, *([load] if read else []), *(_lost(kind, ranks) for kind in kinds))


def placed_bytes(bars: Iterable[BudgetBar]) -> int | None:
    """What of these bars the residency plugin puts into host RAM, over all ranks; None = they say nothing of it."""
    found = [line.bytes for bar in bars for line in bar.lines if line.id in PLACED]
    return sum(found) if found else None


def largest_slab_bytes(catalogue: Catalogue, plan: Plan) -> int:
    """The largest piece of host memory that is pinned in one call; 0 without any."""
    return max((slab for kind in pinned(catalogue, plan) for slab in kind.slabs), default=0)


def _kinds(catalogue: Catalogue, plan: Plan) -> Iterator[Pinned]:
    yield Pinned("host.experts", "cold experts", _slabs(layer_splits(catalogue, plan)))
    if plan.host.engram is not None and plan.host.engram.mode == "pinned":
        yield Pinned("host.engram", "Engram", _engram(catalogue, plan), HEADERS)
    tensors: dict[bool, list[int]] = {True: [], False: []}
    for name, part in hosted(catalogue, plan).items():
        embedding = catalogue.named_classes.get(name) is TensorClass.EMBEDDING
        tensors[embedding].append(in_pages(part.rank_bytes(plan.topology.tp)))
    yield Pinned("host.embedding", "embedding", tuple(tensors[True]))
    yield Pinned("host.tensors", "other tensors", tuple(tensors[False]))
    yield Pinned("host.draft_experts", "draft's cold experts", _slabs(draft_splits(catalogue, plan)))


def _slabs(splits: dict[int, LayerSplit]) -> tuple[int, ...]:
    return tuple(slab for part in splits.values() for slab in part.slabs)


def _engram(catalogue: Catalogue, plan: Plan) -> tuple[int, ...]:
    named: list[Part] = [
        part for name, part in catalogue.named.items() if catalogue.named_classes.get(name) is TensorClass.ENGRAM
    ]
    parts = named or catalogue.classes.get(TensorClass.ENGRAM, ())
    return tuple(part.rank_bytes(plan.topology.tp) for part in parts if is_loaded(part, plan.targets))


def _tier_lost(tier: int) -> BudgetLine:
    """An engine may pin each layer's part as the next power of two: up to as much again. Source: measured, vLLM 0.26
    (docs/measurements.md)."""
    said = f"at most {tier:,} B more, layer by layer"
    return _line("host.kv_tier.rounded", "KV tier, rounding", tier, said, "bound", Moment.ROUNDED, exact=False)


def _lost(kind: Pinned, ranks: int) -> BudgetLine:  # 3
    lost = ranks * (kind.rounded_bytes - kind.exact_bytes)
    formula = f"{count(ranks, 'rank')} x ({kind.rounded_bytes:,} B - {kind.exact_bytes:,} B)"
    return _line(f"{kind.id}.rounded", f"{kind.label}, rounding", lost, formula, kind.source, Moment.ROUNDED)


def _line(
    name: str, label: str, bytes_: int, formula: str, source: str, moment: Moment = Moment.STEADY, *, exact: bool = True
) -> BudgetLine:
    return BudgetLine(id=name, label=label, bytes=bytes_, exact=exact, formula=formula, source=source, moment=moment)
