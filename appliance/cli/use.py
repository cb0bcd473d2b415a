"""`moe-appliance plan use`, `engine use`: another plan or engine environment in the running box, with the way back.

Touches the daemon's socket. The daemon checks, drains, restarts the engine, and goes back by itself; this only asks and
then tells what happens. Ctrl-C ends the telling alone.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from appliance.cli.box import Box
from appliance.cli.context import say
from appliance.errors import MoeError
from appliance.plan import planfile
from appliance.printable import printable
from gateway.state import BoxState, EngineState, Pair, Phase

POLL_S = 20
ANSWER_S = 90.0
"""The look at the box that comes first may take a minute."""
RESTS = frozenset({Phase.OFF, Phase.REFUSED, Phase.FAILED, Phase.NEEDS_REBOOT})
"""It stays so until somebody does something."""
ProveOption = Annotated[
    bool,
    typer.Option("--prove", help="Not good before it has served two prompts of the longest length at once."),
]
NoWaitOption = Annotated[bool, typer.Option("--no-wait", help="Do not stay to see how it ends.")]


def register_plan(app: typer.Typer) -> None:
    """Add `use` to `plan`."""
    app.command("use")(plan_use)


def register_engine(app: typer.Typer) -> None:
    """Add `use` to `engine`."""
    app.command("use")(engine_use)
    app.command("prove")(engine_prove)


def plan_use(
    ctx: typer.Context,
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan file.")],
    prove: ProveOption = False,
    no_wait: NoWaitOption = False,
) -> None:
    """Have the running box serve with another plan: it is checked, streams end first, the engine is restarted. If it
    does not come to READY, or ends within 5 minutes, what served before returns. Exit 1: it did."""
    planfile.load(plan)
    _use(ctx.obj, prove, no_wait, plan=str(plan.resolve()))


def engine_use(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="As `engine list` calls it.")],
    prove: ProveOption = False,
    no_wait: NoWaitOption = False,
) -> None:
    """Have the running box serve with another engine environment; as `plan use` with a plan."""
    if not name:
        raise MoeError("NAME is empty", "moe-appliance engine list")
    _use(ctx.obj, prove, no_wait, environment=name)


def engine_prove(ctx: typer.Context, no_wait: NoWaitOption = False) -> None:
    """Restart the engine as it is, once streams have ended, and have it serve two prompts of the longest length at once
    before it counts as ready. Exit 1: it could not."""
    _use(ctx.obj, True, no_wait)


def _use(box: Box, prove: bool, no_wait: bool, **half: str) -> None:
    box = replace(box, answer_s=ANSWER_S)
    answer = box.daemon("POST", f"/use{box.asker(prove='1' if prove else '', **half)}")
    try:
        said = answer.json()
    except ValueError:
        said = {}
    if answer.status_code != 202:
        for line in said.get("findings", ()):
            say(printable(str(line), 2000))
        error = printable(str(said.get("error", f"the daemon answered {answer.status_code}")), 2000)
        raise MoeError(f"not used: {error}", str(said.get("remedy", "moe-appliance status")))
    print(said["said"])
    if not no_wait:
        try:
            _follow(box, Pair.model_validate(said["pair"]))
        except KeyboardInterrupt:
            say("it goes on without you: moe-appliance status")
            raise


def _follow(box: Box, pair: Pair) -> None:
    """Tell what happens until it serves, or something else does."""
    told, revision = "", -1
    while True:
        answer = box.daemon("GET", f"/state?after={revision}&wait_s={POLL_S}")
        state = BoxState.model_validate_json(answer.content)
        revision, engine = state.revision, state.engine
        line = _line(engine)
        if line != told:
            told = line
            say(line)
        if not engine.leaving and _is_over(engine, pair):
            print("it serves; should it end within 5 minutes, what served before returns by itself")
            return


def _is_over(engine: EngineState, pair: Pair) -> bool:
    """Whether it serves. Raises MoeError when it does not come to that."""
    if engine.reverted is not None and engine.reverted.tried == pair:
        cause = engine.reverted.cause
        raise MoeError(f"it did not come to serve: {printable(cause.title)}", cause.remedy)
    if engine.trial != pair:
        raise MoeError("something else is being tried now", "moe-appliance status")
    if engine.phase in RESTS:
        why = printable(engine.cause.title) if engine.cause is not None else f"the engine is {engine.phase}"
        remedy = engine.cause.remedy if engine.cause is not None else "moe-appliance status"
        raise MoeError(f"it is not started: {why}", remedy)
    return engine.phase is Phase.READY


def _line(engine: EngineState) -> str:
    if engine.leaving:
        return "running streams end first"
    part = f" {engine.progress:.0%}" if engine.progress is not None else ""
    step = f": {printable(engine.step)}{part}" if engine.step else ""
    return f"engine {engine.phase}{step}"
