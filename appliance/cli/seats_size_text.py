"""Shows a sizing on a terminal: a verdict, seats, pods and cost, and what it all rests on. Touches the terminal.

Rule: whatever is an estimate has a `~`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from rich.console import Console

from appliance.cli.terminal import say, table
from appliance.sizing.chart import lines
from appliance.sizing.figures import figures
from appliance.sizing.sizing import Column, Sizing, Team
from appliance.units import count
from gateway.sizing.capacity import PROMISE, RELAXED, STUDY_PREFILL_TOK_PER_S, STUDY_TOK_PER_S, break_even, chance_above

_PIPED_COLUMNS = 160


def _whole(share: float) -> str:
    return f"{share * 100:.0f} %"


_PROMISED, _RELAXED = _whole(PROMISE), _whole(RELAXED)


def show(answer: Sizing, read: str, *, drawn: bool) -> None:
    """Print it. `read`: what was read for the profile, "" = nothing to say; `drawn`: with the pictures."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _PIPED_COLUMNS
    _verdict(console, answer)
    say(console)
    _seats(console, answer)
    say(console)
    _pods(console, answer)
    if answer.activity is not None:
        say(console)
        _measured(console, answer)
    say(console)
    _rests_on(console, answer, read)
    if drawn:
        for figure in figures(answer):
            print("", *lines(figure, console.width), sep="\n", file=sys.stdout)


def _verdict(console: Console, answer: Sizing) -> None:
    seats, streams = answer.seats, answer.pace.streams
    above = chance_above(seats, answer.columns[0].duty_share, streams)
    said = f"One pod has ~{count(seats, 'seat')}, by {answer.profile.source}."
    if answer.activity is not None:
        active = answer.activity.seats
        said += f" {count(active, 'seat')} of this box {_are(active)} active"
        said += f", {active - seats:,} more than it can promise its pace to." if active > seats else "."
    say(console, (said, "bold"))
    say(
        console,
        f"With so many, more than {streams} streams are wanted {_percent(above)} of the time; who comes then, waits. "
        f"By volume it would be ~{answer.seats_by_volume:,}, or ~{answer.seats_by_volume_half:,} at half use: what "
        "runs out is streams, not tokens.",
    )


def _seats(console: Console, answer: Sizing) -> None:
    own, half = answer.columns
    streams = answer.pace.streams
    made = table()
    made.add_column("one pod")
    made.add_column(f"{own.hours_a_day:.3g} h a day", justify="right")
    made.add_column(f"same work in {half.hours_a_day:.3g} h", justify="right")
    rows: list[tuple[str, Callable[[Column], str]]] = [
        ("a developer has a stream, of the time", lambda column: _percent(column.duty_share)),
        (f"seats, more than {streams} wanted {_PROMISED} of the time", lambda c: _about(c.seats_1pct)),
        (f"seats, {_RELAXED} of the time", lambda column: _about(column.seats_5pct)),
        (f"seats, {_PROMISED}, a team with shared deadlines", lambda column: _about(column.cautious_1pct)),
        (f"seats, {_RELAXED}, a team with shared deadlines", lambda column: _about(column.cautious_5pct)),
        (f"turns that wait, with the seats of {_PROMISED}", lambda column: _waits(column, 0)),
        (f"turns that wait, with the seats of {_RELAXED}", lambda column: _waits(column, 1)),
    ]
    for label, cell in rows:
        made.add_row(label, cell(own), cell(half))
    console.print(made)


def _pods(console: Console, answer: Sizing) -> None:
    made = table()
    made.add_column("developers", justify="right")
    for heading in ("pods", "if nobody moves", "pods, EUR a month", "subscriptions", "difference"):
        made.add_column(heading, justify="right")
    for team in answer.teams:
        made.add_row(f"{team.developers:,}", *_team(team))
    console.print(made)
    even = break_even(answer.prices.pod_eur, answer.prices.seat_eur)
    say(
        console,
        (
            f"One pod costs as much as {even:.1f} subscriptions. Rent only: no engineering, no on-call, no storage.",
            "dim",
        ),
    )
    say(
        console,
        ("Fewer pods are enough when any developer may be moved to any pod, each time to a cold cache.", "dim"),
    )


def _team(team: Team) -> tuple[str, ...]:
    made = team.cost
    more, share = made.more_eur, abs(made.saved_share)
    difference = f"{'+' if more > 0 else '-'}{abs(more):,.0f} ({_whole(share)} {'more' if more > 0 else 'less'})"
    return (
        f"~{made.pods:,}",
        f"~{team.pods_apart:,}",
        f"~{made.pods_eur:,.0f}",
        f"{made.seats_eur:,.0f}",
        "0" if more == 0 else f"~{difference}",
    )


def _measured(console: Console, answer: Sizing) -> None:
    found = answer.activity
    assert found is not None
    say(
        console,
        ("measured ", "bold"),
        f"on {count(found.days, 'day')} with {found.hours:,.0f} working hours: {count(found.seats, 'active seat')}, "
        f"{count(found.requests, 'request')}.",
    )
    say(
        console,
        f"More than {found.streams} streams were wanted {_percent(found.above_share)} of that time; the promise is "
        f"{_PROMISED}. {_percent(found.waited_share)} of turns waited over a second.",
        indent=2,
    )
    say(
        console,
        f"A seat wanted a stream {_percent(found.duty_share)} of that time; its tokens at "
        f"{answer.pace.floor_tok_per_s:g} tok/s would take {_percent(answer.floor_duty_share)}. Seats are sized by the "
        "larger one: on a box with room replies are faster than the floor.",
        indent=2,
    )


def _rests_on(console: Console, answer: Sizing, read: str) -> None:
    week, pace = answer.profile, answer.pace
    sessions = f", {week.sessions:,.3g} sessions" if week.sessions is not None else ""
    say(
        console,
        (f"Rests on {week.source}: ~{week.output_tokens:,.0f} output and ~{week.new_input_tokens:,.0f} ", "dim"),
        (f"new input tokens a week on {week.active_days:.3g} days{sessions}. {read}".rstrip(), "dim"),
    )
    rates = f"~{pace.tok_per_s:g} tok/s together, reads ~{pace.prefill_tok_per_s:,.0f} tok/s"
    if (pace.tok_per_s, pace.prefill_tok_per_s) == (STUDY_TOK_PER_S, STUDY_PREFILL_TOK_PER_S):
        rates += ", both as the study's pod; --pace and --prefill say another's"
    say(console, (f"A pod: {pace.streams} streams at {pace.floor_tok_per_s:g} tok/s, {rates}.", "dim"))


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def _about(number: int | None) -> str:
    return "-" if number is None else f"~{number:,}"


def _percent(share: float) -> str:
    if 0 < share < 0.0005:
        return "<0.1 %"
    return f"~{share * 100:.1f} %"


def _waits(column: Column, which: int) -> str:
    if column.waits is None:
        return "-"
    found = column.waits[which]
    return f"{_percent(found.chance)}, 1 in 100 over ~{found.p99_s:.1f} s"
