"""The budget of a plan: what each card and each NUMA node must hold, line by line. Pure.

Rules:
1. A card needs weights + reserves + KV (cards.py). `over`: weights alone beyond the card; `short`: all of it beyond.
2. What is left for KV is the card less weights and reserves, whatever KV was asked for.
3. A node needs what is pinned; more while the engine loads; more again if memory is pinned in powers of two (nodes.py).
4. All ranks are counted as the fullest one. A card that the box lacks has a bar without a capacity.
All figures are whole bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from appliance.checkpoint.catalogue import Catalogue
from appliance.plan.cards import KV, WEIGHTS, card_lines
from appliance.plan.memory import BoxMemory
from appliance.plan.nodes import largest_slab_bytes, node_lines
from appliance.plan.schema import Plan
from gateway.state import BudgetBar, BudgetLine, Moment


@dataclass(frozen=True, slots=True)
class Budget:
    """`gpus`, `nodes`: a bar each; `nodes` is one bar `host` when nodes are not known. Bytes: `weights`, `kv` (as asked
    for) and `needed` (weights, reserves and KV) are of one card, each holds as much; `over`, `short` and `kv_left` of
    the smallest card; `host` is pinned, `host_peak` while the engine loads, `host_rounded` if memory is pinned in
    powers of two, over all nodes; `largest_slab`: the largest piece that is pinned in one call."""

    gpus: tuple[BudgetBar, ...]
    nodes: tuple[BudgetBar, ...]
    weights_bytes: int
    kv_bytes: int
    needed_bytes: int
    over_bytes: int
    short_bytes: int
    kv_left_bytes: int
    host_bytes: int
    host_peak_bytes: int
    host_rounded_bytes: int
    largest_slab_bytes: int

    @property
    def reserves_bytes(self) -> int:
        """Of a card: all that is neither weights nor KV."""
        return self.needed_bytes - self.weights_bytes - self.kv_bytes

    @property
    def figures(self) -> dict[str, int]:
        """What a plan file carries of it: the figures that depend on plan and checkpoint alone."""
        return {
            "weights_bytes": self.weights_bytes,
            "reserves_bytes": self.reserves_bytes,
            "kv_bytes": self.kv_bytes,
            "host_bytes": self.host_bytes,
            "host_rounded_bytes": self.host_rounded_bytes,
            "largest_slab_bytes": self.largest_slab_bytes,
        }


def budget(catalogue: Catalogue, plan: Plan, memory: BoxMemory, largest_shard_bytes: int = 0) -> Budget:
    """What `plan` asks of `memory`. `largest_shard_bytes`: of the checkpoint's files, for the page cache; 0 = unknown.
    Raises PlanError when nobody can tell what the contexts cost."""
    tp = plan.topology.tp
    lines = card_lines(catalogue, plan)
    weights = sum(line.bytes for line in lines if line.id.startswith(WEIGHTS))
    kv = sum(line.bytes for line in lines if line.id == KV)
    needed = sum(line.bytes for line in lines)
    smallest = min(memory.vram_bytes[:tp], default=None)
    room = needed if smallest is None else smallest
    nodes = tuple(
        _node(node, memory, node_lines(catalogue, plan, ranks, largest_shard_bytes))
        for node, ranks in memory.ranks_by_node(tp).items()
    )
    return Budget(
        gpus=tuple(_card(card, memory, lines) for card in range(tp)),
        nodes=nodes,
        weights_bytes=weights,
        kv_bytes=kv,
        needed_bytes=needed,
        over_bytes=max(0, weights - room),  # 1
        short_bytes=max(0, needed - room),
        kv_left_bytes=max(0, room - (needed - kv)),  # 2
        host_bytes=sum(bar.total_bytes(Moment.STEADY) for bar in nodes),
        host_peak_bytes=sum(bar.total_bytes(Moment.STEADY, Moment.LOAD) for bar in nodes),
        host_rounded_bytes=sum(bar.total_bytes(Moment.STEADY, Moment.ROUNDED) for bar in nodes),
        largest_slab_bytes=largest_slab_bytes(catalogue, plan),
    )


def _card(card: int, memory: BoxMemory, lines: tuple[BudgetLine, ...]) -> BudgetBar:  # 4
    capacity = memory.vram_bytes[card] if card < len(memory.vram_bytes) else None
    return BudgetBar(id=f"gpu{card}", label=f"card {card}", capacity_bytes=capacity, lines=lines)


def _node(node: int | None, memory: BoxMemory, lines: tuple[BudgetLine, ...]) -> BudgetBar:
    name, label = ("host", "host RAM") if node is None else (f"node{node}", f"NUMA node {node}")
    return BudgetBar(id=name, label=label, capacity_bytes=memory.node_capacity(node), lines=lines)
