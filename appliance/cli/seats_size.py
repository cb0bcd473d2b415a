"""`moe-appliance seats size`: how many developers one box can take. Touches what it reads, --plot's FILE, the terminal.

A profile comes from the study, from a file, from Claude Code's own files, or from this box's ledger.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer

from appliance.cli.context import JsonOption
from appliance.errors import MoeError, NotRunning

_TOK_PER_S_MAX = 1e7
_EUR_MAX = 1e9

FolderArgument = Annotated[
    Path | None, typer.Argument(metavar="DIR", help="With --claude-code: its folder. Default: ~/.claude/projects.")
]
ProfileOption = Annotated[
    Path | None,
    typer.Option("--profile", metavar="FILE", help="A developer's week (.toml, .json), or daily tokens (.csv, .json)."),
]
LedgerOption = Annotated[bool, typer.Option("--from-ledger", help="The seats of this box, as its ledger has them.")]
ClaudeOption = Annotated[
    bool, typer.Option("--claude-code", help="The use of Claude Code on this machine; only counts are read.")
]
DevelopersOption = Annotated[str, typer.Option(metavar="N,N", help="Team sizes to count pods and cost for.")]
StreamsOption = Annotated[
    int | None, typer.Option(min=1, max=256, help="Streams that one pod runs at the floor. Default: this box's, or 4.")
]
FloorOption = Annotated[
    float | None,
    typer.Option(min=0.1, max=_TOK_PER_S_MAX, help="Output tokens a second of one stream. Default: this box's, or 40."),
]
PaceOption = Annotated[
    float | None,
    typer.Option(min=0.1, max=_TOK_PER_S_MAX, help="Output tokens a second of all streams. Default: the study's 168."),
]
PrefillOption = Annotated[
    float | None,
    typer.Option(min=1, max=_TOK_PER_S_MAX, help="Input tokens read a second. Default: the study's 6983."),
]
HoursOption = Annotated[
    float | None, typer.Option(min=0.1, max=24, help="Hours a day in which the work is done. Default: 8.")
]
PodOption = Annotated[
    float | None, typer.Option(min=0, max=_EUR_MAX, help="EUR a month of one pod. Default: the study's 2723.")
]
SeatOption = Annotated[
    float | None, typer.Option(min=0.01, max=_EUR_MAX, help="EUR a month of one subscription. Default: 180.")
]
PlotOption = Annotated[
    Path | None, typer.Option(metavar="FILE.svg", help="Draw cost and chance into a file; - = into the terminal.")
]


def register(app: typer.Typer) -> None:
    """Add the verb to `seats`."""
    app.command()(size)


def size(
    ctx: typer.Context,
    folder: FolderArgument = None,
    profile: ProfileOption = None,
    from_ledger: LedgerOption = False,
    claude_code: ClaudeOption = False,
    developers: DevelopersOption = "20,100,250",
    streams: StreamsOption = None,
    floor: FloorOption = None,
    pace: PaceOption = None,
    prefill: PrefillOption = None,
    hours: HoursOption = None,
    price_pod: PodOption = None,
    price_seat: SeatOption = None,
    plot: PlotOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say how many developers one box can take, how many boxes a team needs, and what that costs."""
    from appliance.cli import seats_size_text as text
    from appliance.sizing import sizing
    from gateway.sizing.capacity import Pace

    if sum((profile is not None, from_ledger, claude_code)) > 1:
        raise typer.BadParameter("take one of --profile, --from-ledger and --claude-code")
    if folder is not None and not claude_code:
        raise typer.BadParameter("a folder is read only with --claude-code", param_hint="DIR")
    if hours is not None and from_ledger:
        raise typer.BadParameter("the ledger shows the hours itself", param_hint="--hours")
    teams = _teams(developers)
    given = _given(streams=streams, floor_tok_per_s=floor, tok_per_s=pace, prefill_tok_per_s=prefill)
    box = replace(_box_pace(ctx) if from_ledger else Pace(), **given)
    if from_ledger:
        source = _from_ledger(ctx, box.streams)
    elif claude_code:
        source = _from_claude(ctx, folder, hours)
    else:
        source = _from_file(profile, hours)
    prices = replace(sizing.Prices(), **_given(pod_eur=price_pod, seat_eur=price_seat))
    answer = sizing.size(source.profile, box, teams, prices, source.activity)
    if plot is not None and str(plot) != "-":
        _draw(answer, plot)
    if as_json:
        print(json.dumps(answer.to_json(), indent=2))
        return
    text.show(answer, source.said, drawn=str(plot) == "-")


@dataclass(frozen=True, slots=True)
class _Source:
    """A profile, what the ledger showed if it is from there, and what is to be said of how it was read."""

    profile: Any
    activity: Any = None
    said: str = ""


def _given(**values: float | None) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _teams(text: str) -> tuple[int, ...]:
    from gateway.sizing.capacity import DEVELOPERS_MAX

    if not re.fullmatch(r"[0-9]{1,6}(,[0-9]{1,6}){0,19}", text, re.ASCII):
        raise typer.BadParameter("write numbers with commas: 20,100,250", param_hint="--developers")
    found = tuple(sorted({int(number) for number in text.split(",")}))
    if found[0] < 1 or found[-1] > DEVELOPERS_MAX:
        raise typer.BadParameter(f"a team has 1 to {DEVELOPERS_MAX:,} developers", param_hint="--developers")
    return found


def _from_file(file: Path | None, hours: float | None) -> _Source:
    from appliance.sizing.importers import profile_of
    from gateway.sizing.profile import STUDY

    if file is None:
        return _Source(STUDY if hours is None else replace(STUDY, hours_a_day=hours))
    return _Source(profile_of(file, hours))


def _from_claude(ctx: typer.Context, folder: Path | None, hours: float | None) -> _Source:
    from appliance.sizing import claude_code
    from appliance.units import count
    from gateway.sizing.profile import STUDY

    where = folder or claude_code.default_folder(ctx.obj.environ, Path.home())
    profile, found = claude_code.profile(where, STUDY.hours_a_day if hours is None else hours)
    days = claude_code.LOOK_BACK_DAYS
    said = f"{count(found.replies, 'answer')} in {count(found.files, 'file')}, of which the last {days} days count"
    if found.damaged or found.unread:
        lines, files = count(found.damaged, "damaged line"), count(found.unread, "unreadable file")
        said += f"; {lines} and {files} were left out"
    return _Source(profile, said=said + ".")


def _box_pace(ctx: typer.Context) -> Any:
    """The streams and the floor of the box that runs here; the study's where none does."""
    from gateway.sizing.capacity import Pace
    from gateway.state import BoxState

    try:
        state = BoxState.model_validate_json(ctx.obj.daemon("GET", "/state").content)
    except NotRunning:
        return Pace()
    engine = state.engine.profile
    return Pace(streams=ctx.obj.config.admission.streams or engine.streams, floor_tok_per_s=engine.floor_tok_per_s)


def _from_ledger(ctx: typer.Context, streams: int) -> _Source:
    from appliance.sizing.measured import measured_profile
    from gateway.ledger import reading
    from gateway.ledger import writing as ledger
    from gateway.settings import LOOK_BACK_DAYS
    from gateway.sizing.activity import day_offset_s, measure

    path: Path = ctx.obj.paths.state_dir / ledger.NAME
    until_s = time.time()
    since_s = until_s - LOOK_BACK_DAYS * 86_400
    served = iter(reading.intervals(path, since_s, until_s))
    first = next(served, None)
    if first is None:
        return _Source(measured_profile(None, (), until_s))
    offset_s = day_offset_s(reading.hours(path, since_s, until_s))
    activity = measure(chain((first,), served), since_s, until_s, streams, offset_s)
    usage = reading.usage(path, first.arrived_s, until_s)
    return _Source(measured_profile(activity, usage, first.arrived_s), activity)


def _draw(answer: Any, file: Path) -> None:
    from appliance.sizing.figures import figures
    from appliance.sizing.svg import drawing
    from gateway.files import replace_file

    try:
        replace_file(file, drawing(figures(answer)).encode(), 0o644)
    except (OSError, ValueError) as error:  # a NUL in a path is a ValueError
        why = error.strerror if isinstance(error, OSError) else error
        raise MoeError(f"{file}: cannot be written: {why}", "name a file in a folder of yours with --plot") from error
