"""The command line: `moe-appliance VERB`. One module per group of verbs; errors are printed here with their remedy.

Touches standard output and error.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from appliance import __version__
from appliance.cli import admins, demo, run, seats, show
from appliance.cli.box import Box
from appliance.errors import MoeError

app = typer.Typer(
    name="moe-appliance",
    help="Turns one box with two GPUs and a lot of RAM into a coding-agent server for a team.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(seats.app, name="seats", help="Who may use the box.")
app.add_typer(admins.app, name="admins", help="Who may see and change the box over the network.")
run.register(app)
show.register(app)
demo.register(app)


def _version(asked: bool) -> None:
    if asked:
        print(__version__)
        raise typer.Exit


@app.callback()
def root(
    ctx: typer.Context,
    config: Annotated[
        Path | None, typer.Option("--config", help="Configuration file. Default: ./appliance.toml, then /etc.")
    ] = None,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Say it.")] = False,
) -> None:
    """Options before the verb."""
    ctx.obj = Box(config, dict(os.environ))


def main() -> None:
    """Entry point. Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not running, 78 configuration, 130 Ctrl-C."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except MoeError as error:
        console = Console(stderr=True, soft_wrap=True, highlight=False)
        console.print("[bold red]error:[/] ", end="")
        console.print(error.message, markup=False)
        console.print("[bold]remedy:[/] ", end="")
        console.print(error.remedy, markup=False)
        sys.exit(error.exit_code)
