"""Makes a plan: the least to move to host RAM, along a fixed order, so that the cards hold the rest. Pure.

What moves, in this order; a plan is the first prefix that fits:
1. Engram tables: always pinned in host RAM, unless the request puts them elsewhere.
2. The embedding: when the cards do not hold everything else, or experts are asked to move; never when the request keeps
   it, and never when the head shares its weights, which every token reads whole.
3. Routed experts, step by step along the order of the selection (order.py). Draft experts and other tensors stay.
"Fits" is the budget's own sum, page by page, counted on for each step; no plan fits when not even the step does after
which a card needs least, which need not be the last. A plan of a given number of experts, or of a given list, is made
whether or not it fits: the check says so.
"""

from __future__ import annotations

from collections.abc import Sequence

from appliance.checkpoint.catalogue import Catalogue, TensorClass
from appliance.errors import PlanError
from appliance.plan import cut, ranges
from appliance.plan.budget import Budget, budget
from appliance.plan.choice import Cold, as_listed, collected, so_many, steps_of
from appliance.plan.fit_checks import kv_exact, reserves_exact
from appliance.plan.memory import stated
from appliance.plan.order import Step
from appliance.plan.remedies import quoted
from appliance.plan.request import Request, geometry_of
from appliance.plan.schema import HostEngram, Plan, PlanHost, PlanModel, Selection
from appliance.plan.slabs import Staging, split
from appliance.plan.stats import RoutingStats
from appliance.printable import printable
from appliance.units import GIB, gib, size


def plan_for(
    catalogue: Catalogue,
    model: PlanModel,
    request: Request,
    stats: RoutingStats | None = None,
    *,
    origin: str | None = None,
) -> Plan:
    """The plan that `request` asks for, sealed. `origin`: where the checkpoint was read, for errors. Raises PlanError:
    the model cannot be planned, no plan fits (by how much the best one misses, what to lower), or the request
    contradicts itself or the model."""
    _refuse(catalogue, request, origin)
    if stats is not None:
        stats.require_shape(catalogue.geometry)
    bare = _bare(catalogue, model, request, stats)
    if request.method == "manual":
        made = _moved(catalogue, bare, request, as_listed(catalogue, request))
    elif request.experts is not None:
        made = _moved(catalogue, bare, request, so_many(steps_of(catalogue, request, stats), request.experts))
    else:
        made = _least(catalogue, bare, request, steps_of(catalogue, request, stats))
    if stats is not None:
        hits = stats.hits_per_token({layer: made.cold(layer) for layer in catalogue.experts})
        selection = made.selection.model_copy(update={"expected_cold_hits_per_token": round(hits, 4)})
        made = made.model_copy(update={"selection": selection})
    return made.model_copy(update={"budget": _budget(catalogue, made).figures}).seal()


def _refuse(catalogue: Catalogue, request: Request, origin: str | None) -> None:
    """Raise what no plan for this model can be."""
    if catalogue.missing:
        where = "PATH" if origin is None else quoted(origin)
        raise PlanError(
            f"{catalogue.family}: cannot be planned: {printable(catalogue.missing)}",
            f"moe-appliance checkpoint show {where}",
        )
    if request.engram == "disk" and not catalogue.whole_bytes(TensorClass.ENGRAM):
        raise PlanError("--engram disk: the checkpoint has no Engram tables", "leave --engram out")
    shape, tp = catalogue.geometry, request.tp
    if not cut.can_be_cut(shape, tp):
        could = cut.most_cards(shape, tp)
        raise PlanError(
            f"experts are {shape.moe_intermediate:,} wide and cannot be cut for {tp} cards, which takes a multiple of"
            f" {cut.step(shape, tp)}",
            "a checkpoint in another format" if could is None else f"--gpus {could}",
        )


def _bare(catalogue: Catalogue, model: PlanModel, request: Request, stats: RoutingStats | None) -> Plan:
    """The plan with everything on the cards but the Engram tables.  (1)"""
    engram = HostEngram(mode=request.engram) if catalogue.whole_bytes(TensorClass.ENGRAM) else None
    selection = Selection(method=request.method)
    if stats is not None:
        selection = Selection(method=request.method, stats_sha256=stats.sha256, tokens=stats.tokens)
    return Plan(
        model=model,
        geometry=geometry_of(catalogue),
        topology=request.topology,
        host=PlanHost(engram=engram),
        selection=selection,
        targets=request.targets,
        limits=request.limits,
        profile=request.profile,
    )


def _budget(catalogue: Catalogue, plan: Plan) -> Budget:
    return budget(catalogue, plan, stated(plan.topology.vram_bytes_each, plan.topology.tp))


def _moved(catalogue: Catalogue, bare: Plan, request: Request, cold: Cold) -> Plan:
    """`bare` with `cold` experts and, by rule 2, the embedding on the host."""
    if not cold and not _budget(catalogue, bare).short_bytes:
        return bare
    return _with_experts(_with_embedding(catalogue, bare, request), cold)


def _with_embedding(catalogue: Catalogue, bare: Plan, request: Request) -> Plan:  # 2
    if request.keep_embedding or not catalogue.whole_bytes(TensorClass.HEAD):
        return bare
    names = tuple(name for name, cls in catalogue.named_classes.items() if cls is TensorClass.EMBEDDING)
    return bare.model_copy(update={"host": PlanHost(engram=bare.host.engram, tensors=names)})


def _with_experts(plan: Plan, cold: Cold) -> Plan:
    table = {str(layer): ranges.spell(experts) for layer, experts in sorted(cold.items())}
    host = PlanHost(experts=table, engram=plan.host.engram, tensors=plan.host.tensors)
    return plan.model_copy(update={"host": host})


def _least(catalogue: Catalogue, bare: Plan, request: Request, steps: Sequence[Step]) -> Plan:
    """The first prefix that fits; see the top of the module."""
    if not _budget(catalogue, bare).short_bytes:
        return bare
    start = _with_embedding(catalogue, bare, request)
    needed = _needed(catalogue, start, steps)
    best = min(range(len(needed)), key=lambda taken: needed[taken])
    if needed[best] > request.vram_bytes:
        raise _impossible(catalogue, _with_experts(start, collected(steps[:best])))
    taken = next(taken for taken, bytes_ in enumerate(needed) if bytes_ <= request.vram_bytes)
    made = _with_experts(start, collected(steps[:taken]))
    pinned, most = _budget(catalogue, made).host_bytes, request.limits.max_host_bytes
    if most is not None and pinned > most:
        raise PlanError(
            f"the least that fits the cards pins {gib(pinned)} of host RAM, {size(pinned - most)} more than allowed",
            f"--max-host-gib {_up(pinned)}, or less for KV: --kv-gib",
        )
    return made


def _needed(catalogue: Catalogue, start: Plan, steps: Sequence[Step]) -> list[int]:
    """What a card needs after each number of steps, from none on; one split of one layer a step. It may rise: staging
    is for the fullest layer, so that an expert more there may take more than it gives back."""
    tp = start.topology.tp
    held = {layer: split(tensors, 0, tp) for layer, tensors in catalogue.experts.items()}
    cold = dict.fromkeys(held, 0)
    rest, staging = _budget(catalogue, start).needed_bytes, Staging()
    needed = [rest]
    for layer, experts in steps:
        cold[layer] += len(experts)
        before, after = held[layer], split(catalogue.experts[layer], cold[layer], tp)
        rest += after.vram_bytes - before.vram_bytes
        held[layer], staging = after, staging.shared_with(after.staging)
        needed.append(rest + staging.total_bytes)
    return needed


def _impossible(catalogue: Catalogue, best: Plan) -> PlanError:
    left, total = _budget(catalogue, best), catalogue.geometry.experts * len(catalogue.experts)
    reserves, kv = "" if reserves_exact(left) else "~", "" if kv_exact(left) else "~"
    said = (
        f"no plan fits: with {best.cold_count:,} of {total:,} experts in host RAM, a card still misses"
        f" {size(left.short_bytes, exact=not reserves + kv)} ({left.weights_bytes / GIB:.1f} weights,"
        f" {reserves}{left.reserves_bytes / GIB:.1f} reserves, {kv}{left.kv_bytes / GIB:.1f} KV,"
        f" {best.topology.vram_bytes_each / GIB:.1f} there)"
    )
    more_cards = f"--gpus {best.topology.tp * 2}"
    if left.kv_left_bytes < GIB // 10:
        return PlanError(said, more_cards)
    return PlanError(said, f"--kv-gib {left.kv_left_bytes * 10 // GIB / 10}, or {more_cards}")


def _up(count: int) -> int:
    return -(-count // GIB)
