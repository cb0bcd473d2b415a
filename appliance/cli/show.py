"""`moe-appliance status`: the page's text twin. Touches the box's sockets and the terminal."""

from __future__ import annotations

import time
from typing import Annotated

import typer
from rich.console import Console

from appliance.cli.box import Box
from appliance.errors import NotRunning
from gateway.state import BoxState
from gateway.status import view
from gateway.status_view import StatusView


def register(app: typer.Typer) -> None:
    """Add the verb to the root."""
    app.command()(status)


def status(ctx: typer.Context, json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Say how the box is: verdict, streams, line, seats, engine, findings. Exit 3 when nothing runs."""
    from appliance.cli import status as text

    text.status(fetch(ctx.obj), json, Console(highlight=False))


def fetch(box: Box) -> StatusView:
    """The status from the gateway, or, while there is none, from the daemon alone. Raises NotRunning."""
    try:
        return StatusView.model_validate_json(box.gateway("GET", "/status").content)
    except NotRunning:
        state = BoxState.model_validate_json(box.daemon("GET", "/state").content)
        return view(state, None, time.time())
