"""`moe-appliance seats`: who may stream, and how much. Changes seats.toml. `size`: see seats_size.py."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from appliance import keyedit
from appliance.cli import operator, seats_size
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
    stamp,
)

app = typer.Typer(no_args_is_help=True, help="Seats: who may stream, each with a key of its own.")
seats_size.register(app)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the seat.")]


@app.command()
def add(
    ctx: typer.Context,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="1 to 32 of a-z, 0-9, '.', '_', '-'; a letter or digit first.")
    ],
    max_streams: Annotated[
        int | None, typer.Option(min=1, max=256, help="Streams it may ever run at once. Default: no limit of its own.")
    ] = None,
    tokens_per_month: Annotated[
        int | None, typer.Option(min=1, help="Soft budget: above it, it stands behind others. Default: none.")
    ] = None,
    expires: ExpiresOption = None,
    file: FileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add a seat and print its key, once."""
    files = key_files(ctx)
    path, until = file or files.seats_file, moment(expires)
    made = keyedit.add_seat(path, name, max_streams=max_streams, tokens_per_month=tokens_per_month, expires=until)
    show_key("seat", made, files, as_json=as_json)


@app.command()
def limit(
    ctx: typer.Context,
    name: NameArgument,
    max_streams: Annotated[
        int | None, typer.Option(min=0, max=256, help="Streams it may ever run at once. 0 = no limit of its own.")
    ] = None,
    tokens_per_month: Annotated[
        int | None, typer.Option(min=0, help="Soft budget of a calendar month, UTC. 0 = none.")
    ] = None,
    file: FileOption = None,
) -> None:
    """Change the limits of a seat; those that are not named stay."""
    files = key_files(ctx)
    asked = {"max_streams": max_streams, "tokens_per_month": tokens_per_month}
    limits = {key: value or None for key, value in asked.items() if value is not None}
    if not limits:
        raise typer.BadParameter("name a limit: --max-streams N or --tokens-per-month N")
    changed = keyedit.limit_seat(file or files.seats_file, name, limits)
    say(
        f"Seat {name} has its new limits." if changed else f"Seat {name} had these limits already.",
        reloaded(files, name),
    )


@app.command("list")
def list_(ctx: typer.Context, file: FileOption = None, as_json: JsonOption = False) -> None:
    """List the seats, with who switched one off by hand; keys are not stored and not shown."""
    files = key_files(ctx)
    path = file or files.seats_file
    off = {} if file else files.switched_off()
    show_list("seat", keyedit.list_seats(path), path, as_json=as_json, off=off)


@app.command()
def rotate(
    ctx: typer.Context,
    name: NameArgument,
    now: Annotated[bool, typer.Option("--now", help="The old key stops at once, not in 24 hours.")] = False,
    file: FileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give a seat a new key and print it, once; the old one works for 24 hours more."""
    files = key_files(ctx)
    grace = timedelta(0) if now else keyedit.GRACE
    made = keyedit.rotate_seat(file or files.seats_file, name, grace=grace)
    until = stamp(made.old_until)
    then = f"The old key works until {until}." if until else "The old key does not work any more."
    show_key("seat", made, files, as_json=as_json, then=then)


@app.command()
def disable(ctx: typer.Context, name: NameArgument, file: FileOption = None) -> None:
    """Refuse a seat until it is enabled again; its key stays."""
    files = key_files(ctx)
    changed = keyedit.disable_seat(file or files.seats_file, name)
    say(f"Seat {name} is disabled." if changed else f"Seat {name} was disabled already.", reloaded(files, name))


@app.command()
def enable(ctx: typer.Context, name: NameArgument, file: FileOption = None) -> None:
    """Let a disabled seat in again, with the key it had."""
    files = key_files(ctx)
    path = file or files.seats_file
    changed = keyedit.enable_seat(path, name)
    say(f"Seat {name} is enabled." if changed else f"Seat {name} was enabled already.")
    if any(row.name == name and row.state == "expired" for row in keyedit.list_seats(path)):
        say(f"It has expired all the same: set a later `expires` under [seats.{name}] in {path}.")
    say(reloaded(files, name))


@app.command()
def remove(ctx: typer.Context, name: NameArgument, file: FileOption = None) -> None:
    """Remove a seat and its key; there is no way back to this key."""
    files = key_files(ctx)
    keyedit.remove_seat(file or files.seats_file, name)
    say(f"Seat {name} is removed.", reloaded(files, name))


operator.register_seats(app)
