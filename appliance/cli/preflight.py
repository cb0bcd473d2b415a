"""`moe-appliance preflight`: what the box is, what is wrong with it, what to do. Touches the box, its state folder, the
daemon's socket and the terminal.

- It works without a configuration file and without root. While an engine runs, what that engine holds is not held
  against the box.
- Names of cards and processes and lines of logs are other people's words: no markup, no control characters.
"""

from __future__ import annotations

import getpass
import json
import os
import shutil
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from appliance.box import forced, preflight
from appliance.box.deep import measure
from appliance.box.facts import Facts, node_of
from appliance.box.gpu import Bandwidth, DeepReport, Gpu, GpuReport, Outcome
from appliance.box.probe_host import family
from appliance.box.report import Preflight, document, exit_code, verdict
from appliance.cli.box import Box
from appliance.cli.context import JsonOption
from appliance.cli.terminal import finding, plain, say, table
from appliance.daemon import adapter_of
from appliance.engine.settings import CommandSettings
from appliance.engine.vllm.adapter import VllmEngine
from appliance.engine.vllm.settings import VllmSettings
from appliance.errors import EXIT_CONFIG, MoeError, PlanError
from appliance.examine import FINDING_IDS, Examiner
from appliance.plan import planfile
from appliance.printable import printable
from appliance.units import GIB, gib
from appliance.using import as_used
from gateway.state import BoxState
from gateway.status.findings import arranged
from gateway.status.views import FindingRow


def register(app: typer.Typer) -> None:
    """Add the verb to the root."""
    app.command("preflight")(look)


def look(
    ctx: typer.Context,
    deep: Annotated[
        bool, typer.Option("--deep", help="Measure copies, pinning and NCCL; the engine must be stopped.")
    ] = False,
    as_json: JsonOption = False,
    cached: Annotated[bool, typer.Option("--cached", help="Show the last look of this boot; ask nothing.")] = False,
    plan: Annotated[Path | None, typer.Option("--plan", metavar="FILE", help="Judge for this plan.")] = None,
    force: Annotated[str | None, typer.Option("--force", metavar="ID", help="Go on in spite of a failure.")] = None,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; shown with the finding.")] = "",
    unforce: Annotated[str | None, typer.Option("--unforce", metavar="ID", help="Take --force back.")] = None,
    root: Annotated[Path, typer.Option("--root", hidden=True)] = Path("/"),
    deadline: Annotated[float | None, typer.Option("--deadline", hidden=True)] = None,
) -> None:
    """Look at the cards, the memory and the kernel before an engine starts. Exit 0 clean, 1 warnings, 78 failures."""
    box: Box = ctx.obj
    state_dir = box.paths.state_dir
    if reason and force is None:
        raise typer.BadParameter("goes with --force ID", param_hint="--reason")
    if deep and cached:
        raise typer.BadParameter("measures, and --cached asks nothing", param_hint="--deep")
    examiner = _examiner(box, plan, root)
    if force is not None:
        plan_id = _plan_id(examiner)
        forced.force(state_dir, force, reason, at_s=time.time(), by=_user(), plan_id=plan_id, known=FINDING_IDS)
    if unforce is not None:
        forced.unforce(state_dir, unforce)
    seen = _cached(examiner) if cached else _looked(box, examiner, deep, deadline)
    gone = preflight.gone(state_dir, seen)
    if as_json:
        print(json.dumps(document(seen, gone)))
    else:
        show(seen, gone, Console(highlight=False))
    if exit_code(seen.findings):
        raise typer.Exit(exit_code(seen.findings))


def _looked(box: Box, examiner: Examiner, deep: bool, deadline_s: float | None) -> Preflight:
    def measured(cards: Sequence[Gpu]) -> DeepReport:
        return measure(
            cards,
            engine_python=engine_python(box),
            engine_serves=bool(examiner.own_pids),
            environ=box.environ,
            root=examiner.root,
        )

    return examiner.preflight(deep=measured if deep else None, deadline_s=deadline_s)


def _cached(examiner: Examiner) -> Preflight:
    state_dir = examiner.paths.state_dir
    try:
        seen = preflight.cached(state_dir, examiner.wants, root=examiner.root)
    except OSError as error:
        raise MoeError(
            f"{error.filename}: cannot be read: {error.strerror}", "sudo, or: moe-appliance preflight"
        ) from error
    if seen is None and not state_dir.exists():
        remedy = f"mkdir -p {quote(str(state_dir))}; moe-appliance preflight   or set state_dir in the configuration"
        raise MoeError(f"there is no state folder {state_dir}, so that nothing is kept", remedy)
    if seen is None:
        raise MoeError(f"nobody has looked since the boot, by {state_dir}", "moe-appliance preflight")
    return seen


def _examiner(box: Box, plan: Path | None, root: Path) -> Examiner:
    """Raises MoeError when there is no such plan file."""
    config, running = as_used(box.config, box.paths), _running(box)
    if plan is not None:
        if not plan.is_file():
            raise MoeError(f"there is no plan file {printable(str(plan))}", "moe-appliance plan make, or name another")
        config = config.model_copy(update={"plan": config.plan.model_copy(update={"file": plan.absolute()})})
    own_pids = family(root, running) if running is not None else frozenset[int]()
    adapter = adapter_of(config, box.paths)
    return Examiner(config, box.paths, adapter, box.environ, root, own_pids, of_box=True)


def _plan_id(examiner: Examiner) -> str:
    """Of the plan that is judged for; "" when there is none that can be read."""
    file = examiner.config.plan.file
    if file is None:
        return ""
    try:
        return planfile.load(file).identity
    except PlanError:
        return ""


def engine_python(box: Box) -> Path | None:
    """The Python of the engine's environment: as configured, else vLLM's, else the one beside the engine's program."""
    configured = box.config.preflight.engine_python
    engine = box.config.engine
    if configured is None and isinstance(engine, VllmSettings):
        return VllmEngine(engine, state_dir=box.paths.state_dir, runtime_dir=box.paths.runtime_dir).look().place.python
    if configured is not None or not isinstance(engine, CommandSettings):
        return configured
    program = shutil.which(engine.command[0], path=box.environ.get("PATH", os.defpath))
    beside = Path(program).with_name("python") if program is not None else None
    return beside if beside is not None and beside.exists() else None


def _running(box: Box) -> int | None:
    """The pid of the engine that the daemon runs on cards, None when there is none."""
    try:
        if not box.paths.control_socket.exists():
            return None
        engine = BoxState.model_validate_json(box.daemon("GET", "/state").content).engine
    except (MoeError, ValueError, OSError):  # OSError: a folder above it is shut to us
        return None
    return None if engine.kind == "embedded" else engine.pid


def _user() -> str:
    try:
        return os.environ.get("SUDO_USER") or getpass.getuser()
    except (KeyError, OSError):  # a uid without a name
        return str(os.getuid())


def show(seen: Preflight, gone: tuple[str, ...], console: Console) -> None:
    """Print it for people."""
    worst = {0: "green", 1: "yellow", EXIT_CONFIG: "red"}[exit_code(seen.findings)]
    say(console, ("● ", worst), (verdict(seen), "bold"))
    for row in arranged(seen.findings):
        console.print()
        _finding(console, row, 0)
    for id_ in gone:
        say(console, (f"forced and not seen: {id_}; moe-appliance preflight --unforce {id_}", "dim"))
    for note in seen.notes:
        say(console, (note, "dim"))
    _box(seen.facts, console)


def _finding(console: Console, row: FindingRow, indent: int) -> None:
    finding(console, row, indent=indent, mark="└ " if indent else "")
    for child in row.folded:
        _finding(console, child, indent + 5)


def _box(facts: Facts, console: Console) -> None:
    if facts.gpus is not None and facts.gpus.gpus:
        console.print()
        console.print(_cards(facts.gpus, facts))
        for (a, b), relation in sorted((facts.gpus.relations or {}).items()):
            direct = (facts.gpus.p2p or {}).get((a, b), "")
            say(console, f"gpu{a} and gpu{b}: {relation}" + (f", P2P {direct}" if direct else ""))
    if facts.gpus is not None and facts.gpus.outcome is not Outcome.NO_DRIVER and facts.host is not None:
        for node in facts.host.nodes:
            free = node.free_bytes + node.reclaimable_bytes
            huge = node.hugepages_bytes
            more = f", {gib(huge)} in huge pages" if huge else ""
            say(console, f"node{node.id}: {free / GIB:.1f} of {gib(node.total_bytes)} free or reclaimable{more}")
    if facts.deep is not None:
        _deep(facts.deep, console)


def _cards(report: GpuReport, facts: Facts) -> Table:
    shown = table()
    for heading in ("card", "address", "name", "memory", "used", "node", "link"):
        shown.add_column(heading, justify="right" if heading in ("memory", "used") else "left", overflow="fold")
    for gpu in report.gpus:
        node = node_of(gpu, facts.host)
        used = "?" if gpu.used_bytes is None else gib(gpu.used_bytes)
        link = f"Gen{gpu.link.gen_now or '?'} x{gpu.link.width_now or '?'} now"
        cells = (f"gpu{gpu.index}", gpu.bus_id, gpu.name, gib(gpu.total_bytes), used, node, link)
        shown.add_row(*(Text("?" if cell is None else plain(cell)) for cell in cells))
    return shown


def _deep(deep: DeepReport, console: Console) -> None:
    said = [] if deep.bandwidth is None else _rates(deep.bandwidth)
    if deep.pin_s is not None and deep.pinned_bytes is not None:
        said.append(f"pinning {deep.pinned_bytes / GIB:.0f} GiB took {deep.pin_s:.2f} s")
    if deep.nccl_s is not None:
        peer = "with" if deep.nccl_p2p else "without"
        said.append(f"NCCL {peer} peer access: {deep.nccl_gb_s or 0:.1f} GB/s, {deep.nccl_s:.1f} s with its start")
    if said:
        at = datetime.fromtimestamp(deep.at_s).astimezone().strftime("%Y-%m-%d %H:%M")
        say(console, (f"measured {at}", "dim"))
    for line in said:
        say(console, line, indent=2)


def _rates(rates: Bandwidth) -> list[str]:
    ways = (
        ("to each card alone", rates.alone),
        ("to all cards at once", rates.together),
        ("from each card alone", rates.back),
        ("to each card from the far node", rates.far),
    )
    said = [
        f"{way}: " + ", ".join(f"gpu{index} {rate:.1f} GB/s" for index, rate in sorted(by_card.items()))
        for way, by_card in ways
        if by_card
    ]
    links = ", ".join(f"gpu{index} Gen{gen} x{rates.width.get(index, '?')}" for index, gen in sorted(rates.gen.items()))
    return [*said, f"links while copying: {links}"] if links else said
