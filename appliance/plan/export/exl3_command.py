"""An EXL3 engine that places single experts, started by a command of the operator's. Pure.

The format in which such an engine takes a placement is not public. So the operator gives the command and says with
placeholders where the plan goes; we fill them in and refuse a command that would lose a part of the plan.
"""

from __future__ import annotations

import json
import re
import shlex

from appliance.errors import PlanError
from appliance.plan import ranges
from appliance.plan.export.outcome import Outcome, impossible, is_exl3
from appliance.plan.schema import Plan

PLACEHOLDERS = ("plan_file", "experts_json", "engram", "tensors")
_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
_EXAMPLE = "--template 'my-engine --placement {plan_file}'"


def export(plan: Plan, template: str | None = None, plan_file: str = "") -> Outcome:
    """The command with its placeholders filled in. Raises PlanError: it is no command line, names what there is not,
    or leaves out what the plan moves."""
    if not is_exl3(plan):
        return impossible("the experts are not EXL3")
    reason = (
        "exact in principle: single experts can be placed, but the engine's format is not public; whether your command "
        "means the plan is for you to check"
    )
    if template is None:
        return Outcome("exact", reason, needs=f"the engine's command line is yours to give: {_EXAMPLE}")
    values = {
        "plan_file": plan_file,
        "experts_json": _experts(plan),
        "engram": plan.host.engram.mode if plan.host.engram is not None else "none",
        "tensors": ",".join(plan.host.tensors),
    }
    words = _words(template)
    _check(plan, words)
    hidden = next((name for name, value in values.items() if not value.isprintable()), None)
    if hidden is not None:  # the line goes to terminals and shells
        raise PlanError(f"--template: what {{{hidden}}} stands for has control characters", "rename it in the plan")
    argv = tuple(_PLACEHOLDER.sub(lambda match: values[match[1]], word) for word in words)
    return Outcome("exact", reason, argv=argv)


def _experts(plan: Plan) -> str:
    """Layer -> its cold experts, as numbers."""
    table = {layer: ranges.parse(text) for layer, text in plan.host.experts.items()}
    return json.dumps(table, separators=(",", ":"))


def _words(template: str) -> list[str]:
    try:
        words = shlex.split(template)
    except ValueError as error:
        raise PlanError(f"--template: not a command line: {error}", _EXAMPLE) from error
    if not words or "\0" in template:
        raise PlanError("--template: not a command line", _EXAMPLE)
    return words


def _check(plan: Plan, words: list[str]) -> None:
    named = {name for word in words for name in _PLACEHOLDER.findall(word)}
    unknown = sorted(named - set(PLACEHOLDERS))
    if unknown:
        there = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
        raise PlanError(f"--template: unknown placeholder {{{unknown[0]}}}", f"there are {there}")
    if "plan_file" in named:
        return
    host = plan.host
    if host.draft_experts:
        raise PlanError("--template: the plan moves experts of the draft model, which only {plan_file} says", _EXAMPLE)
    parts = (("experts_json", host.experts), ("engram", host.engram), ("tensors", host.tensors))
    lost = [name for name, moved in parts if moved and name not in named]
    if lost:
        missing = ", ".join(f"{{{name}}}" for name in lost)
        raise PlanError(f"--template: a part of the plan would be lost: {missing} does not occur", _EXAMPLE)
