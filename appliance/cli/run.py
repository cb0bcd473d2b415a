"""`moe-appliance run`, the daemon in the foreground, and `check`, which starts nothing. Touches what the
daemon does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import sys
from pathlib import Path
from typing import TextIO, cast

import typer
from rich.console import Console

from appliance.cli.box import Box
from appliance.cli.logstream import LogStream
from appliance.cli.terminal import finding
from appliance.config import public_url
from appliance.daemon import Daemon, adapter_of
from appliance.errors import EXIT_CONFIG, PACKAGE_STATE_DIR, ConfigError, MoeError, start_command
from appliance.examine import Examiner
from appliance.notify import Notify
from appliance.printable import printable
from gateway import logs
from gateway.keyfile import load_admins, load_seats
from gateway.prewarm.files import broken_files, finding_of, unknown_seats
from gateway.seats import counted
from gateway.state import BoxState, Phase, Severity
from gateway.status.findings import arranged
from gateway.status.views import FindingRow


def register(app: typer.Typer) -> None:
    """Add the verbs to the root."""
    for verb in (run, check):
        app.command()(verb)


def run(ctx: typer.Context) -> None:
    """Run the box in the foreground: engine, gateway, page. This is what systemd starts."""
    box: Box = ctx.obj
    notify = Notify.taken_from(os.environ, os.getpid())
    config, paths = box.config, box.paths
    _refuse_root(paths.state_dir)
    log = logs.configure("daemon", cast(TextIO, LogStream(sys.stderr)))
    asyncio.run(_run(Daemon(config, paths, log, hangup_stops=sys.stderr.isatty(), notify=notify)))


def _refuse_root(state_dir: Path) -> None:
    """Root's files in somebody else's folder would keep the service from its own state. Raises ConfigError."""
    owner = state_dir.stat().st_uid if state_dir.exists() else 0
    if os.geteuid() != 0 or owner == 0:
        return
    try:
        name = user = pwd.getpwuid(owner).pw_name
    except KeyError:
        name, user = f"user {owner}", f"'#{owner}'"
    by_hand = f"sudo -u {user} moe-appliance run"
    raise ConfigError(
        f"state_dir {state_dir} belongs to {name}, and you are root",
        start_command(state_dir) if state_dir == PACKAGE_STATE_DIR else by_hand,
    )


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
    print(f"{counted(len(seats.accounts), 'seat')} in {box.seats_file}")
    print(f"{counted(len(admins.accounts), 'admin')} in {box.admins_file}")
    adapter = adapter_of(box.config, box.paths)
    examined = Examiner(box.config, box.paths, adapter, box.environ).examine()
    prefixes = box.config.prefix
    warm = (*finding_of(broken_files(prefixes), prefixes), *unknown_seats(prefixes, seats.accounts.keys()))
    found = (*examined.findings, *warm)
    if examined.plan is not None:
        print(printable(f"plan: {examined.plan.verdict} ({examined.plan.name}, {box.config.plan.file})", 4000))
    console = Console(highlight=False)
    for row in arranged(found):
        _print_finding(row, console)
    if any(row.severity is Severity.FAIL for row in found):
        raise typer.Exit(EXIT_CONFIG)


def _print_finding(row: FindingRow, console: Console, indent: int = 0) -> None:
    """With what follows from it under it."""
    finding(console, row, indent=indent)
    for child in row.folded:
        _print_finding(child, console, indent + 5)
