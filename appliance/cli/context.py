"""What the verbs for seats and admins share: where the files are, and how keys and lists are shown.

Writes to standard output and standard error. What a script wants (a key, a list, JSON) goes to standard
output alone, so that `key=$(moe-appliance seats add ana)` holds the key.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Annotated, Protocol, cast

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from appliance.cli.terminal import plain
from appliance.errors import MoeError
from appliance.keyedit import Listed, NewKey


class KeyFiles(Protocol):
    """Where the files of keys are, and how the running gateway hears of a change: the root's `ctx.obj`."""

    @property
    def seats_file(self) -> Path:
        """seats.toml of this box; it need not exist."""
        ...

    @property
    def admins_file(self) -> Path:
        """admins.toml of this box; it need not exist."""
        ...

    def switched_off(self) -> dict[str, str]:
        """The seats that are off by hand in the running box, and by whom."""
        ...

    def notify_reload(self, seat: str = "") -> str:
        """Have the running gateway read both files now, after an edit of `seat`, "" = of an admin.

        Returns a sentence for the operator: that it took them, or that nothing runs. May raise MoeError.
        """
        ...


FileOption = Annotated[Path | None, typer.Option("--file", help="Another file than the box's own.", hidden=True)]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
ExpiresOption = Annotated[
    str | None,
    typer.Option("--expires", metavar="DATE", help="Last day (2027-01-31, UTC), or a time (2027-01-31T18:00:00Z)."),
]


def key_files(ctx: typer.Context) -> KeyFiles:
    """Return the object that the root command put into the context."""
    return cast(KeyFiles, ctx.find_root().obj)


def moment(text: str | None) -> date | datetime | None:
    """Read the value of --expires; a time without an offset is UTC. It must be to come. Raises typer.BadParameter."""
    if text is None:
        return None
    now = datetime.now(UTC)
    try:
        if len(text) <= len("2027-01-31"):
            day = date.fromisoformat(text)
            _refuse_past(text, past=day < now.date())
            return day
        found = datetime.fromisoformat(text)
    except ValueError as exc:
        raise typer.BadParameter(
            f"{text!r} is no date; write 2027-01-31 or 2027-01-31T18:00:00Z", param_hint="--expires"
        ) from exc
    found = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    _refuse_past(text, past=found <= now)
    return found


def _refuse_past(text: str, *, past: bool) -> None:
    if past:
        raise typer.BadParameter(f"{text} is in the past; a key that never works is no use", param_hint="--expires")


def reloaded(files: KeyFiles, seat: str = "") -> str:
    """Tell the gateway of an edit, of `seat` or of an admin; the edit is done, so that a gateway that does not answer
    is a sentence, not a failure."""
    try:
        return files.notify_reload(seat)
    except MoeError as exc:
        return f"The running gateway could not be told, it looks at the file by itself each second: {exc.message}"


def say(*sentences: str) -> None:
    """Print sentences for people."""
    for sentence in sentences:
        print(sentence, file=sys.stderr)


def show_key(kind: str, made: NewKey, files: KeyFiles, *, as_json: bool, then: str = "") -> None:
    """Print a new key, once, before anything else can go wrong; then tell the gateway."""
    seat = made.name if kind == "seat" else ""
    if as_json:
        shown = {kind: made.name, "key": made.key}
        until = stamp(made.old_until)
        if until is not None:
            shown["old_key_until"] = until
        _print_key(json.dumps(shown | {"reload": reloaded(files, seat)}), kind, made.name)
        return
    _print_key(made.key, kind, made.name)
    say(f"This is the key of {kind} {made.name}. It is not stored and cannot be shown again.")
    say(*([then] if then else []), reloaded(files, seat))


def _print_key(line: str, kind: str, name: str) -> None:
    try:
        if sys.stdout is None:  # it was closed by whoever started us: print() would say nothing, and not fail
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        print(line, flush=True)
    except OSError as exc:
        raise MoeError(
            f"the new key of {kind} {name} is lost: standard output cannot be written ({exc.strerror})",
            f"moe-appliance {kind}s rotate {name}   makes another one",
        ) from exc


def show_list(
    kind: str, rows: Iterable[Listed], path: Path, *, as_json: bool, off: Mapping[str, str] | None = None
) -> None:
    """Print the accounts of a file as a table or as JSON. `off`: seats that are off by hand, and by whom."""
    off = off or {}
    rows = list(rows)
    seats = kind == "seat"
    if as_json:
        print(json.dumps({f"{kind}s": [_json_row(row, off.get(row.name), seats=seats) for row in rows]}))
        return
    if not rows:
        say(f"There is no {kind} in {path}.", f"To add one: moe-appliance {kind}s add NAME")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in (kind, "state", *(("max streams", "tokens a month") if seats else ()), "expires"):
        table.add_column(heading, overflow="fold")
    if seats:
        table.add_column("old key works until", overflow="fold")
    for row in rows:
        cells = [row.name, f"off by {off[row.name]}" if row.name in off else str(row.state)]
        if seats:
            limits = (row.max_streams, row.tokens_per_month)
            cells += ["-" if limit is None else f"{limit:,}".replace(",", " ") for limit in limits]
        cells.append(stamp(row.expires) or "never")
        if seats:
            cells.append(stamp(row.old_until) or "-")
        table.add_row(*(Text(plain(cell)) for cell in cells))
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 160
    console.print(table)


def _json_row(row: Listed, off_by: str | None, *, seats: bool) -> dict[str, str | int | None]:
    shown: dict[str, str | int | None] = {"name": row.name, "state": str(row.state)}
    if seats:
        shown["off_by"] = off_by
        shown["max_streams"] = row.max_streams
        shown["tokens_per_month"] = row.tokens_per_month
    shown["expires"] = stamp(row.expires)
    if seats:
        shown["old_key_until"] = stamp(row.old_until)
    return shown


def stamp(at: datetime | None) -> str | None:
    """Return a time in UTC; the end of a day as that day."""
    if at is None:
        return None
    at = at.astimezone(UTC)
    if at.timetz() == time.max.replace(tzinfo=UTC):
        return at.date().isoformat()
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")
