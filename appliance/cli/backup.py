"""`moe-appliance backup` and `restore`: configuration, seats, plan, ledger and what was learned, as one file."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from appliance.cli.box import Box
from appliance.config import SYSTEM_CONFIG, Config, Paths, find_config, load
from appliance.errors import start_command


def register(app: typer.Typer) -> None:
    """Add the verbs to the root."""
    app.command()(backup)
    app.command()(restore)


def backup(
    ctx: typer.Context,
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="Archive to write, mode 0600. Default: here, with the time.")
    ] = None,
) -> None:
    """Write configuration, seats, admins, plan, ledger and what was learned to one file; the box may run.

    No key of the engine, no weights, no log is in it. Keys of seats and admins are in it as digests only.
    """
    from appliance.backup import backup as write

    box: Box = ctx.obj
    now = datetime.fromtimestamp(time.time(), UTC).strftime("%Y-%m-%dT%H%M%SZ")
    to = file or Path(f"moe-appliance-{now}.tar.gz")
    manifest = write(to, find_config(box.config_file, box.environ), box.config, box.paths)
    for member in manifest.members:
        print(f"{member.name}  {member.bytes} bytes")
    print(f"written: {to}")


def restore(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An archive that `backup` wrote.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, say what would be done.")] = False,
) -> None:
    """Bring a backup back while the box is stopped. What it replaces is kept beside it."""
    from appliance.cli.terminal import plain
    from appliance.restore import restore as bring_back

    box: Box = ctx.obj
    config_file = _config_file(box)

    def here() -> tuple[Config, Paths]:
        return load(find_config(box.config_file, box.environ), box.environ)

    done = bring_back(file, config_file, here, box.environ, dry_run=dry_run)
    print(plain(f"backup of {done.manifest.made_at}, version {done.manifest.version}"))
    for step in done.steps:
        kept = f", the old one kept as {step.path.name}{done.suffix}" if step.replaces and not dry_run else ""
        print(plain(f"{step.path}: {step.bytes} bytes{', replaces what is there' if step.replaces else ''}{kept}"))
    for name in done.left_out:
        print(plain(f"{name}: left out, this configuration names no place for it"))
    print("nothing was changed" if dry_run else f"restored; start the box: {start_command(here()[1].state_dir)}")


def _config_file(box: Box) -> Path:
    """Where appliance.toml is, or goes: named, found, else in /etc or here."""
    named = box.config_file or (Path(p) if (p := box.environ.get("MOE_APPLIANCE_CONFIG")) else None)
    if named is not None:
        return named
    here = SYSTEM_CONFIG if SYSTEM_CONFIG.parent.is_dir() else Path("appliance.toml")
    return find_config(None, box.environ) or here
