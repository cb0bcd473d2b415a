"""`moe-appliance status`: the page's text twin, once or again and again. Touches the box's sockets and the terminal."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from appliance.cli.box import Box
from appliance.errors import MoeError, NotRunning
from gateway.state import BoxState
from gateway.status.compose import view
from gateway.status.views import StatusView

if TYPE_CHECKING:
    from rich.text import Text

WATCH_S = 2.0


def register(app: typer.Typer) -> None:
    """Add the verb to the root."""
    app.command()(status)


def status(
    ctx: typer.Context,
    json: Annotated[bool, typer.Option("--json", help="Print JSON; with --watch a line each time.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Say it again every 2 s, until Ctrl-C.")] = False,
) -> None:
    """Say how the box is: verdict, streams, line, seats, engine, cards, findings, events. Exit 3 when nothing runs."""
    from appliance.cli import status as text

    console = Console(highlight=False)
    if watch:
        again_and_again(lambda: fetch(ctx.obj), json, console)
    else:
        text.status(fetch(ctx.obj), json, console)


def fetch(box: Box) -> StatusView:
    """The status from the gateway, or, while there is none, from the daemon alone. Raises NotRunning."""
    try:
        return StatusView.model_validate_json(box.gateway("GET", "/status").content)
    except NotRunning:
        state = BoxState.model_validate_json(box.daemon("GET", "/state").content)
        return view(state, None, time.time())


def again_and_again(
    ask: Callable[[], StatusView], as_json: bool, console: Console, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Print what `ask` says every WATCH_S until Ctrl-C: on a terminal in place, else one after the other.

    Raises what the first `ask` raises. Later a box that does not answer is told, and asked again.
    """
    from rich.live import Live

    found: StatusView | MoeError = ask()
    try:
        if as_json or not console.is_terminal:
            while True:
                _print(found, as_json, console)
                sleep(WATCH_S)
                found = _asked(ask)
        with Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
            while True:
                live.update(_drawn(found, console), refresh=True)
                sleep(WATCH_S)
                found = _asked(ask)
    except KeyboardInterrupt:
        return


def _asked(ask: Callable[[], StatusView]) -> StatusView | MoeError:
    try:
        return ask()
    except MoeError as error:
        return error


def _print(found: StatusView | MoeError, as_json: bool, console: Console) -> None:
    from appliance.cli import status as text
    from appliance.cli.terminal import say

    if isinstance(found, StatusView) and as_json:
        console.out(found.model_dump_json(), highlight=False)
    elif isinstance(found, StatusView):
        say(console, (found.at, "dim"))
        text.render(found, console)
        console.print()
    elif not as_json:
        say(console, (found.message, "red"))


def _drawn(found: StatusView | MoeError, console: Console) -> Text:
    """What would be printed, for a place on the screen."""
    from rich.text import Text

    with console.capture() as capture:
        _print(found, False, console)
    return Text.from_ansi(capture.get(), no_wrap=True)
