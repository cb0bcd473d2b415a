"""`moe-appliance admins`: add, list, rotate, remove. Changes admins.toml."""

from __future__ import annotations

from typing import Annotated

import typer

from appliance import keyedit
from appliance.cli.context import (
    ExpiresOption,
    FileOption,
    JsonOption,
    key_files,
    moment,
    reloaded,
    say,
    show_key,
    show_list,
)

app = typer.Typer(no_args_is_help=True, help="Admins: who may see and change the box from elsewhere.")

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the admin.")]


@app.command()
def add(
    ctx: typer.Context,
    name: NameArgument,
    expires: ExpiresOption = None,
    file: FileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add an admin and print the token, once."""
    files = key_files(ctx)
    made = keyedit.add_admin(file or files.admins_file, name, expires=moment(expires))
    show_key("admin", made, files, as_json=as_json)


@app.command("list")
def list_(ctx: typer.Context, file: FileOption = None, as_json: JsonOption = False) -> None:
    """List the admins; tokens are not stored and not shown."""
    path = file or key_files(ctx).admins_file
    show_list("admin", keyedit.list_admins(path), path, as_json=as_json)


@app.command()
def rotate(ctx: typer.Context, name: NameArgument, file: FileOption = None, as_json: JsonOption = False) -> None:
    """Give an admin a new token and print it, once; the old one stops at once."""
    files = key_files(ctx)
    made = keyedit.rotate_admin(file or files.admins_file, name)
    show_key("admin", made, files, as_json=as_json, then="The old token does not work any more.")


@app.command()
def remove(ctx: typer.Context, name: NameArgument, file: FileOption = None) -> None:
    """Remove an admin; sessions that it opened end."""
    files = key_files(ctx)
    keyedit.remove_admin(file or files.admins_file, name)
    say(f"Admin {name} is removed.", reloaded(files))
