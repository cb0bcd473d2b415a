"""`moe-appliance plan check`: does a plan fit its checkpoint and a box. Touches what it reads, and the terminal."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated

import typer

from appliance.cli.box import Box
from appliance.cli.context import JsonOption
from appliance.cli.plan_inputs import (
    GIB_MAX,
    Cards,
    CheckpointOption,
    ExplainOption,
    PlanArgument,
    cards,
    headers,
    render,
)
from appliance.errors import EXIT_CONFIG, PlanError
from appliance.plan import planfile
from appliance.plan.check import check
from appliance.plan.memory import stated
from appliance.plan.schema import Plan
from appliance.units import GIB


def register(app: typer.Typer) -> None:
    """Add the verb to `plan`."""
    app.command("check")(check_plan)


def check_plan(
    ctx: typer.Context,
    plan: PlanArgument,
    checkpoint: CheckpointOption,
    gpus: Annotated[
        int | None, typer.Option(min=1, max=64, help="How many cards there are. Default: this box's, or the plan's.")
    ] = None,
    vram_gib: Annotated[
        float | None, typer.Option(min=0.1, max=GIB_MAX, help="GiB of each card. Default: this box's, or the plan's.")
    ] = None,
    kv_gib: Annotated[
        float | None, typer.Option(min=0, max=GIB_MAX, help="GiB of KV cache on each card. Default: as the plan says.")
    ] = None,
    explain: ExplainOption = False,
    as_json: JsonOption = False,
) -> None:
    """Say whether a plan fits, for which all bytes are counted anew from the headers. Exit 0: it does; 78: it does
    not, or is not for this checkpoint."""
    box: Box = ctx.obj
    found = planfile.load(plan)
    read, catalogue = headers(checkpoint, box.environ)
    there = _cards(found, vram_gib, gpus, box.environ)
    asked = found if kv_gib is None else _with_kv(found, int(kv_gib * GIB))
    checked = check(asked, read, catalogue, there.memory, str(plan))
    if as_json:
        print(json.dumps({"file": str(plan), **checked.to_json(), "cards": there.said}, indent=2))
    else:
        render(checked, there, explain)
    if not checked.fits:
        raise typer.Exit(EXIT_CONFIG)


def _cards(plan: Plan, vram_gib: float | None, gpus: int | None, environ: Mapping[str, str]) -> Cards:
    """Stated, this box's, or the plan's own, in that order."""
    if vram_gib is not None:
        return cards(vram_gib, gpus or plan.topology.tp, environ)
    try:
        return cards(None, gpus, environ)
    except PlanError as error:
        said = f"as the plan says ({error.message})"
        return Cards(stated(plan.topology.vram_bytes_each, gpus or plan.topology.tp), said)


def _with_kv(plan: Plan, kv_bytes: int) -> Plan:
    """The plan with another KV cache; it is the same plan otherwise, and is asked about under its own plan_id only when
    it had one that was right."""
    targets = plan.targets.model_copy(update={"kv_bytes": kv_bytes})
    other = plan.model_copy(update={"targets": targets, "budget": None})
    return other.seal() if plan.sealed else other
