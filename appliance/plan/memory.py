"""The memory that a plan is checked against: cards, and the NUMA nodes that they hang on. Pure.

Rules:
- A card's capacity is what the driver reports for it; what the driver keeps of that is a line of the budget.
- A card without a node is on the only node there is. With several nodes and one card whose node is unknown, nobody can
  say what each node holds: then all of host memory is budgeted as one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from appliance.box.facts import node_of
from appliance.box.gpu import GpuReport
from appliance.box.host import Host


@dataclass(frozen=True, slots=True)
class BoxMemory:
    """`vram_bytes`: of each card, in the driver's order. `numa`: the node of each card, None or missing = unknown.
    `node_bytes`: node -> its memory, huge pages not counted; empty = unknown. `names`: of the cards, when known."""

    vram_bytes: tuple[int, ...]
    numa: tuple[int | None, ...] = ()
    node_bytes: Mapping[int, int] = field(default_factory=dict)
    names: tuple[str, ...] = ()

    def ranks_by_node(self, tp: int) -> dict[int | None, int]:
        """How many of the first `tp` cards hang on each node; all on None when that is not known."""
        nodes = [self._node(card) for card in range(tp)]
        if None in nodes:
            return {None: tp}
        return {node: nodes.count(node) for node in sorted(node for node in nodes if node is not None)}

    def node_capacity(self, node: int | None) -> int | None:
        """Memory of a node, of all of them for None; None = not known."""
        if node is not None:
            return self.node_bytes.get(node)
        return sum(self.node_bytes.values()) or None

    def _node(self, card: int) -> int | None:
        node = self.numa[card] if card < len(self.numa) else None
        if node is None and len(self.node_bytes) == 1:
            return next(iter(self.node_bytes))
        return node


def stated(vram_bytes: int, cards: int) -> BoxMemory:
    """So many equal cards in a machine of which nothing else is known."""
    return BoxMemory((vram_bytes,) * cards)


def of_box(report: GpuReport, host: Host | None = None) -> BoxMemory:
    """The cards and nodes of this machine, as they were gathered."""
    nodes = host.nodes if host is not None else ()
    numa = (node_of(gpu, host) for gpu in report.gpus)
    return BoxMemory(
        vram_bytes=tuple(gpu.total_bytes for gpu in report.gpus),
        numa=tuple(node if node is not None and node >= 0 else None for node in numa),
        node_bytes={node.id: max(0, node.total_bytes - node.hugepages_bytes) for node in nodes},
        names=tuple(gpu.name for gpu in report.gpus),
    )
