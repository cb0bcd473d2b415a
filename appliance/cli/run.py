"""Verbs that run and end the box: run, check, stop, reload. Touches the daemon's socket."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from pathlib import Path
from typing import TextIO, cast

import typer

from appliance.cli.box import Box
from appliance.cli.logstream import LogStream
from appliance.config import public_url
from appliance.daemon import Daemon, adapter_of
from appliance.errors import EXIT_CONFIG, MoeError
from appliance.examine import Examiner
from appliance.notify import Notify
from appliance.printable import printable
from gateway import logs
from gateway.keyfile import load_admins, load_seats
from gateway.state import BoxState, Phase, Severity
from gateway.status.findings import arranged
from gateway.status.views import FindingRow


def register(app: typer.Typer) -> None:
    """Add the verbs to the root."""
    for verb in (run, check, stop, reload):
        app.command()(verb)


def run(ctx: typer.Context) -> None:
    """Run the box in the foreground: engine, gateway, page. This is what systemd starts."""
    box: Box = ctx.obj
    notify = Notify.taken_from(os.environ, os.getpid())
    config, paths = box.config, box.paths
    log = logs.configure("daemon", cast(TextIO, LogStream(sys.stderr)))
    asyncio.run(_run(Daemon(config, paths, log, hangup_stops=sys.stderr.isatty(), notify=notify)))


async def _run(daemon: Daemon) -> None:
    if sys.stderr.isatty():
        daemon.board.listen(Welcome(daemon.paths.seats_file, sys.stderr))
    await daemon.run()


class Welcome:
    """Tells a person at the terminal, among all the log lines, that the box serves: once."""

    def __init__(self, seats_file: Path, terminal: TextIO) -> None:
        self._seats_file = seats_file
        self._terminal = terminal
        self._said = False

    def __call__(self, box: BoxState) -> None:
        """A new state of the box."""
        if self._said or box.engine.phase is not Phase.READY or box.gateway.pid is None:
            return
        self._said = True
        with contextlib.suppress(OSError):
            print(f"\nready: {box.public_url}/v1   page: {box.public_url}/admin{self._hint()}\n", file=self._terminal)

    def _hint(self) -> str:
        with contextlib.suppress(MoeError):
            if not load_seats(self._seats_file).accounts:
                return "   no seat yet: moe-appliance seats add NAME"
        return ""


def check(ctx: typer.Context) -> None:
    """Check the configuration, seats, admins and what the engine needs; start nothing. Exit 0, or 78 when the box
    would not serve."""
    box: Box = ctx.obj
    seats, admins = load_seats(box.seats_file), load_admins(box.admins_file)
    print(f"configuration: good ({box.config.engine.kind} engine, {public_url(box.config)})")
    print(f"seats: {len(seats.accounts)} in {box.seats_file}")
    print(f"admins: {len(admins.accounts)} in {box.admins_file}")
    adapter = adapter_of(box.config, box.paths.state_dir)
    examined = Examiner(box.config, box.paths, adapter, box.environ).examine()
    found = examined.findings
    if examined.plan is not None:
        print(printable(f"plan: {examined.plan.verdict} ({examined.plan.name}, {box.config.plan.file})", 4000))
    for row in arranged(found):
        _print_finding(row)
    if any(finding.severity is Severity.FAIL for finding in found):
        raise typer.Exit(EXIT_CONFIG)


def _print_finding(row: FindingRow, indent: str = "") -> None:
    """With what follows from it under it."""
    lines = [f"{row.severity}: {row.title}: {row.observed}; wanted: {row.required}"]
    if row.forced:
        lines.append(f"  forced: {row.forced}")
    first, *more = row.remedy.splitlines() or [""]
    for line in (*lines, f"  remedy: {first}", *(f"  {line}" for line in more)):
        print(indent + printable(line, 4000))
    for child in row.folded:
        _print_finding(child, f"{indent}    ")


def stop(ctx: typer.Context) -> None:
    """Stop the running box: streams may end first, for drain_s at most."""
    answer = ctx.obj.daemon("POST", "/stop")
    print(answer.json().get("said", f"answered {answer.status_code}"))


def reload(ctx: typer.Context) -> None:
    """Read seats.toml and admins.toml again now. Exit 1 when they are broken: the old ones stay in use."""
    answer = ctx.obj.daemon("POST", "/reload")
    said = answer.json()
    if answer.status_code != 200:
        errors = "\n".join(map(str, said.get("errors", [])))
        raise MoeError(f"not reloaded, the old files stay in use:\n{errors}", "correct the file, then reload again")
    seats = said["seats"]
    print(f"reloaded: {seats} seat{'' if seats == 1 else 's'}")
