"""What is judged about a plan itself, whatever the box holds: one function a check, each yields findings. Pure.

Strangers' text in a plan or in headers (names of tensors, families) is made printable where it is shown.
"""

from __future__ import annotations

from collections.abc import Iterator

from appliance.checkpoint.catalogue import Catalogue, TensorClass
from appliance.checkpoint.tensors import Checkpoint
from appliance.plan import cut, ranges
from appliance.plan.budget import Budget
from appliance.plan.memory import BoxMemory
from appliance.plan.remedies import Remake
from appliance.plan.request import geometry_of, header_hashes
from appliance.plan.schema import Plan
from appliance.printable import printable
from appliance.units import count
from gateway.state import Finding, Severity

NAMED = 5
"""So many tensors are named in a finding, the others are counted."""


def plan_findings(
    plan: Plan, checkpoint: Checkpoint, catalogue: Catalogue, memory: BoxMemory, remake: Remake
) -> Iterator[Finding]:
    """All of them, causes before what they cause."""
    anew, kept = remake.command(), remake.command(keep_experts=True)
    yield from _digest(plan)
    yield from _model(plan, checkpoint, anew)
    yield from _geometry(plan, catalogue, anew)
    yield from _bits(plan, catalogue, anew)
    yield from _tensors(plan, catalogue, kept)
    yield from _engram(plan, catalogue, kept)
    yield from _resident(plan)
    yield from _tp(plan, catalogue, memory, remake)
    yield from _stale(plan, remake.made)


def is_for(plan: Plan, checkpoint: Checkpoint, catalogue: Catalogue) -> bool:
    """Whether the plan is for this checkpoint, as far as it says for which it is."""
    return not _other_marks(plan, checkpoint) and not _other_shape(plan, catalogue)


def _digest(plan: Plan) -> Iterator[Finding]:
    if plan.plan_id and not plan.sealed:
        yield _finding(
            "plan.digest",
            Severity.FAIL,
            "The plan was changed after it was made",
            f"plan_id {plan.plan_id}",
            f"{plan.identity}, which belongs to what it now decides",
            f'if the change is meant, set "plan_id": "{plan.identity}"',
        )


def _model(plan: Plan, checkpoint: Checkpoint, remake: str) -> Iterator[Finding]:
    model = plan.model
    if model.index_sha256 is None and not model.header_sha256:
        yield _finding(
            "plan.unbound",
            Severity.INFO,
            "The plan is not bound to one checkpoint",
            "no hash of an index or of headers",
            "one of them, so that another checkpoint is noticed",
            "none needed if this is the checkpoint that you mean; plan make binds the plan that it makes",
        )
    differs = _other_marks(plan, checkpoint)
    if differs:
        yield _finding(
            "plan.model",
            Severity.FAIL,
            "The plan is for another checkpoint",
            f"{printable(checkpoint.origin)}: {checkpoint.tensor_count:,} tensors, {checkpoint.total_bytes:,} bytes",
            f"{printable(model.name)}: the same " + ", ".join(f"model.{key}" for key in differs),
            remake,
        )


def _other_marks(plan: Plan, checkpoint: Checkpoint) -> list[str]:
    model = plan.model
    return [
        said
        for said, wanted, found in (
            ("index_sha256", model.index_sha256, checkpoint.index_sha256),
            ("header_sha256", model.header_sha256, header_hashes(checkpoint)),
            ("tensor_count", model.tensor_count, checkpoint.tensor_count),
            ("total_bytes", model.total_bytes, checkpoint.total_bytes),
        )
        if wanted and wanted != found
    ]


def _geometry(plan: Plan, catalogue: Catalogue, remake: str) -> Iterator[Finding]:
    differs = _other_shape(plan, catalogue)
    if differs:
        yield _finding(
            "plan.geometry",
            Severity.FAIL,
            "The model has another shape",
            ", ".join(f"{key} {printable(str(found))}" for key, (found, _) in differs.items()),
            ", ".join(f"{key} {printable(str(wanted))}" for key, (_, wanted) in differs.items()),
            remake,
        )


def _other_shape(plan: Plan, catalogue: Catalogue) -> dict[str, tuple[object, object]]:
    """Key of the geometry -> as it is, as the plan says; the quantisation aside."""
    wanted = plan.geometry.model_dump(exclude={"bits_per_layer", "codebook"})
    found = geometry_of(catalogue).model_dump(exclude={"bits_per_layer", "codebook"})
    return {key: (found[key], wanted[key]) for key in wanted if wanted[key] != found[key]}


def _bits(plan: Plan, catalogue: Catalogue, remake: str) -> Iterator[Finding]:
    """What the plan says of the quantisation; a plan that says nothing is content with any."""
    wanted, shape = plan.geometry, catalogue.geometry
    differs = []
    if wanted.codebook is not None and wanted.codebook != shape.codebook:
        differs.append((f"codebook {shape.codebook}", f"codebook {wanted.codebook}"))
    if wanted.bits_per_layer is not None and wanted.bits_per_layer != shape.bits:
        differs.append((f"bits {_bits_text(shape.bits)}", f"bits {_bits_text(wanted.bits_per_layer)}"))
    if differs:
        yield _finding(
            "plan.bits",
            Severity.FAIL,
            "The experts are quantised in another way",
            printable(", ".join(found for found, _ in differs)),
            printable(", ".join(said for _, said in differs)),
            remake,
        )


def _bits_text(bits: tuple[float, ...] | None) -> str:
    if not bits:
        return "unknown"
    return f"{min(bits):g} to {max(bits):g} over {len(bits)} layers"


def _tensors(plan: Plan, catalogue: Catalogue, remake: str) -> Iterator[Finding]:
    unknown = [name for name in plan.host.tensors if name not in catalogue.named]
    if unknown:
        yield _finding(
            "plan.tensors",
            Severity.FAIL,
            f"The plan names {count(len(unknown), 'tensor')} that the checkpoint does not have",
            _names(unknown),
            "names in the headers, of tensors that are no routed experts",
            remake,
        )
    tables = [name for name in plan.host.tensors if catalogue.named_classes.get(name) is TensorClass.ENGRAM]
    if tables:
        yield _finding(
            "plan.tensors",
            Severity.FAIL,
            f"host.tensors names {count(len(tables), 'Engram table')}",
            _names(tables),
            "host.engram alone says where these are",
            "take them out of host.tensors",
        )


def _engram(plan: Plan, catalogue: Catalogue, remake: str) -> Iterator[Finding]:
    there = catalogue.whole_bytes(TensorClass.ENGRAM)
    if there and plan.host.engram is None:
        yield _finding(
            "plan.engram",
            Severity.FAIL,
            "The plan does not say where the Engram tables are",
            f"the checkpoint has {there:,} bytes of them",
            "host.engram",
            'add "engram": {"mode": "pinned"} to "host", or disk, or vram',
        )
    if not there and plan.host.engram is not None:
        yield _finding(
            "plan.engram",
            Severity.FAIL,
            "The plan places Engram tables that the checkpoint does not have",
            "no Engram tables in the headers",
            "no host.engram",
            remake,
        )


def _resident(plan: Plan) -> Iterator[Finding]:
    shape = plan.geometry
    tables = (
        ("layer", plan.host.experts, shape.experts, shape.top_k),
        ("draft layer", plan.host.draft_experts, shape.draft_experts, shape.draft_top_k),
    )
    for what, table, experts, top_k in tables:
        few = [int(layer) for layer, text in table.items() if experts - len(ranges.parse(text)) < top_k]
        if few:
            yield _finding(
                "plan.resident",
                Severity.WARN if plan.limits.whole_layers else Severity.FAIL,
                f"{count(len(few), what)} with fewer experts on the cards than a token visits",
                f"{what}s {ranges.spell(few)}",
                f"{top_k} experts of each {what} on the cards",
                "leave more of them out of host.experts; limits.whole_layers is for engines that run cold layers on"
                " the CPU",
            )


def _tp(plan: Plan, catalogue: Catalogue, memory: BoxMemory, remake: Remake) -> Iterator[Finding]:
    tp, shape, cards = plan.topology.tp, catalogue.geometry, len(memory.vram_bytes)
    could = cut.most_cards(shape, min(tp, cards))
    remedy = "moe-appliance preflight" if could is None else remake.command(gpus=could)
    said = []
    if plan.topology.ep != 1:
        said.append((f"topology.ep {plan.topology.ep}", "1: expert parallelism cannot be budgeted"))
    if not cut.can_be_cut(shape, tp):
        wanted = f"a multiple of {cut.step(shape, tp)}, to be cut for {tp} cards"
        said.append((f"experts are {shape.moe_intermediate} wide", wanted))
    for observed, required in said:
        yield _finding(
            "plan.tp",
            Severity.FAIL,
            "The plan cannot be spread over these cards",
            observed,
            required,
            remedy,
        )
    if cards < tp:
        yield _finding(
            "plan.tp",
            Severity.FAIL,
            "The plan is for more cards than there are",
            count(cards, "card"),
            count(tp, "card"),
            remedy,
        ).model_copy(update={"depends_on": "gpu.count"})


def _stale(plan: Plan, made: Budget) -> Iterator[Finding]:
    said = plan.budget or {}
    differs = {key: value for key, value in made.figures.items() if key in said and said[key] != value}
    if differs:
        yield _finding(
            "plan.stale",
            Severity.INFO,
            "Figures in the plan file are not those of the headers",
            ", ".join(f"budget.{key} {printable(str(said[key]), 40)}" for key in differs),
            ", ".join(f"{value:,}" for value in differs.values()),
            "none needed: figures are always recomputed",
        )


def _finding(name: str, severity: Severity, title: str, observed: str, required: str, remedy: str) -> Finding:
    return Finding(id=name, severity=severity, title=title, observed=observed, required=required, remedy=remedy)


def _names(names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(printable(name, 120) for name in names[:NAMED]) + more
