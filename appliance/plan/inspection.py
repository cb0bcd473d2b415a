"""Checks, or makes, the plan of a box: reads plan file and headers, and says what the plan wants of the box.

Touches the plan file and the checkpoint's folder. Reading 96,000 headers takes a second and memory, and a network file
system may not answer at all: the daemon has `inspect_child.py` do it in a process of its own, under a deadline.

Rules:
- A plan that cannot be used is a finding and not an exception: the engine is refused and the gateway says why.
- Without a checkpoint nothing can be recomputed. The plan's own figures are not believed, so there are no bars then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote

from pydantic import TypeAdapter

from appliance.box.needs import Needs
from appliance.checkpoint.catalogue import catalogue_of
from appliance.checkpoint.read import read
from appliance.checkpoint.sources import source_of
from appliance.checkpoint.tensors import Checkpoint
from appliance.errors import CheckpointError, PlanError
from appliance.plan import planfile
from appliance.plan.check import Checked, check
from appliance.plan.export import vllm_uva
from appliance.plan.export.outcome import Outcome
from appliance.plan.memory import BoxMemory
from appliance.plan.planner import plan_for
from appliance.plan.request import Request, model_of
from appliance.plan.schema import Plan, Targets
from appliance.plan.settings import PlanSettings
from appliance.units import GIB, count
from gateway.state import EngineProfile, Finding, PlanState, Severity


@dataclass(frozen=True, slots=True)
class Inspection:
    """What came of it. `state` None = there is no plan, or it could not be checked; `needs`: for the box's checks;
    `profile`: what the plan says an engine with it does; `uva`: the plan in the words of vLLM's own offload, when that
    was asked for."""

    findings: tuple[Finding, ...] = ()
    state: PlanState | None = None
    needs: Needs = field(default_factory=Needs)
    profile: EngineProfile | None = None
    uva: Outcome | None = None


INSPECTION = TypeAdapter(Inspection)


@dataclass(frozen=True, slots=True)
class Question:
    """What to inspect. `memory`: of the cards that the engine uses, and of the nodes. `cards`: how many of them there
    should be; None = nobody says. `whole`: all cards answer. `save`: a plan that is made is kept: only the daemon does
    that, others look at what it would make. `uva`: say it in the words of vLLM's own offload as well."""

    settings: PlanSettings
    memory: BoxMemory
    cards: int | None = None
    whole: bool = True
    save: bool = False
    uva: bool = False


QUESTION = TypeAdapter(Question)


def inspect(question: Question, environ: Mapping[str, str]) -> Inspection:
    """Check the plan against its checkpoint and the box; make it first where that is asked for."""
    settings, memory = question.settings, question.memory
    if settings.file is None:
        return Inspection()
    made = settings.make and not settings.file.exists()
    there = len(memory.vram_bytes)
    if made and (not question.whole or there < (question.cards or 1)):
        return Inspection((_not_made(question),), None, Needs(gpus=question.cards or 1))
    try:
        checkpoint = _checkpoint(settings, environ)
    except CheckpointError as error:
        return Inspection((_failed("plan.checkpoint", "The checkpoint cannot be used", error),))
    try:
        plan = _made(question, checkpoint) if made else planfile.load(settings.file)
        others = _other_number(plan, question)
        if checkpoint is None:
            return Inspection((_unchecked(settings.file), *others), None, _needs(plan), _profile(plan))
        catalogue = catalogue_of(checkpoint)
        checked = check(plan, checkpoint, catalogue, memory, str(settings.file))
        uva = vllm_uva.export(plan, catalogue) if question.uva else None
    except PlanError as error:
        return Inspection((_failed("plan.file", "The plan cannot be used", error),))
    needs = _needs(plan, checked)
    findings = (*checked.findings, *others)
    return Inspection(findings, checked.to_state(str(settings.file), made), needs, _profile(plan), uva)


def _checkpoint(settings: PlanSettings, environ: Mapping[str, str]) -> Checkpoint | None:
    if settings.checkpoint is None:
        return None
    return read(source_of(str(settings.checkpoint)), environ=environ)


def _made(question: Question, checkpoint: Checkpoint | None) -> Plan:
    """A plan for the cards that the engine uses. Raises PlanError."""
    settings, memory = question.settings, question.memory
    assert settings.file is not None
    assert settings.checkpoint is not None, "PlanSettings sees to it"
    assert checkpoint is not None
    request = Request(
        vram_bytes=min(memory.vram_bytes),
        tp=len(memory.vram_bytes),
        targets=Targets(kv_bytes=int(settings.kv_gib * GIB)),
        gpu_names=memory.names,
        numa=memory.numa,
    )
    model = model_of(checkpoint, settings.checkpoint.name)
    plan = plan_for(catalogue_of(checkpoint), model, request, origin=checkpoint.origin)
    plan = planfile.stamped(plan)
    if question.save:
        planfile.save(plan, settings.file)
    return plan


def _not_made(question: Question) -> Finding:
    """A plan for the cards that happen to answer would stay when the others come back."""
    there = len(question.memory.vram_bytes)
    return Finding(
        id="plan.file",
        severity=Severity.FAIL,
        title="The plan is not made while cards are missing",
        observed=f"{count(there, 'card')} to plan for",
        required="all cards that the engine uses" if question.cards is None else count(question.cards, "card"),
        remedy="moe-appliance preflight",
        depends_on="gpu.count",
    )


def _other_number(plan: Plan, question: Question) -> tuple[Finding, ...]:
    wanted = plan.topology.tp * plan.topology.ep
    if question.cards in (None, wanted):
        return ()
    return (
        Finding(
            id="plan.gpus",
            severity=Severity.FAIL,
            title="The plan is for another number of cards than [preflight] gpus",
            observed=f"the plan: {count(wanted, 'card')}",
            required=f"[preflight] gpus: {count(question.cards or 0, 'card')}",
            remedy=f"leave [preflight] gpus out, or make a plan for {question.cards}: moe-appliance plan make --gpus "
            f"{question.cards}",
        ),
    )


def _profile(plan: Plan) -> EngineProfile | None:
    said = plan.profile
    return None if said is None else EngineProfile(**said.model_dump(include=set(EngineProfile.model_fields)))


def _needs(plan: Plan, checked: Checked | None = None) -> Needs:
    return Needs(
        gpus=plan.topology.tp * plan.topology.ep,
        gpu_names=plan.topology.gpu_names,
        bars=checked.bars if checked is not None else (),
        largest_region_bytes=checked.budget.largest_slab_bytes if checked is not None else None,
        plan=plan.model.name,
        plan_id=plan.identity,
        kv_tier_bytes=plan.targets.kv_tier_bytes,
    )


def _failed(id: str, title: str, error: PlanError | CheckpointError) -> Finding:
    return Finding(
        id=id,
        severity=Severity.FAIL,
        title=title,
        observed=error.message,
        required="a plan file and a checkpoint that belong together",
        remedy=error.remedy,
    )


def _unchecked(file: Path) -> Finding:
    return Finding(
        id="plan.unchecked",
        severity=Severity.WARN,
        title="Nobody has checked that the plan fits",
        observed="[plan] checkpoint is not set, so no header can be read",
        required="the folder of the weights that the plan is for",
        remedy=f'set [plan] checkpoint = "FOLDER", or: moe-appliance plan check {quote(str(file))} --checkpoint FOLDER',
    )
