"""`moe-appliance stop | reload | drain | pause | resume | start-engine | restart`, `seats off | on`: what the page's
buttons do too.

Touches the gateway's socket, and the daemon's for what a box without a gateway can do.

Rules:
- The running gateway says what was done, keeps it, and notes who asked: the user of this shell, or of its sudo. Without
  one the daemon does.
- A gateway that does not answer is told apart from a box that does not run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from appliance.cli.box import Box, still_off
from appliance.errors import MoeError, NotRunning
from gateway.seats import counted

if TYPE_CHECKING:
    import httpx

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the seat.")]


def register(app: typer.Typer) -> None:
    """Add the verbs to the root."""
    for verb in (stop, reload, drain, pause, resume, restart):
        app.command()(verb)
    app.command("start-engine")(start_engine)


def register_seats(seats: typer.Typer) -> None:
    """Add the verbs to `seats`."""
    seats.command("off")(seat_off)
    seats.command("on")(seat_on)


def stop(ctx: typer.Context) -> None:
    """Stop the running box: streams may end first, for drain_s at most."""
    print(_said(ctx.obj.daemon("POST", f"/stop{ctx.obj.asker()}")))


def reload(ctx: typer.Context) -> None:
    """Read seats.toml and admins.toml again now. Exit 1 when they are broken: the old ones stay in use."""
    box: Box = ctx.obj
    try:
        answer = box.gateway("POST", f"/reload{box.asker()}")
    except NotRunning as error:
        _away(box, error)
    said = _json(answer)
    if answer.status_code != 200:
        errors = "\n".join(map(str, said.get("errors", [])))
        raise MoeError(f"not reloaded, the old files stay in use:\n{errors}", "correct the file, then reload again")
    seats = said["seats"]
    print(f"reloaded: {counted(seats, 'seat')}", *still_off(said.get("off", ())), sep="\n")


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
    try:
        answer = box.gateway("POST", f"/{action}{box.asker(seat=seat)}")
    except NotRunning as error:
        _away(box, error)
    print(_done(answer, "moe-appliance seats list" if seat else "moe-appliance status"))


def _engine(box: Box, action: str, verb: str) -> None:
    try:
        answer = box.gateway("POST", f"/{action}{box.asker()}")
    except NotRunning:  # the gateway is down or hangs; the daemon looks after the engine all the same
        print(_said(box.daemon("POST", f"{verb}{box.asker()}")))
        return
    print(_done(answer, "moe-appliance status"))


def _done(answer: httpx.Response, remedy: str) -> str:
    """What the gateway did. Raises MoeError when it did not."""
    said = _json(answer)
    if not said.get("ok"):
        raise MoeError(f"not done: {said.get('said', f'answered {answer.status_code}')}", remedy)
    return str(said["said"])


def _said(answer: httpx.Response) -> str:
    """What the daemon did. Raises MoeError when it did not."""
    said = _json(answer)
    words = str(said.get("said", f"answered {answer.status_code}"))
    if answer.is_error:
        raise MoeError(f"not done: {words}", str(said.get("remedy", "moe-appliance status")))
    return words


def _json(answer: httpx.Response) -> dict[str, Any]:
    """Raises MoeError for an answer of another version, or none of ours."""
    try:
        said = answer.json()
    except ValueError:
        said = None
    if not isinstance(said, dict):
        why = f"the running box does not know this (it answered {answer.status_code})"
        raise MoeError(f"not done: {why}; it may be of an older version", "moe-appliance status")
    return said


def _away(box: Box, error: NotRunning) -> NoReturn:
    """Raises: the box does not run, or its gateway alone does not answer, and may yet have heard us."""
    box.daemon("GET", "/state")
    raise MoeError(
        f"the gateway did not say that it is done: {error.message}; the daemon runs, and replaces a gateway that hangs",
        "moe-appliance status   and then the same again",
    ) from error
