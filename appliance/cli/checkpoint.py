"""`moe-appliance checkpoint show`: what a checkpoint holds, by its headers.

Reads headers (files or sockets) and writes to standard output; progress goes to standard error, on a terminal only.
"""

from __future__ import annotations

import json
import os
from typing import Annotated

import typer
from rich.console import Console

from appliance.checkpoint.catalogue import catalogue_of
from appliance.checkpoint.read import read_counted
from appliance.checkpoint.sources import source_of
from appliance.cli import checkpoint_fetch
from appliance.cli.checkpoint_progress import headers_shown
from appliance.cli.checkpoint_text import as_json, render
from appliance.cli.context import JsonOption

app = typer.Typer(no_args_is_help=True)


@app.command()
def show(
    source: Annotated[
        str,
        typer.Argument(metavar="PATH|URL|REPO", help="A folder or file, an http(s) URL, or ORG/NAME[@REV] of a hub."),
    ],
    as_json_text: JsonOption = False,
    revision: Annotated[
        str | None, typer.Option("--revision", metavar="REV", help="Of a hub: a branch, a tag or a commit.")
    ] = None,
) -> None:
    """Say what a checkpoint holds: bytes by class, experts, dtypes, shards. No weight is read.

    Tokens come from the environment: HF_TOKEN for a hub (HF_ENDPOINT), MOE_CHECKPOINT_TOKEN for a URL.
    """
    origin = source_of(source, revision)
    with headers_shown() as on_header:
        checkpoint, fetched = read_counted(origin, environ=os.environ, progress=on_header)
    catalogue = catalogue_of(checkpoint)
    if as_json_text:
        print(json.dumps(as_json(checkpoint, catalogue, fetched), indent=2))
    else:
        render(checkpoint, catalogue, fetched, Console(highlight=False))


checkpoint_fetch.register(app)
