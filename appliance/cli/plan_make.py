"""`moe-appliance plan make`: makes a plan for a checkpoint and a box. Touches what it reads, FILE, and the terminal."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Annotated, Literal

import typer

from appliance.cli.context import JsonOption, say
from appliance.cli.plan_inputs import GIB_MAX, Cards, CheckpointOption, ExplainOption, cards, headers, render
from appliance.errors import EXIT_CONFIG
from appliance.plan import planfile, stats
from appliance.plan.check import Checked, check
from appliance.plan.lists import expert_table, layer_list
from appliance.plan.planner import plan_for
from appliance.plan.remedies import short_name
from appliance.plan.request import Method, Request, model_of
from appliance.plan.schema import Limits, Profile, Targets
from appliance.printable import printable
from appliance.units import GIB

_DEFAULT = Targets()

GpusOption = Annotated[int | None, typer.Option(min=1, max=64, help="Cards to spread it over. Default: all, or 2.")]
VramOption = Annotated[float | None, typer.Option(min=0.1, max=GIB_MAX, help="GiB of each card. Default: this box's.")]
KvOption = Annotated[
    float | None, typer.Option(min=0, max=GIB_MAX, help="GiB of KV cache a card. Default: streams x context.")
]
StreamsOption = Annotated[int, typer.Option(min=1, max=100_000, help="Sequences at once.")]
ContextOption = Annotated[int, typer.Option(min=1, max=2**40, help="Tokens of each of them.")]
SelectOption = Annotated[
    Method | None, typer.Option(help="How experts are chosen. Default: by --stats, --layers or --list, else uniform.")
]
StatsOption = Annotated[
    Path | None, typer.Option("--stats", metavar="FILE", help="Routing statistics: the coldest go first.")
]
LayersOption = Annotated[str | None, typer.Option(metavar="20-39,3", help="Whole layers, in this order.")]
ListOption = Annotated[
    Path | None, typer.Option("--list", metavar="FILE", help='The experts themselves: JSON, {"3": "0-11,40"}.')
]
ExpertsOption = Annotated[int | None, typer.Option(min=0, help="So many experts. Default: the least that fits.")]
HostOption = Annotated[float | None, typer.Option(min=0, max=GIB_MAX, help="Most GiB of host RAM to pin.")]
WholeOption = Annotated[
    bool, typer.Option("--whole-layers", help="A layer may be cold as a whole: for engines that run it on the CPU.")
]
EngramOption = Annotated[Literal["pinned", "disk", "vram"], typer.Option(help="Where Engram tables are.")]
KeepOption = Annotated[bool, typer.Option("--keep-embedding", help="The embedding stays on the cards.")]
VisionOption = Annotated[bool, typer.Option("--vision", help="The engine loads the vision tower.")]
DraftOption = Annotated[bool, typer.Option("--draft/--no-draft", help="The engine loads the built-in draft model.")]
CapOption = Annotated[int | None, typer.Option(min=1, max=256, help="Streams that were measured to hold the floor.")]
ValidatedOption = Annotated[str, typer.Option(help="Where --cap was measured.")]
NameOption = Annotated[str | None, typer.Option(help="What people call the model. Default: after its origin.")]
OutOption = Annotated[Path | None, typer.Option(metavar="FILE", help="Write it. Default: only say what it would be.")]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="FILE may exist.")]


@dataclass(frozen=True, slots=True)
class _Choice:
    """What the options say of how experts are chosen."""

    select: Method | None
    stats: Path | None
    layers: str | None
    table: Path | None
    experts: int | None

    @property
    def method(self) -> Method:
        """Said, or what the other options imply."""
        if self.select is not None:
            return self.select
        if self.table is not None:
            return "manual"
        if self.layers is not None:
            return "layers"
        return "uniform" if self.stats is None else "routing-stats"

    def refuse(self) -> None:
        """Raise what is wrong with the options together."""
        for option, given, methods in (
            ("--layers", self.layers is not None, ("layers",)),
            ("--list", self.table is not None, ("manual",)),
            ("--experts", self.experts is not None, ("uniform", "routing-stats", "layers")),
        ):
            if given and self.method not in methods:
                raise typer.BadParameter(f"is not for --select {self.method}", param_hint=option)
        if self.method == "manual" and self.table is None:
            raise typer.BadParameter("manual needs --list FILE", param_hint="--select")

    def request(self, there: Cards, targets: Targets, limits: Limits) -> Request:
        """What is asked for these cards. Raises PlanError when a list cannot be read."""
        return Request(
            vram_bytes=min(there.memory.vram_bytes),
            tp=len(there.memory.vram_bytes),
            method=self.method,
            targets=targets,
            limits=limits,
            experts=self.experts,
            layers=() if self.layers is None else layer_list(self.layers),
            table={} if self.table is None else expert_table(self.table),
            gpu_names=there.memory.names,
            numa=there.memory.numa,
            link=there.link,
        )


def register(app: typer.Typer) -> None:
    """Add the verb to `plan`."""
    app.command("make")(make_plan)


def make_plan(
    ctx: typer.Context,
    checkpoint: CheckpointOption,
    gpus: GpusOption = None,
    vram_gib: VramOption = None,
    kv_gib: KvOption = None,
    streams: StreamsOption = _DEFAULT.streams,
    context: ContextOption = _DEFAULT.context_tokens,
    select: SelectOption = None,
    stats_file: StatsOption = None,
    layers: LayersOption = None,
    table: ListOption = None,
    experts: ExpertsOption = None,
    max_host_gib: HostOption = None,
    whole_layers: WholeOption = False,
    engram: EngramOption = "pinned",
    keep_embedding: KeepOption = False,
    vision: VisionOption = False,
    draft: DraftOption = True,
    cap: CapOption = None,
    validated: ValidatedOption = "",
    name: NameOption = None,
    out: OutOption = None,
    overwrite: OverwriteOption = False,
    explain: ExplainOption = False,
    as_json: JsonOption = False,
) -> None:
    """Make the plan that moves least to host RAM: Engram tables, then the embedding, then as many experts as it takes.
    Exit 0: it fits; 78: what was asked for, by number or list, does not."""
    choice = _Choice(select, stats_file, layers, table, experts)
    choice.refuse()
    if out is not None:
        planfile.target(out, overwrite)  # before minutes of reading, not after
    environ: dict[str, str] = ctx.obj.environ
    kv = None if kv_gib is None else int(kv_gib * GIB)
    most = None if max_host_gib is None else int(max_host_gib * GIB)
    targets = Targets(kv_bytes=kv, streams=streams, context_tokens=context, vision=vision, draft=draft)
    there = cards(vram_gib, gpus, environ)
    request = choice.request(there, targets, Limits(max_host_bytes=most, whole_layers=whole_layers))
    counted = None if stats_file is None else stats.load(stats_file)
    read, catalogue = headers(checkpoint, environ)
    called = printable(name or short_name(read))
    profile = None if cap is None else Profile(name=called, streams=cap, validated=validated)
    request = replace(request, engram=engram, keep_embedding=keep_embedding, profile=profile)
    made = planfile.stamped(plan_for(catalogue, model_of(read, called), request, counted, origin=read.origin))
    checked = check(made, read, catalogue, there.memory, None if out is None else str(out))
    if out is not None:
        planfile.save(made, out, overwrite)
    if as_json:
        plan = json.loads(planfile.dumps(made))
        print(json.dumps({"file": None if out is None else str(out), "plan": plan, **checked.to_json()}, indent=2))
    else:
        _show(checked, there, out, explain)
    if not checked.fits:
        raise typer.Exit(EXIT_CONFIG)


def _show(checked: Checked, there: Cards, out: Path | None, explain: bool) -> None:
    embedding = ", the embedding" if checked.plan.host.tensors else ""
    engram = ", Engram" if checked.plan.host.engram and checked.plan.host.engram.mode == "pinned" else ""
    print(f"{checked.plan.cold_count:,} of {checked.plan.expert_count:,} experts{embedding}{engram} in host RAM")
    render(checked, there, explain)
    print()
    if out is None:
        say("not written; --out FILE writes it")
    else:
        say(f"written to {printable(str(out))}", f"to see it: moe-appliance plan show {quote(printable(str(out)))}")
