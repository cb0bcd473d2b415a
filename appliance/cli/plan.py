"""`moe-appliance plan`: shows, compares and translates plan files. Touches the files that are named and the terminal.

Rules:
- What another program wants (JSON, arguments, a document) goes to standard output alone, what is for people beside it
  to standard error.
- An export that is not exact is never written without --approximate.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from appliance.cli import plan_check, plan_learned, plan_make, use
from appliance.cli.box import Box
from appliance.cli.context import JsonOption, say
from appliance.cli.plan_inputs import PlanArgument, headers
from appliance.errors import PlanError
from appliance.plan import planfile
from appliance.plan.diff import diff
from appliance.plan.export.outcome import Outcome
from appliance.plan.export.targets import TARGETS, export, verdicts
from appliance.plan.picture import BLOCKS, picture
from appliance.plan.schema import Plan
from appliance.printable import printable

app = typer.Typer(no_args_is_help=True)
plan_make.register(app)
plan_check.register(app)
plan_learned.register(app)
use.register_plan(app)

COLUMNS = 100
"""Of a picture that goes to no terminal."""


@app.command()
def show(
    plan: PlanArgument,
    as_json: JsonOption = False,
    plain: Annotated[bool, typer.Option("--ascii", help="No block characters.")] = False,
) -> None:
    """Draw where the experts of each layer are, and say what the plan is for and what other tools can do with it."""
    found = planfile.load(plan)
    if as_json:
        print(json.dumps(_shown(found), indent=2))
        return
    width = shutil.get_terminal_size((COLUMNS, 24)).columns
    print("\n".join(picture(found, width, plain or not _draws_blocks())))


@app.command("diff")
def compare(
    before: Annotated[Path, typer.Argument(metavar="A", help="A plan file.")],
    after: Annotated[Path, typer.Argument(metavar="B", help="Another one.")],
    as_json: JsonOption = False,
) -> None:
    """Say what changes when plan B takes the place of A. Exit 0: both decide the same; 1: they do not."""
    found = diff(planfile.load(before), planfile.load(after))
    if as_json:
        print(json.dumps(found.json(), indent=2))
    else:
        print("\n".join(printable(line, 4000) for line in found.lines()))
    if not found.same:
        raise typer.Exit(1)


@app.command("export")
def translate(
    ctx: typer.Context,
    plan: PlanArgument,
    to: Annotated[str, typer.Option("--to", metavar="TOOL", help=f"{', '.join(TARGETS)}.")],
    checkpoint: Annotated[
        str | None,
        typer.Option(metavar="PATH|URL|REPO", help="Whose headers tell the bytes. Default: differences in experts."),
    ] = None,
    template: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND", help="For exl3-command: with {plan_file}, {experts_json}, {engram}, {tensors}."
        ),
    ] = None,
    approximate: Annotated[
        bool, typer.Option("--approximate", help="Take what is nearest when the tool cannot say what the plan says.")
    ] = False,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write it to a new file.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Write the plan in the words of another tool, and say whether that is exact, approximate or impossible, and why.
    Exit 1: it is impossible, or only approximate and --approximate is not given."""
    if to not in TARGETS:
        raise typer.BadParameter(f"{to!r} is not known; known: {', '.join(TARGETS)}", param_hint="--to")
    found = planfile.load(plan)
    box: Box = ctx.obj
    catalogue = None if checkpoint is None else headers(checkpoint, box.environ)[1]
    outcome = export(to, found, catalogue, template=template, plan_file=str(plan.resolve()))
    refused = _refusal(to, outcome, approximate)
    if refused is None and out is not None:
        planfile.write(out, outcome.text)
    if as_json:
        print(json.dumps(_json(to, outcome, refused), indent=2))
        if refused is not None:
            raise typer.Exit(1)
        return
    if refused is not None:
        raise refused
    say(*(printable(line, 4000) for line in (f"{to}: {outcome.verdict}; {outcome.reason}", *outcome.notes)))
    if out is not None:
        say(f"written to {printable(str(out))}")
    elif outcome.text:
        print(outcome.text, end="")
    else:
        say("there is nothing to add to the tool's command line")


def _draws_blocks() -> bool:
    try:
        BLOCKS.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _shown(plan: Plan) -> dict[str, Any]:
    layers = {layer: len(plan.cold(int(layer))) for layer in plan.host.experts}
    return {
        "plan": plan.model_dump(mode="json", by_alias=True, exclude_none=True),
        "sealed": plan.sealed,
        "identity": plan.identity,
        "cold_experts": plan.cold_count,
        "cold_by_layer": layers,
        "exports": {name: found.model_dump() for name, found in verdicts(plan).items()},
    }


def _refusal(to: str, outcome: Outcome, approximate: bool) -> PlanError | None:
    """Why nothing is written; None when something is."""
    reason = printable(outcome.reason, 4000)
    if outcome.verdict == "impossible":
        return PlanError(f"{to}: impossible: {reason}", "moe-appliance plan show PLAN   says what other tools can do")
    if outcome.verdict == "approximate" and not approximate:
        return PlanError(f"{to}: only approximate: {reason}", "add --approximate to have that nevertheless")
    if outcome.needs:
        remedy = "add --template COMMAND" if to == "exl3-command" else "add --checkpoint PATH|URL|REPO"
        return PlanError(f"{to}: {outcome.verdict}, but {outcome.needs}", remedy)
    return None


def _json(to: str, outcome: Outcome, refused: PlanError | None) -> dict[str, Any]:
    given = refused is None
    return {
        "target": to,
        "verdict": outcome.verdict,
        "reason": outcome.reason,
        "error": None if refused is None else refused.message,
        "argv": list(outcome.argv) if given else None,
        "document": outcome.document if given else None,
        "differs": dict(outcome.differs),
        "notes": list(outcome.notes),
    }
