"""`moe-appliance plan learned`: keeps what the engine has learned as a plan. Touches the configuration, what the engine
wrote into the state folder, FILE, the terminal."""

from __future__ import annotations

import json
import os
from pathlib import Path
from shlex import quote

import typer

from appliance.cli.box import Box
from appliance.cli.context import JsonOption, say
from appliance.cli.plan_make import OutOption, OverwriteOption
from appliance.errors import PlanError
from appliance.files import read_regular
from appliance.plan import jsonfile, planfile
from appliance.plan.learned import learned, moved
from appliance.plan.remedies import by_counts
from appliance.plan.schema import Plan
from appliance.printable import printable
from appliance.residency.deciding import COUNTS, LEARNED, before
from appliance.residency.document import REMEDY, Residency, parse
from appliance.residency.errors import REFUSED, ResidencyError

_DAMAGED = "moe-appliance status   an engine that serves writes it anew within seconds"
_LATER = "moe-appliance status   tells what residency counts, once the engine has served some hundred tokens"


def register(app: typer.Typer) -> None:
    """Add the verb to `plan`."""
    app.command("learned")(plan_learned)


def plan_learned(
    ctx: typer.Context, out: OutOption = None, overwrite: OverwriteOption = False, as_json: JsonOption = False
) -> None:
    """Make a plan of the one that serves with the experts that are cold by now: with placement = "residency" they
    follow the traffic. Its next start begins where this one is. Needs the rights of the engine's user."""
    if out is not None:
        planfile.target(out, overwrite)
    file, written = _served(ctx.obj)
    plan = planfile.load(file)
    now, is_before = _now(written / LEARNED, plan)
    counts = before(written / COUNTS) if is_before else written / COUNTS
    checkpoint = ctx.obj.config.plan.checkpoint
    anew = by_counts(plan, None if checkpoint is None else str(checkpoint), str(counts))
    made = planfile.stamped(learned(plan, now, str(file), anew))
    if out is not None:
        planfile.save(made, out, overwrite)
    changed = moved(plan, made)
    if as_json:
        said = {"file": None if out is None else str(out), "from": plan.identity, "moved": changed}
        print(json.dumps(said | {"plan": json.loads(planfile.dumps(made))}, indent=2))
        return
    if is_before:
        say("the engine that serves has counted nothing yet: what the one before it learned")
    _tell(plan, changed, out, anew if os.path.lexists(counts) else None)


def _tell(plan: Plan, changed: int, out: Path | None, anew: str | None) -> None:
    print(f"{changed:,} of {plan.cold_count:,} experts in host RAM are others than the plan's")
    if out is None:
        say("not written; --out FILE writes it")
    else:
        shown = quote(printable(str(out)))
        say(f"written to {printable(str(out))}", f"to serve with it: moe-appliance plan use {shown}")
    if anew is not None:
        say(f"to plan anew by all visits since the start, which the next start but one forgets: {anew}")


def _served(box: Box) -> tuple[Path, Path]:
    """The file of the plan that serves, and the folder that the engine writes into. Raises PlanError."""
    from appliance.engine.vllm.plugin import written_in
    from appliance.engine.vllm.settings import VllmSettings
    from appliance.using import as_used

    config = as_used(box.config, box.paths)
    if not isinstance(config.engine, VllmSettings) or config.engine.placement != "residency":
        raise PlanError("the engine's experts follow no traffic", '[engine] kind = "vllm" and placement = "residency"')
    if config.plan.file is None:
        raise PlanError("the engine serves without a plan", "[plan] file, or moe-appliance plan use PLAN")
    return config.plan.file, written_in(box.paths.state_dir)


def _now(path: Path, plan: Plan) -> tuple[Residency, bool]:
    """What is cold now; or, while this start has written nothing, what was before it, if that engine had the same plan,
    and True. Raises PlanError."""
    if os.path.lexists(path) or not os.path.lexists(before(path)):
        return _read(path), False
    found = _read(before(path))
    if found.plan_id != plan.identity:
        raise PlanError(f"nothing was learned yet: {printable(str(path))} is not there", _LATER)
    return found, True


def _read(path: Path) -> Residency:
    """What is cold. Raises PlanError."""
    shown = printable(str(path))
    try:
        return parse(read_regular(path, jsonfile.MAX_BYTES).decode(), shown)
    except FileNotFoundError as error:
        raise PlanError(f"nothing was learned yet: {shown} is not there", _LATER) from error
    except OSError as error:
        remedy = f"sudo ls -l {quote(shown)}   and type this as root, or as who runs the appliance"
        raise PlanError(f"{shown} cannot be read: {error.strerror}", remedy) from error
    except UnicodeDecodeError as error:
        raise PlanError(f"{shown}: is not UTF-8 text", _DAMAGED) from error
    except ResidencyError as error:
        said = str(error).removesuffix(f"; {REMEDY}").removeprefix(f"{REFUSED}: ")
        raise PlanError(f"{printable(said, 4000)}", _DAMAGED) from error
