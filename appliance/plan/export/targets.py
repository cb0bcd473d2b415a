"""The tools that a plan can be written for, as a table. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from appliance.checkpoint.catalogue import Catalogue
from appliance.errors import PlanError
from appliance.plan.export import exl3_command, ktransformers, llamacpp, residency, vllm_uva
from appliance.plan.export.outcome import Outcome
from appliance.plan.schema import Export, Plan

EXL3_COMMAND = "exl3-command"


@dataclass(frozen=True, slots=True)
class Target:
    """A tool: what it is, when it is exact, when only nearly, when not at all. The page shows these words."""

    what: str
    exact: str
    approximate: str
    impossible: str
    export: Callable[[Plan, Catalogue | None], Outcome]


TARGETS: dict[str, Target] = {
    "vllm-uva": Target(
        "Arguments for stock vLLM's UVA offload and its switch for Engram.",
        "All experts of the first so many layers move, or none, and nothing else.",
        "Any other choice: the first layers that are nearest in bytes. Named tensors and the draft's experts stay.",
        "Engram on disk.",
        vllm_uva.export,
    ),
    "residency": Target(
        "The document for this project's vLLM plugin.",
        "Always, when it is possible.",
        "Never.",
        "EXL3, expert parallelism, Engram tables.",
        residency.export,
    ),
    "llamacpp": Target(
        "`--n-cpu-moe` or `-ot` for llama.cpp, with a GGUF file of the same model.",
        "All experts of some layers move, or none; the token embedding may.",
        "Any other choice: the whole layers nearest in bytes. Other named tensors and the draft's experts stay.",
        "EXL3, Engram.",
        llamacpp.export,
    ),
    "ktransformers": Target(
        "Number or share of experts and a rule, for ktransformers under SGLang.",
        "Never: it chooses the experts itself.",
        "A number a layer when it is the same in all of them, else a share of all experts.",
        "EXL3, Engram, a plan that moves no expert.",
        ktransformers.export,
    ),
    EXL3_COMMAND: Target(
        "Your own command line of an EXL3 engine, with the plan filled in.",
        "In principle: the engine's format is not public, so that whether it is carried out is for you to check.",
        "Never.",
        "Experts that are not EXL3.",
        lambda plan, _catalogue: exl3_command.export(plan),
    ),
}


def export(
    target: str,
    plan: Plan,
    catalogue: Catalogue | None = None,
    *,
    template: str | None = None,
    plan_file: str = "",
) -> Outcome:
    """The plan for one of TARGETS. `template`, `plan_file`: for exl3-command alone. Raises PlanError: the catalogue is
    of another model, or the template cannot be used."""
    if catalogue is not None:
        _same_model(plan, catalogue)
    if target == EXL3_COMMAND:
        return exl3_command.export(plan, template, plan_file)
    return TARGETS[target].export(plan, catalogue)


def verdicts(plan: Plan, catalogue: Catalogue | None = None) -> dict[str, Export]:
    """What each tool can do with the plan."""
    outcomes = {name: target.export(plan, catalogue) for name, target in TARGETS.items()}
    return {name: Export(verdict=found.verdict, reason=found.reason) for name, found in outcomes.items()}


def _same_model(plan: Plan, catalogue: Catalogue) -> None:
    if catalogue.missing:
        raise PlanError(f"the checkpoint cannot be used for a plan: {catalogue.missing}", "name another --checkpoint")
    planned, there = plan.geometry, catalogue.geometry
    pairs = (
        ("layers", planned.layers, there.layers),
        ("moe_layers", plan.moe_layers, there.moe_layers),
        ("experts", planned.experts, there.experts),
    )
    for key, said, found in pairs:
        if said != found:
            raise PlanError(
                f"the plan is for another model: geometry.{key} is {said}, the checkpoint has {found}",
                "name the checkpoint that the plan is for, or make a plan for this one: moe-appliance plan make",
            )
