"""`moe-appliance drain | pause | resume | start-engine | restart`, `seats off | on`: what the page's buttons do too.

Touches the gateway's socket, and the daemon's for the engine when no gateway answers.

Rule: the running gateway says what was done, keeps it, and notes who asked: the user of this shell, or of its sudo.
"""

from __future__ import annotations

import os
from typing import Annotated
from urllib.parse import urlencode

import typer

from appliance.cli.box import Box
from appliance.errors import MoeError, NotRunning

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the seat.")]


def register(app: typer.Typer, seats: typer.Typer) -> None:
    """Add the verbs to the root and to `seats`."""
    for verb in (drain, pause, resume, restart):
        app.command()(verb)
    app.command("start-engine")(start_engine)
    seats.command("off")(seat_off)
    seats.command("on")(seat_on)


def drain(ctx: typer.Context) -> None:
    """Refuse new requests, with a time to come back; running streams go on. Stays so until `resume`."""
    _act(ctx.obj, "drain")


def pause(ctx: typer.Context) -> None:
    """Let nobody through: who comes waits in line, up to queue_deadline_s; running streams go on. Stays so until
    `resume`. For longer than a few minutes, drain."""
    _act(ctx.obj, "pause")


def resume(ctx: typer.Context) -> None:
    """Serve again after drain or pause."""
    _act(ctx.obj, "resume")


def restart(ctx: typer.Context) -> None:
    """Restart the engine; the gateway stays up. Also the way out of a stop after repeated failures."""
    _engine(ctx.obj, "restart-engine", "/restart")


def start_engine(ctx: typer.Context) -> None:
    """Start an engine that is off; one that runs is left alone."""
    _engine(ctx.obj, "start-engine", "/start-engine")


def seat_off(ctx: typer.Context, name: NameArgument) -> None:
    """Switch a seat off in the running box at once, and leave seats.toml as it is. `disable` writes into the file."""
    _act(ctx.obj, "disable-seat", name)


def seat_on(ctx: typer.Context, name: NameArgument) -> None:
    """Undo `off`, also that of the page. A seat that seats.toml disables needs `enable`."""
    _act(ctx.obj, "enable-seat", name)


def _act(box: Box, action: str, seat: str = "") -> None:
    fields = {"who": os.environ.get("SUDO_USER", ""), "seat": seat}
    query = urlencode({key: value for key, value in fields.items() if value})
    said = box.gateway("POST", f"/{action}?{query}" if query else f"/{action}").json()
    if not said["ok"]:
        raise MoeError(f"not done: {said['said']}", "moe-appliance status")
    print(said["said"])


def _engine(box: Box, action: str, verb: str) -> None:
    try:
        _act(box, action)
    except NotRunning:  # the gateway is down or hangs; the daemon looks after the engine all the same
        answer = box.daemon("POST", verb)
        print(answer.json().get("said", f"answered {answer.status_code}"))
