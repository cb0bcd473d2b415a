"""`moe-appliance doctor`: what is wrong with this box, and a bundle for whoever helps. Touches what the bundle touches.

Works when nothing runs, and ends within half a minute, whatever hangs; exit 1 when something is wrong, so that a script
can ask.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from appliance.cli.box import Box
from appliance.cli.terminal import TONES, finding, say
from appliance.errors import MoeError

if TYPE_CHECKING:
    from appliance.cli.doctor_bundle import Part

ANSWER_S = 4.0
"""Gateway and daemon, one after the other, then the bundle."""


def register(app: typer.Typer) -> None:
    """Add the verb to the root."""
    app.command()(doctor)


def doctor(
    ctx: typer.Context,
    out: Annotated[Path | None, typer.Option(help="The bundle. Default: moe-appliance-DATE.tar.gz here.")] = None,
    engine_log: Annotated[
        bool, typer.Option("--engine-log", help="Put the engine's last lines in; an engine may log prompts.")
    ] = False,
) -> None:
    """Say what is wrong, and collect a bundle without secrets, names or prompts for whoever helps. Exit 1 when
    something is wrong."""
    from appliance.cli import doctor_bundle as bundle

    box = replace(ctx.obj, answer_s=ANSWER_S)
    console = Console(highlight=False)
    wrong = _verdict(box, console)
    now_s = time.time()
    path = out or Path(time.strftime("moe-appliance-%Y%m%d-%H%M%S.tar.gz", time.localtime(now_s)))
    parts = bundle.collect(box, engine_log=engine_log)
    bundle.write(parts, path, now_s)
    _contents(parts, path, console)
    raise typer.Exit(int(wrong))


def _verdict(box: Box, console: Console) -> bool:
    """Print how the box is; whether anything is wrong."""
    from appliance.cli.show import fetch
    from gateway.keyfile import load_admins, load_seats
    from gateway.status.views import StatusView

    looks: tuple[Callable[[], object], ...] = (
        lambda: load_seats(box.seats_file),
        lambda: load_admins(box.admins_file),
        lambda: fetch(box),
    )
    faults: list[str] = []
    status: StatusView | None = None
    for what in looks:
        try:
            found = what()
        except MoeError as error:
            if error.message not in faults:  # a broken configuration breaks all of them
                faults.append(error.message)
                _fault(error, console)
        else:
            status = found if isinstance(found, StatusView) else None
    if status is None:
        return True
    say(console, (status.verdict.sentence, f"bold {TONES[status.verdict.tone]}"))
    for row in status.findings:
        finding(console, row)
    return bool(faults) or status.verdict.tone != "ok" or any(row.severity != "info" for row in status.findings)


def _fault(error: MoeError, console: Console) -> None:
    for line in error.message.splitlines():
        say(console, (line, TONES["bad"]))
    for line in error.remedy.splitlines():
        say(console, (line, "bold cyan"), indent=5)


def _contents(parts: list[Part], path: Path, console: Console) -> None:
    say(console, (f"\n{path}", "bold"), " holds, without keys, names of people and prompts:")
    reasons: set[str] = set()
    for part in parts:
        told = f"{len(part.text.encode('utf-8', 'replace')):>8} bytes" if part.there else part.text.strip()
        if told in reasons:
            told = "not there, for the same reason"
        reasons |= set() if part.there else {told}
        say(console, (f"{part.name:<22}{told}", "" if part.there else "dim"), indent=2)
    say(console, "Look into it before you send it: tar -xOzf FILE | less")
