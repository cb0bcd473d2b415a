"""`moe-appliance connect`: tells an agent of this box. Touches seats.toml and what the modules beside it touch.

Rules:
- The key comes from MOE_API_KEY or a prompt that does not show it; it is never an argument and never printed.
- A file is written only when everything else is known to be good.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from appliance import keyedit
from appliance.cli import connect_file
from appliance.cli.box import Box
from appliance.cli.connect_file import Written
from appliance.cli.connect_target import from_box, from_url, origin
from appliance.cli.context import FileOption, JsonOption
from appliance.errors import MoeError
from gateway.agents.programs import AGENTS
from gateway.agents.settings import VARIABLE, Agent, SettingsFile, Target, filled
from gateway.agents.text import settings_text
from gateway.keyfile import load_seats
from gateway.seats import AccountState, Seat


def register(app: typer.Typer) -> None:
    """Add the verb to the root."""
    app.command()(connect)


def connect(
    ctx: typer.Context,
    agent: Annotated[str, typer.Argument(metavar="AGENT", help=f"{', '.join(AGENTS)}.")],
    seat: Annotated[str | None, typer.Option(metavar="NAME", help="The seat whose key the agent uses.")] = None,
    write: Annotated[
        bool,
        typer.Option("--write", help="Merge the settings into the agent's own file; a copy of it stays beside it."),
    ] = False,
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="The box's URL, on a machine that is not the box; needs no seat.")
    ] = None,
    model: Annotated[str | None, typer.Option(metavar="MODEL", help="Model id. Default: what the box serves.")] = None,
    context: Annotated[
        int | None, typer.Option(metavar="TOKENS", min=1, help="Context length. Default: what the box says.")
    ] = None,
    file: FileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say, or with --write set, what a coding agent needs to use this box. Keys are not stored: put yours into the
    environment variable MOE_API_KEY."""
    box: Box = ctx.obj
    program = AGENTS.get(agent)
    if program is None:
        raise typer.BadParameter(f"{agent!r} is not known; known: {', '.join(AGENTS)}", param_hint="AGENT")
    key = None
    if url is None:
        seats_file = file or box.seats_file
        name = _usable_seat(seats_file, seat, f"moe-appliance connect {agent}")
        target, notes = from_box(box, program, name, model, context)
    else:
        url, seats_file = origin(url), None
        if model is None or (context is None and program.needs_context):
            key = _key(box, seat, f"{url} is asked with it")
        target, notes = from_url(url, key, program, seat, model, context)
    settings = program.settings(target)
    path = _path(box, settings.file)
    written = None
    if write:
        if settings.file is None or path is None:
            raise _no_file(program, target)
        by_hand = f"{_command(agent, seat, url, model, context)}   prints what to set"
        ready = partial(_key_of, box, seats_file, target) if key is None else lambda _why: key
        written = _write(settings.file, path, by_hand, ready)
    if as_json:
        print(json.dumps(_json(program, target, path, notes, written), ensure_ascii=False, indent=2))
        return
    moved = str(path) if settings.file is not None and path != settings.file.place.path({}, _home(box)) else None
    if written is not None:
        print("\n".join(written.lines()), end="\n\n")
    print(settings_text(program, target, path=moved, written=write, more=notes), end="")


def _command(agent: str, seat: str | None, url: str | None, model: str | None, context: int | None) -> str:
    """The same command, without --write."""
    given = {"--seat": seat, "--url": url, "--model": model, "--context": context}
    options = (f" {name} {quote(str(value))}" for name, value in given.items() if value is not None)
    return f"moe-appliance connect {agent}{''.join(options)}"


# ------------------------------------------------------------------------------------------- seat


def _usable_seat(path: Path, name: str | None, command: str) -> str:
    """The name, when this seat may be used. Raises MoeError."""
    rows = keyedit.list_seats(path)
    there = f"seats: {', '.join(row.name for row in rows)}" if rows else f"there is no seat yet in {path}"
    if not rows:
        raise MoeError(there, "moe-appliance seats add NAME   adds one; elsewhere than on the box: --url URL")
    if name is None:
        raise MoeError(f"whose key shall the agent use? {there}", f"{command} --seat NAME   or, elsewhere: --url URL")
    row = next((row for row in rows if row.name == name), None)
    if row is None:
        raise MoeError(f"there is no seat {name}; {there}", "moe-appliance seats add NAME   or name one that is there")
    match row.state:
        case AccountState.ACTIVE:
            return name
        case AccountState.DISABLED:
            raise MoeError(f"seat {name} is disabled: its key is refused", f"moe-appliance seats enable {name}")
        case AccountState.EXPIRED:
            later = f"set a later `expires` under [seats.{name}] in {path}, then: moe-appliance reload"
            raise MoeError(f"seat {name} has expired: its key is refused", later)


def _key(box: Box, seat: str | None, why: str) -> str:
    """The key of the seat, from the environment or a prompt. Raises MoeError."""
    key = box.environ.get(VARIABLE, "").strip()
    if not key and _terminal():
        key = str(typer.prompt("Key of the seat", hide_input=True, err=True)).strip()
    if not key:
        whose = "your seat" if seat is None else f"seat {seat}"
        lost = f"moe-appliance seats rotate {seat or 'NAME'}"
        remedy = f"export {VARIABLE}=KEY   (keys are not stored; a lost one is replaced with: {lost})"
        raise MoeError(f"the key of {whose} is needed, {why}, and {VARIABLE} is not set", remedy)
    if not key.isascii() or not key.isprintable() or " " in key:
        raise MoeError(f"{VARIABLE} holds what cannot be a key: blanks or special characters", f"export {VARIABLE}=KEY")
    return key


def _terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def _key_of(box: Box, seats_file: Path | None, target: Target, why: str) -> str:
    """The key; on the box it must be that of the seat."""
    key = _key(box, target.seat, why)
    if seats_file is not None:
        found = load_seats(seats_file).check(key, time.time())
        if not isinstance(found, Seat) or found.name != target.seat:
            whose = f"that of seat {found.name}" if isinstance(found, Seat) else "of no seat that may be used"
            remedy = f"export {VARIABLE}=KEY   with the right one; a new one: moe-appliance seats rotate {target.seat}"
            raise MoeError(f"the key is not that of seat {target.seat}, it is {whose}", remedy)
    return key


# ------------------------------------------------------------------------------------------- file


def _home(box: Box) -> str:
    return box.environ.get("HOME") or str(Path.home())


def _path(box: Box, file: SettingsFile | None) -> Path | None:
    return None if file is None else Path(file.place.path(box.environ, _home(box)))


def _no_file(program: Agent, target: Target) -> MoeError:
    settings = program.settings(target)
    if settings.setup is not None:
        return MoeError(f"{program.title} writes its settings file itself; --write is not for it", settings.setup)
    return MoeError(
        f"the {program.title} has no settings file: it reads environment variables",
        f"leave out --write and put the lines into the shell's profile: moe-appliance connect {program.name} ...",
    )


def _write(file: SettingsFile, path: Path, by_hand: str, ask: Callable[[str], str]) -> Written:
    key = None
    if file.holds_key:
        connect_file.check(file, path, by_hand)
        key = ask(f"{path} must hold it")
        file = replace(file, values=filled(file.values, key))
    return connect_file.write(file, path, by_hand, key)


def _json(
    program: Agent, target: Target, path: Path | None, notes: tuple[str, ...], written: Written | None
) -> dict[str, Any]:
    settings = program.settings(target)
    file = settings.file
    return {
        "agent": program.name,
        "url": target.url,
        "model": target.model,
        "context_tokens": target.context_tokens,
        "seat": target.seat,
        "key_variable": VARIABLE,
        "environment": dict(settings.environment),
        "file": None if file is None else {"path": str(path), "format": file.format, "values": file.values},
        "setup": settings.setup,
        "start": settings.start,
        "code": settings.code,
        "notes": [*settings.notes, *notes],
        "written": None if written is None else written.json(),
    }
