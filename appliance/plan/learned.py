"""The plan that an engine has learned: the one that it was started with, and what is cold by now. Pure.

Rules:
- As many experts of each layer are cold as before, so that all bytes of the plan stay as they are.
- What is learned is a list: the same experts make the same plan_id, whatever was counted. Which plan they were learned
  with stands in the note.
"""

from __future__ import annotations

from appliance.errors import PlanError
from appliance.plan import ranges
from appliance.plan.schema import Plan, Selection
from appliance.printable import printable
from appliance.residency.document import Residency

_NOTE = "learned from plan "
_SHOWN = len("sha256:") + 12


def learned(plan: Plan, now: Residency, file: str, anew: str) -> Plan:
    """`plan`, of `file`, with the experts that are cold `now`. `anew`: the command that plans by all visits, for a
    remedy. Raises PlanError: `now` is of another plan, has another number of cold experts in a layer, or the very ones
    of the plan."""
    shown = printable(file)
    if now.plan_id != plan.identity:
        raise PlanError(
            f"the engine learns with plan {_short(now.plan_id)}, and {shown} is {_short(plan.identity)}",
            "moe-appliance status   unless it is starting with that one just now: moe-appliance restart",
        )
    cold = {layer: experts for layer, experts in now.cold.items() if experts}
    for layer in sorted(cold.keys() | {int(layer) for layer in plan.host.experts}):
        there, planned = len(cold.get(layer, ())), len(plan.cold(layer))
        if there != planned:
            raise PlanError(
                f"layer {layer}: {there} experts are cold, the plan has {planned}: what was learned is damaged",
                f"{anew}   plans by all visits",
            )
    host = plan.host.model_copy(update={"experts": {str(layer): ranges.spell(cold[layer]) for layer in sorted(cold)}})
    if host == plan.host:
        raise PlanError(
            f"nothing was learned yet: the experts that are cold are those of {shown}",
            "moe-appliance status   counts exchanges; there are none with [engine] follow_mib_per_s = 0",
        )
    return plan.model_copy(update={"host": host, "selection": Selection(method="manual"), "note": _note(plan)}).seal()


def moved(before: Plan, after: Plan) -> int:
    """How many experts of `after` are cold that are not in `before`."""
    return sum(len(set(after.cold(int(layer))) - set(before.cold(int(layer)))) for layer in after.host.experts)


def _note(plan: Plan) -> str:
    """What was said of the plan before stays; of a plan that was learned itself, what was said of the first."""
    first = plan.note.partition("\n")[2] if plan.note.startswith(_NOTE) else plan.note
    return f"{_NOTE}{plan.identity}\n{first}".rstrip("\n")


def _short(plan_id: str) -> str:
    return printable(plan_id[:_SHOWN])
