"""What `plan make` and `plan check` share: options, headers, cards, the text of a check. Touches what it reads, stdout.

The cards are as they are stated; or this box's, asked through a child process; or, for a check, as the plan says.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from appliance.box.gpu import GpuReport, Outcome, Relation
from appliance.box.nvml import gather
from appliance.box.probe_host import probe_host
from appliance.checkpoint.catalogue import Catalogue, catalogue_of
from appliance.checkpoint.read import read
from appliance.checkpoint.sources import source_of
from appliance.checkpoint.tensors import Checkpoint
from appliance.cli.bars import bars, explained, legend
from appliance.cli.checkpoint_progress import headers_shown
from appliance.cli.terminal import finding, say
from appliance.errors import PlanError
from appliance.plan.cards import WEIGHTS
from appliance.plan.check import Checked
from appliance.plan.memory import BoxMemory, of_box, stated
from appliance.printable import printable
from appliance.units import GIB
from gateway.status.plan import bar_views

PlanArgument = Annotated[Path, typer.Argument(metavar="PLAN", help="A plan file.")]
CheckpointOption = Annotated[str, typer.Option(metavar="PATH|URL|REPO", help="Whose headers tell the bytes.")]
ExplainOption = Annotated[bool, typer.Option("--explain", help="How each figure comes about.")]
CARDS = 2
"""Cards that are meant when only their memory is stated."""
GIB_MAX = 2**20
"""The most GiB that an option takes: a PiB."""
_COLUMNS = 100


@dataclass(frozen=True, slots=True)
class Cards:
    """The cards and host memory; `said`: where that is from; `link`: the longest way between two of the cards."""

    memory: BoxMemory
    said: str
    link: str | None = None


def headers(text: str, environ: Mapping[str, str]) -> tuple[Checkpoint, Catalogue]:
    """The checkpoint that `text` means, and what its tensors are for. Raises CheckpointError."""
    with headers_shown() as on_header:
        checkpoint = read(source_of(text), environ=environ, progress=on_header)
    return checkpoint, catalogue_of(checkpoint)


def cards(vram_gib: float | None, gpus: int | None, environ: Mapping[str, str]) -> Cards:
    """The cards that are stated, or else this box's. Raises PlanError when nobody can tell."""
    if vram_gib is not None:
        return Cards(stated(int(vram_gib * GIB), gpus or CARDS), "as stated")
    report = gather(environ=environ)
    if report.outcome is not Outcome.OK or not report.gpus:
        why = printable(report.error) or str(report.outcome).replace("_", " ")
        raise PlanError(f"the cards of this box cannot be asked: {why}", "say what there is: --gpus 2 --vram-gib 95.6")
    if gpus is not None and gpus > len(report.gpus):
        there = len(report.gpus)
        raise PlanError(f"this box has {there} of {gpus} cards", f"--gpus {there}, or say what they have: --vram-gib")
    taken = report.gpus[: gpus or len(report.gpus)]
    memory = of_box(report, probe_host(Path("/"), environ))
    used = BoxMemory(
        memory.vram_bytes[: len(taken)], memory.numa[: len(taken)], memory.node_bytes, memory.names[: len(taken)]
    )
    return Cards(used, "of this box", _link(report, len(taken)))


def _link(report: GpuReport, cards: int) -> str | None:
    worst = [way for (one, two), way in (report.relations or {}).items() if one < cards and two < cards]
    return max(worst, key=list(Relation).index).value if worst else None


def render(checked: Checked, cards: Cards, explain: bool) -> None:
    """Print verdict, bars, figures and findings for people."""
    console = Console(highlight=False)
    if console.options.ascii_only and isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # the dash of an unknown figure, letters of a name
    if not console.is_terminal:
        console.width = max(console.width, _COLUMNS)
    shown = bar_views(checked.bars)
    style = "bold green" if checked.fits else "bold red"
    say(console, (checked.verdict, style))
    say(console, (f"cards {cards.said}; ~ is an estimate", "dim"))
    console.print()
    console.print(bars(shown, console.width, ascii_only=console.options.ascii_only))
    console.print()
    console.print(legend(shown))
    absent = [line for line in checked.budget.gpus[0].lines if line.id.startswith(WEIGHTS) and not line.bytes]
    if absent:
        say(console, (f"no bytes on a card: {', '.join(line.label for line in absent)}", "dim"))
    if explain:
        console.print()
        each = checked.budget.gpus[0].model_copy(update={"label": "each card"})
        console.print(explained(bar_views((each, *checked.budget.nodes))))
        for none in absent:
            say(console, f"{none.label}: {none.formula}")
    for found in checked.findings:
        console.print()
        finding(console, found)
