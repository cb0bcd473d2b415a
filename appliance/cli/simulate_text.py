"""Shows a simulation on a terminal, and as JSON. Touches the terminal.

Rule: every figure is simulated and has a `~`; what was assumed stands below.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console

from appliance.cli.terminal import say, table
from appliance.units import count
from gateway.simulation.cells import AGENTS_OF_HOG, APPLIANCE, Trial
from gateway.simulation.kv import SHARED_TOKENS
from gateway.simulation.metrics import COLLAPSED_SHARE, SOON_S, Figures

_PIPED_COLUMNS = 160
_DIGITS = 5


def rows(trials: Sequence[Trial], found: Sequence[Figures]) -> list[dict[str, Any]]:
    """What a program gets, a row for each run: shares are fractions."""
    made = []
    for trial, figures in zip(trials, found, strict=True):
        scenario = trial.scenario
        row: dict[str, Any] = {"policy": trial.policy, "kv_case": trial.kv_case, "seats": scenario.seats}
        row |= {"hogs": scenario.hogs, "kv_tokens": scenario.kv.tokens, "host_kv": scenario.kv.host}
        row |= {"hours": scenario.hours, "deadline_s": scenario.deadline_s}
        row |= {name: round(value, _DIGITS) for name, value in asdict(figures).items()}
        made.append(row)
    return made


def show_json(trials: Sequence[Trial], found: Sequence[Figures]) -> None:
    """Print the rows."""
    print(json.dumps(rows(trials, found), indent=2))


def show(trials: Sequence[Trial], found: Sequence[Figures]) -> None:
    """Print a verdict, the figures, and what they rest on. `trials`: at least one, of one pod and its developers."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _PIPED_COLUMNS
    most = max(
        (at for at, trial in enumerate(trials) if trial.policy == trials[0].policy),
        key=lambda at: trials[at].scenario.seats,
    )
    _verdict(console, trials[most], found[most])
    say(console)
    _figures(console, trials, found)
    say(console)
    _assumed(console, trials)


def _verdict(console: Console, trial: Trial, found: Figures) -> None:
    scenario = trial.scenario
    pod = f" on a pod with {scenario.kv.tokens:,} tokens of cache"
    said = f"With {count(scenario.seats, 'developer')}{pod}, {_percent(found.at_pace_share)} of tokens are written at "
    said += f"{scenario.limits.floor_tok_per_s:g} tok/s or faster, and {_percent(found.g30_share)} in turns that also "
    said += f"begin within {SOON_S:g} s."
    fails = f"{_percent(found.failed_share)} of turns fail at their deadline" if found.failed_share else "no turn fails"
    say(console, (said, "bold"))
    say(
        console,
        f"19 of 20 turns wait at most ~{found.p95_wait_s:.0f} s before their own prompt is read; {fails}. That is with "
        f"the policy {trial.policy!r}, as simulated.",
    )


def _figures(console: Console, trials: Sequence[Trial], found: Sequence[Figures]) -> None:
    cases = len({(trial.kv_case, trial.scenario.kv, trial.scenario.hogs) for trial in trials}) > 1
    made = table()
    made.add_column("policy", no_wrap=True)
    for heading in (*(("kv", "hogs") if cases else ()), "seats", "at pace", "within 30 s", "failed", "p95 wait"):
        made.add_column(heading, justify="right", no_wrap=True)
    for heading in ("warm, p95", "cold, p95", "worst seat", "collapsed"):
        made.add_column(heading, justify="right")
    for trial, one in zip(trials, found, strict=True):
        scenario = trial.scenario
        where = (trial.kv_case or f"{scenario.kv.tokens:,}", str(scenario.hogs)) if cases else ()
        made.add_row(
            trial.policy,
            *where,
            f"{scenario.seats:,}",
            _share(one.at_pace_share, one.at_pace_2se),
            _share(one.g30_share, one.g30_2se),
            _percent(one.failed_share),
            _seconds(one.p95_wait_s),
            _seconds(one.p95_first_token_warm_s),
            _seconds(one.p95_first_token_cold_s),
            _percent(one.worst_seat_share),
            f"{one.collapses} of {one.seeds}",
        )
    console.print(made)
    for line in (
        f"at pace: of all output tokens, those of replies that kept the floor; within {SOON_S:g} s: and whose first "
        "token came so soon; ± two standard errors.",
        "p95 wait: all before the first token but reading the own prompt; warm, cold: until the first token; "
        f"collapsed: days with less than {COLLAPSED_SHARE * 100:.0f} % at pace.",
    ):
        say(console, (line, "dim"))


def _assumed(console: Console, trials: Sequence[Trial]) -> None:
    scenario = trials[0].scenario
    pace, works, kv = scenario.pace, scenario.developer, scenario.kv
    say(console, ("Simulated, not measured. ", "bold"), f"{_days(trials)} What was assumed:")
    ms = ", ".join(f"{value:g}" for value in pace.ms_per_token[:8])
    lines = [
        f"The pod, by {pace.source}: a token of each of 1, 2, 3 .. streams takes {ms} ms; reading 100,000 tokens takes "
        f"{pace.prefill_s(100_000, 100_000):.1f} s, and replies meanwhile keep {pace.reading_share * 100:g} % of their "
        "pace.",
        f"Developers, by {works.source}: one session each; runs of ~{works.turns:g} turns, ~{works.think_s / 60:.0f} "
        f"min between runs; a turn brings {works.input_tokens:,} new tokens and writes ~{works.reply_tokens:g}; "
        f"contexts of {works.context_tokens:,} to {works.compact_at_tokens:,} tokens, {SHARED_TOKENS:,} of them the "
        "same for all.",
    ]
    if len({trial.scenario.kv for trial in trials}) == 1:
        host = ", and has a copy of every session in host RAM" if kv.host else ""
        lines.append(f"The engine caches {kv.tokens:,} tokens{host}.")
    if any(trial.scenario.hogs for trial in trials):
        lines.append(f"A hog: a seat beside them with {AGENTS_OF_HOG} agents that never pause. Figures are without it.")
    if scenario.deadline_s is not None:
        lines.append(
            f"A turn that waited for {scenario.deadline_s:g} s fails, counts as missed, and is tried again after 30 s."
        )
    if any(trial.policy == APPLIANCE for trial in trials):
        lines.append(f"{APPLIANCE} is the code of this box, with {count(scenario.limits.streams, 'stream')}.")
    for line in lines:
        say(console, ("- ", "dim"), (line, "dim"))
    if works.think_s == 0:
        say(console, ("Such a week is more than one session can write at the floor: it never pauses.", "yellow"))


def _days(trials: Sequence[Trial]) -> str:
    hours = trials[0].scenario.hours
    return f"Days of {hours:g} h, the same ones for every policy."


def _percent(share: float) -> str:
    return "<0.1 %" if 0 < share < 0.0005 else f"~{share * 100:.1f} %"


def _share(share: float, error: float) -> str:
    return f"~{share * 100:.1f} ±{error * 100:.1f} %"


def _seconds(seconds: float) -> str:
    return f"~{seconds:.0f} s"
