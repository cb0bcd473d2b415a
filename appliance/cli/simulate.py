"""`moe-appliance simulate`: what a policy of admission does to pace and waits. Touches the files that are named, the
terminal, child processes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from appliance.cli.context import JsonOption
from appliance.errors import MoeError

_CASE = "B"
_SEEDS = 8
_SEATS_MAX = 200
_KV_TOKENS_MAX = 10**9

SeatsOption = Annotated[
    str | None, typer.Option("--seats", metavar="N,N", help="How many developers one pod has; several to compare.")
]
PolicyOption = Annotated[
    list[str] | None,
    typer.Option(
        "--policy",
        metavar="NAME",
        help="appliance, none, fifo-cap-N, round-robin, vtc or recommended (the one before); may be repeated.",
    ),
]
CaseOption = Annotated[
    str | None,
    typer.Option(
        "--kv-case", metavar="A|B|C", help="A: 624K tokens cached, B: 1.36M, C: as A and host RAM. Default B."
    ),
]
KvOption = Annotated[
    int | None,
    typer.Option("--kv-tokens", min=20_000, max=_KV_TOKENS_MAX, help="Tokens that the engine's cache holds."),
]
HostOption = Annotated[bool, typer.Option("--host-kv", help="The engine keeps a copy of every session in host RAM.")]
ProfileOption = Annotated[
    Path | None,
    typer.Option("--profile", metavar="FILE", help="A developer's week (.toml, .json), or daily tokens (.csv, .json)."),
]
PaceOption = Annotated[
    Path | None,
    typer.Option(
        "--pace", metavar="FILE", help="A box's own pace (.json: ms_per_token, prefill). Default: the study's."
    ),
]
MeasuredOption = Annotated[
    bool, typer.Option("--measured", help="This box's own pace: what its gateway has measured of the engine.")
]
SeedsOption = Annotated[
    int | None, typer.Option("--seeds", min=1, max=1000, help="Days of each. Default: 8; with --table 24.")
]
HoursOption = Annotated[float, typer.Option("--hours", min=0.1, max=24, help="Hours of a day.")]
CapOption = Annotated[int | None, typer.Option("--cap", min=1, max=64, help="Streams at once. Default: 4.")]
FloorOption = Annotated[
    float | None, typer.Option("--floor", min=0.1, max=1e7, help="Tokens a second that are promised. Default: 40.")
]
NoDeadlineOption = Annotated[bool, typer.Option("--no-deadline", help="Let turns wait for ever, none fails.")]
TableOption = Annotated[
    bool, typer.Option("--table", help="The cells of docs/measurements.md instead, all policies, 24 days each.")
]
PlotOption = Annotated[
    Path | None, typer.Option("--plot", metavar="FILE.svg", help="Draw it over seats; one N is drawn in quarters.")
]


def register(app: typer.Typer) -> None:
    """Add the verb to the root."""
    app.command()(simulate)


def simulate(
    ctx: typer.Context,
    seats: SeatsOption = None,
    policy: PolicyOption = None,
    kv_case: CaseOption = None,
    kv_tokens: KvOption = None,
    host_kv: HostOption = False,
    profile: ProfileOption = None,
    pace: PaceOption = None,
    measured: MeasuredOption = False,
    seeds: SeedsOption = None,
    hours: HoursOption = 8.0,
    cap: CapOption = None,
    floor: FloorOption = None,
    no_deadline: NoDeadlineOption = False,
    table: TableOption = False,
    plot: PlotOption = None,
    as_json: JsonOption = False,
) -> None:
    """Simulate developers on one pod: tokens at pace and waits, with this box's admission and with simpler ones."""
    from appliance.cli import simulate_text as text
    from appliance.cli.simulate_days import simulate_all
    from gateway.simulation import cells

    if table:
        given = (seats, policy, kv_case, kv_tokens, profile, pace, cap, floor, plot)
        if any(value is not None for value in given) or host_kv or no_deadline or measured:
            raise typer.BadParameter("it takes --seeds, --hours and --json only", param_hint="--table")
        trials, seeds = cells.table(hours), seeds or cells.TABLE_SEEDS
    else:
        scenario = _scenario(kv_case, kv_tokens, host_kv=host_kv, hours=hours, no_deadline=no_deadline)
        scenario = _with_limits(scenario, cap, floor)
        scenario = _with_pace(scenario, pace, ctx.obj.paths.state_dir if measured else None)
        scenario = _with_profile(scenario, profile)
        names = _policies(policy, scenario.limits.streams, drawn=plot is not None)
        case = None if kv_tokens is not None or host_kv else kv_case or _CASE
        numbers = _seats(seats, drawn=plot is not None)
        trials = _trials(scenario, names, numbers, case)
        seeds = seeds or _SEEDS
    found = simulate_all(trials, seeds)
    undrawn = _undrawn(trials, found, plot) if plot is not None else None
    if as_json:
        text.show_json(trials, found)
    else:
        text.show(trials, found)
    if undrawn is not None:  # what took minutes is told all the same
        raise undrawn


def _trials(scenario: Any, policies: Sequence[str], seats: Sequence[int], case: str | None) -> list[Any]:
    from gateway.simulation.cells import Trial

    return [Trial(policy, replace(scenario, seats=number), case) for policy in policies for number in seats]


def _scenario(kv_case: str | None, kv_tokens: int | None, *, host_kv: bool, hours: float, no_deadline: bool) -> Any:
    from gateway.simulation.cells import KV_CASES, Scenario

    if kv_case is not None and kv_case not in KV_CASES:
        raise typer.BadParameter(f"write one of {', '.join(KV_CASES)}", param_hint="--kv-case")
    if kv_case is not None and kv_tokens is not None:
        raise typer.BadParameter("take one of --kv-case and --kv-tokens", param_hint="--kv-tokens")
    kv = KV_CASES[kv_case or _CASE]
    kv = replace(kv, tokens=kv_tokens or kv.tokens, host=host_kv or kv.host)
    scenario = Scenario(1, kv, hours=hours)
    return replace(scenario, deadline_s=None) if no_deadline else scenario


def _with_limits(scenario: Any, cap: int | None, floor: float | None) -> Any:
    limits = scenario.limits
    streams, floor_tok_per_s = cap or limits.streams, floor or limits.floor_tok_per_s
    return replace(scenario, limits=replace(limits, streams=streams, floor_tok_per_s=floor_tok_per_s))


def _with_pace(scenario: Any, file: Path | None, state_dir: Path | None) -> Any:
    """`state_dir`: of the box whose measurements count; None = nobody asks for them."""
    if file is not None and state_dir is not None:
        raise typer.BadParameter("take one of --pace and --measured", param_hint="--measured")
    if file is None and state_dir is None:
        return scenario
    from appliance.cli.simulate_pace import pace_of_box, pace_of_file

    if state_dir is not None:
        return replace(scenario, pace=pace_of_box(state_dir))
    assert file is not None
    return replace(scenario, pace=pace_of_file(file))


def _with_profile(scenario: Any, file: Path | None) -> Any:
    from appliance.sizing.importers import profile_of
    from gateway.simulation.week import developer_of

    if file is None:
        return scenario
    developer = developer_of(profile_of(file), scenario.limits.floor_tok_per_s, scenario.pace)
    return replace(scenario, developer=developer)


def _policies(given: Sequence[str] | None, cap: int, *, drawn: bool) -> list[str]:
    from appliance.cli.simulate_plot import CURVES_MAX
    from gateway.simulation.cells import APPLIANCE, POLICIES, is_policy

    names = list(dict.fromkeys(given or (APPLIANCE, "recommended", f"fifo-cap-{cap}")))
    if not all(is_policy(name) for name in names):
        raise typer.BadParameter(f"write {', '.join(POLICIES)}, N being 1 to 999", param_hint="--policy")
    if drawn and len(names) > CURVES_MAX:
        raise typer.BadParameter(f"a picture takes {CURVES_MAX} policies at most", param_hint="--policy")
    return names


def _seats(text: str | None, *, drawn: bool) -> list[int]:
    """Rising. For a picture one number is not enough: its quarters then come before it."""
    if text is None:
        raise typer.BadParameter("say how many developers, or take --table", param_hint="--seats")
    if not re.fullmatch(r"[0-9]{1,4}(,[0-9]{1,4}){0,19}", text, re.ASCII):
        raise typer.BadParameter("write a number, or several with commas: 19,28,40", param_hint="--seats")
    found = sorted({int(number) for number in text.split(",")})
    if found[0] < 1 or found[-1] > _SEATS_MAX:
        raise typer.BadParameter(f"a pod has 1 to {_SEATS_MAX} developers", param_hint="--seats")
    if drawn and len(found) == 1:
        return sorted({max(1, round(found[0] * quarter / 4)) for quarter in (1, 2, 3, 4)})
    return found


def _undrawn(trials: Sequence[Any], found: Sequence[Any], file: Path) -> MoeError | None:
    """Draw it. Why that was not possible, None = it is drawn."""
    from appliance.cli.simulate_plot import pictures
    from appliance.sizing.svg import drawing
    from gateway.files import replace_file

    try:
        replace_file(file, drawing(pictures(trials, found)).encode(), 0o644)
    except (OSError, ValueError) as error:  # a NUL in a path is a ValueError
        why = error.strerror if isinstance(error, OSError) else error
        return MoeError(f"{file}: cannot be written: {why}", "name a file in a folder of yours with --plot")
    return None
