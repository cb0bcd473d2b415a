"""A plan rounded to whole layers, and by how much that is not the plan. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from appliance.checkpoint.catalogue import Catalogue
from appliance.plan import ranges
from appliance.plan.schema import Plan
from appliance.units import GIB, count


@dataclass(frozen=True, slots=True)
class Rounded:
    """Whole layers in place of a plan's experts.

    `added`: experts that go to the host though the plan keeps them on the cards; `left`: the reverse. `extra_bytes`:
    what the host holds more than the plan says (less, when negative), over all ranks; None without a checkpoint.
    """

    layers: tuple[int, ...]
    added: int
    left: int
    extra_bytes: int | None

    @property
    def exact(self) -> bool:
        """Whether the plan's layers are whole already."""
        return not self.added and not self.left

    @property
    def said(self) -> str:
        """The difference in words."""
        spelled = ranges.spell(self.layers)
        nearest = f"nearest are whole layers {spelled}" if self.layers else "nearest is no layer at all"
        size = "" if self.extra_bytes is None else f", {gib(self.extra_bytes)} on the host"
        more, fewer = count(self.added, "expert"), count(self.left, "expert")
        return f"{nearest}: {more} more and {fewer} fewer than the plan's{size}"

    @property
    def differs(self) -> dict[str, int]:
        """The difference for programs."""
        figures = {"experts_added": self.added, "experts_left": self.left}
        return figures if self.extra_bytes is None else figures | {"host_bytes": self.extra_bytes}


def gib(change_bytes: int) -> str:
    """A difference in GiB, with its sign."""
    return f"{change_bytes / GIB:+.2f} GiB"


def first_layers(plan: Plan, catalogue: Catalogue | None) -> Rounded:
    """The first so many layers with experts, whole, that come nearest to the plan's bytes (to its number of experts
    without a catalogue)."""
    order = plan.moe_layers
    return min((_against(plan, order[:n], catalogue) for n in range(len(order) + 1)), key=_distance)


def nearest_layers(plan: Plan, catalogue: Catalogue | None) -> Rounded:
    """Whole layers that come nearest to the plan's bytes, those with the most cold experts first."""
    cold = {layer: len(plan.cold(layer)) for layer in plan.moe_layers}
    order = sorted((layer for layer in cold if cold[layer]), key=lambda layer: (-cold[layer], layer))
    return min((_against(plan, sorted(order[:n]), catalogue) for n in range(len(order) + 1)), key=_distance)


def _distance(rounded: Rounded) -> tuple[int, int]:
    by_count = rounded.added - rounded.left
    apart = by_count if rounded.extra_bytes is None else rounded.extra_bytes
    return (abs(apart), rounded.added + rounded.left)


def _against(plan: Plan, chosen: Collection[int], catalogue: Catalogue | None) -> Rounded:
    added: dict[int, int] = {}
    left: dict[int, int] = {}
    for layer in plan.moe_layers:
        cold = len(plan.cold(layer))
        (added if layer in chosen else left)[layer] = plan.geometry.experts - cold if layer in chosen else cold
    extra = None if catalogue is None else _bytes(added, catalogue) - _bytes(left, catalogue)
    return Rounded(tuple(chosen), sum(added.values()), sum(left.values()), extra)


def _bytes(experts: Mapping[int, int], catalogue: Catalogue) -> int:
    return sum(number * catalogue.expert_bytes(layer) for layer, number in experts.items() if number)
