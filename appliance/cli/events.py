"""`moe-appliance events`: what happened to the box. Reads the ledger, or the running gateway's memory; writes lines.

Rule: texts of events hold names and errors of others: they are shown escaped.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
import time
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated

import typer
from rich.console import Console

from appliance.cli.box import Box
from appliance.cli.terminal import TONES, say
from appliance.errors import MoeError
from gateway.state import Event

LIMIT = 10_000
LOOK_S = 1.0
LATE_S = 600.0
"""How far back a later look goes: an event may be told long after it happened, when the gateway was away."""
_UNITS = {"m": 60.0, "h": 3600.0, "d": 86400.0}


def register(app: typer.Typer) -> None:
    """Add the verb to the root."""
    app.command()(events)


def events(
    ctx: typer.Context,
    since: Annotated[str, typer.Option(metavar="TIME", help="How far back: 30m, 24h, 7d.")] = "24h",
    follow: Annotated[bool, typer.Option("--follow", help="Go on and show what happens.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line, for programs.")] = False,
) -> None:
    """Show what happened: starts and ends, the engine's phases, changes by hand, refusals in sum."""
    box: Box = ctx.obj
    after_s = time.time() - span_s(since)
    console = Console(highlight=False)
    shown = _show(kept(box, after_s), set(), console, as_json=as_json)
    if not shown and not follow and not as_json:
        print(f"Nothing happened in the last {since}.", file=sys.stderr)
    while follow:
        time.sleep(LOOK_S)
        with contextlib.suppress(MoeError):  # the gateway is just being replaced, and there is no ledger
            shown = _show(kept(box, max(after_s, time.time() - LATE_S)), shown, console, as_json=as_json)


def span_s(text: str) -> float:
    """Seconds of 30m, 24h or 7d. Raises typer.BadParameter."""
    found = re.fullmatch(r"([0-9]{1,5})([mhd])", text)
    if found is None:
        raise typer.BadParameter(f"{text!r} is no time; write 30m, 24h or 7d", param_hint="--since")
    return int(found[1]) * _UNITS[found[2]]


def kept(box: Box, after_s: float) -> list[Event]:
    """The events after a wall-clock time, oldest first: of the ledger, and those that it does not have yet. Raises
    MoeError when there is neither a ledger nor a gateway."""
    from gateway.ledger import reading
    from gateway.ledger.writing import NAME

    found, fault = dict[str, Event](), None
    try:
        found = {event.id: event for event in reading.events(box.paths.state_dir / NAME, after_s, LIMIT)}
    except MoeError as error:
        fault = error
    try:
        for raw in box.gateway("GET", "/events").json()["events"]:
            event = Event.model_validate(raw)
            if event.at_s >= after_s:
                found.setdefault(event.id, event)
    except MoeError:
        if fault is not None:
            raise fault from None
    return sorted(found.values(), key=lambda event: event.at_s)


def _show(found: Iterable[Event], shown: set[str], console: Console, *, as_json: bool) -> set[str]:
    """Print those that were not shown; the ids of all."""
    ids = set(shown)
    for event in found:
        if event.id in shown:
            continue
        ids.add(event.id)
        if as_json:
            print(json.dumps(event.model_dump(mode="json")), flush=True)
            continue
        at = datetime.fromtimestamp(event.at_s).astimezone().strftime("%Y-%m-%d %H:%M:%S")
        who = f"  ({event.who})" if event.who else ""
        say(console, (at, "dim"), "  ", (f"{event.severity:<5}", TONES[event.severity]), f" {event.text}", (who, "dim"))
    return ids
