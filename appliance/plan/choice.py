"""Which experts a request means: the steps that a plan may take, or the experts that it names. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from appliance.checkpoint.catalogue import Catalogue
from appliance.errors import PlanError
from appliance.plan import order, ranges
from appliance.plan.order import Step
from appliance.plan.request import Request
from appliance.plan.stats import RoutingStats

Cold = Mapping[int, Sequence[int]]
"""Layer -> its cold experts."""


def _keep(catalogue: Catalogue, request: Request) -> int:
    return 0 if request.limits.whole_layers else catalogue.geometry.top_k


def steps_of(catalogue: Catalogue, request: Request, stats: RoutingStats | None) -> list[Step]:
    """The steps of the request's way of choosing, the first to go first. Raises PlanError."""
    experts, keep = catalogue.geometry.experts, _keep(catalogue, request)
    layers = sorted(catalogue.experts)
    visits = stats.counts if stats is not None else None
    going = {layer: order.candidates(experts, keep, None if visits is None else visits[layer]) for layer in layers}
    match request.method:
        case "routing-stats":
            if visits is None:
                raise PlanError("routing-stats: there are no statistics", "--stats FILE, or --select uniform")
            return list(order.coldest_first(going, visits))
        case "layers":
            unknown = sorted(set(request.layers).difference(layers))
            if unknown:
                raise PlanError(f"layers: layer {unknown[0]} has no routed experts", f"--layers {ranges.spell(layers)}")
            return list(order.by_layer(going, request.layers))
        case _:
            return list(order.level(going))


def as_listed(catalogue: Catalogue, request: Request) -> Cold:
    """The experts of the request's table, unchanged. Raises PlanError when the model has no such experts, or too few
    are left."""
    keep, shape = _keep(catalogue, request), catalogue.geometry
    for layer, experts in request.table.items():
        if layer not in catalogue.experts:
            raise PlanError(f"list: layer {layer} has no routed experts", "take it out of the list")
        beyond = [expert for expert in experts if not 0 <= expert < shape.experts]
        if beyond:
            raise PlanError(f"list: layer {layer} has no expert {beyond[0]}", f"they are 0 to {shape.experts - 1}")
        left = shape.experts - len(experts)
        if left < keep:
            raise PlanError(
                f"list: layer {layer} keeps {left} experts on the cards, a token visits {shape.top_k}",
                "leave more in it, or --whole-layers for an engine that runs cold layers on the CPU",
            )
    return {layer: tuple(experts) for layer, experts in request.table.items() if experts}


def so_many(steps: Sequence[Step], experts: int) -> Cold:
    """The steps that have `experts` experts together. Raises PlanError when no number of steps has."""
    below = taken = 0
    for count, (_, going) in enumerate((*steps, (0, ()))):
        if taken == experts:
            return collected(steps[:count])
        if taken > experts:
            raise PlanError(
                f"experts: {experts:,} is not a number of whole layers", f"--experts {below} or --experts {taken}"
            )
        below, taken = taken, taken + len(going)
    raise PlanError(
        f"experts: {experts:,} cannot go to the host, {taken:,} at most: each layer keeps what a token visits",
        f"--experts {taken}",
    )


def collected(steps: Iterable[Step]) -> Cold:
    """The experts of some steps, by layer."""
    cold: dict[int, list[int]] = {}
    for layer, experts in steps:
        cold.setdefault(layer, []).extend(experts)
    return cold
