"""`moe-appliance status`: the operator's page as text. Writes to the console it is given.

Rules:
- It says what the page says, in the same words; it computes nothing.
- What is in a view was written by others (log lines, causes, errors): none of it is read as markup or as a
  terminal's control sequences.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from appliance.cli import status_live, status_prompts
from appliance.cli.bars import bars, legend
from appliance.cli.terminal import TONES, finding, heading, plain, say, table
from gateway.status.live import ResidencyView
from gateway.status.views import FindingRow, LanesView, LaneView, PlanView, SeatRow, StatusView

BAR_CHARS = 20
LOG_LINES = 8
WIDE_COLUMNS = 110
"""From here on there is room for request ids."""


def status(view_json: Mapping[str, Any] | str | bytes | StatusView, as_json: bool, console: Console) -> StatusView:
    """Print a status, as the daemon or the gateway gave it, and return it as a view.

    Raises pydantic.ValidationError (a ValueError) when it is none.
    """
    if isinstance(view_json, StatusView):
        view = view_json
    elif isinstance(view_json, str | bytes):
        view = StatusView.model_validate_json(view_json)
    else:
        view = StatusView.model_validate(view_json)
    if as_json:
        console.out(view.model_dump_json(indent=2), highlight=False)
    else:
        render(view, console)
    return view


def render(view: StatusView, console: Console) -> None:
    """Print the view for people."""
    _verdict(view, console)
    _findings(view.findings, console)
    _engine(view, console)
    status_live.probes(view, console)
    status_live.cards(view, console)
    if view.plan is not None:
        _plan(view.plan, view.residency, console)
    if view.lanes.known:
        _streams(view.lanes, view, console)
        status_prompts.cold(view, console)
        _queue(view, console)
        _seats(view, console)
        status_prompts.cache_and_speed(view, console)
        status_prompts.watch(view, console)
        status_live.history(view, console)
        _numbers(view, console)
        status_live.fifth(view, console)
        status_live.ledger(view, console)
    status_live.events(view, console)


def _verdict(view: StatusView, console: Console) -> None:
    verdict = view.verdict
    say(console, ("● ", TONES[verdict.tone]), (verdict.text, "bold"))
    if verdict.command is not None:
        say(console, (verdict.command, "bold cyan"), indent=4)
    if view.engine.demo_label:
        say(console, (view.engine.demo_label, "dim"), indent=2)
    if view.public_url:
        say(console, (f"{view.public_url}  version {view.version}  up {view.uptime}", "dim"), indent=2)


def _findings(rows: Iterable[FindingRow], console: Console) -> None:
    for row in rows:
        console.print()
        finding(console, row)
        for child in row.folded:
            say(console, "└ ", (f"{child.severity} ", TONES[child.severity]), child.title, indent=5)


def _engine(view: StatusView, console: Console) -> None:
    engine = view.engine
    heading(console, "engine", f"{engine.phase}, {engine.kind or 'no kind'}, {', '.join(engine.models) or 'no model'}")
    if engine.step or engine.progress.value is not None:
        left = f", {engine.left} left" if engine.left.value is not None else ""
        say(console, f"{engine.step or engine.headline} {engine.progress}{left}", indent=2)
    if engine.cause is not None:
        say(console, (engine.cause, TONES["bad"]), indent=2)
        say(console, (engine.remedy or "", "bold cyan"), indent=4)
    if engine.retry_in.value is not None:
        say(console, f"starts again in {engine.retry_in}", indent=2)
    facts = f"floor {engine.floor}  pace when warmed up {engine.warm_pace}  context {engine.context_tokens}"
    lasted = (
        f"ready for {engine.uptime}" if engine.uptime.value is not None else f"in this phase for {engine.phase_for}"
    )
    say(console, (f"{facts}  {lasted}  restarts {engine.restarts}", "dim"), indent=2)
    if engine.phase != "ready":
        for line in engine.log_tail[-LOG_LINES:]:
            say(console, (f"│ {line}", "dim"), indent=2)


def _plan(plan: PlanView, residency: ResidencyView | None, console: Console) -> None:
    heading(console, "plan", f"{plan.name}, {plan.cold} of {plan.experts} experts in host RAM")
    say(console, (plan.verdict, TONES[plan.tone]), indent=2)
    if residency is not None:
        say(console, (residency.sentence, "dim"), indent=2)
    for drawn in (bars(plan.bars, console.width - 2, ascii_only=console.options.ascii_only), legend(plan.bars)):
        console.print(Padding(drawn, (0, 0, 0, 2)))


def _table(*headings: str) -> Table:
    made = table()
    for name in headings:
        left = name in ("", "seat", "state", "step", "request", "pace")
        made.add_column(name, justify="left" if left else "right", no_wrap=True)
    return made


def _indented(console: Console, table: Table) -> None:
    grid = Table.grid(padding=0)
    grid.add_row("  ", table)
    console.print(grid)


def _row(table: Table, *cells: object, style: str = "") -> None:
    table.add_row(*(cell if isinstance(cell, Text) else Text(plain(cell)) for cell in cells), style=style)


def _streams(lanes: LanesView, view: StatusView, console: Console) -> None:
    heading(console, "streams", f"{lanes.busy} of {lanes.streams_max} busy, floor {view.engine.floor}")
    wide = console.width >= WIDE_COLUMNS
    table = _table("", "seat", "step", "pace", "tok/s", "tokens", "age", *(("request",) if wide else ()))
    for lane in lanes.rows:
        if lane.busy:
            rate = Text(str(lane.tok_per_s), style="yellow" if lane.below_floor else "")
            cells = (lane.seat, lane.step, _bar(lane, lanes), rate, lane.tokens, lane.age, lane.request_id)
            _row(table, lane.number, *(cells if wide else cells[:-1]))
        else:
            held = lanes.open and view.cold is not None and view.cold.closed
            _row(table, lane.number, "held free" if held else "free" if lanes.open else "closed", style="dim")
    _indented(console, table)


def _bar(lane: LaneView, lanes: LanesView) -> Text:
    filled = round((lane.share or 0.0) * BAR_CHARS)
    chars = ["█" if at < filled else "·" for at in range(BAR_CHARS)]
    if lanes.floor_share is not None:
        chars[min(BAR_CHARS - 1, round(lanes.floor_share * BAR_CHARS))] = "│"
    return Text("".join(chars), style="yellow" if lane.below_floor else "green")


def _queue(view: StatusView, console: Console) -> None:
    queue = view.queue
    if not queue.rows:
        heading(console, "queue", "nobody waits")
        return
    heading(console, "queue", f"{queue.depth} of {queue.max}, at most {queue.deadline}")
    told = any(row.why for row in queue.rows)
    table = _table("position", "seat", "waited", "its turn in", *(() if told else ("request",)))
    if told:
        table.add_column("why", overflow="fold")
    for row in queue.rows:
        _row(table, row.position, row.seat, row.waited, row.predicted, row.why if told else row.request_id)
    _indented(console, table)


def _seats(view: StatusView, console: Console) -> None:
    if not view.seats:
        heading(console, "seats", "none yet: moe-appliance seats add NAME")
        return
    heading(console, "seats", "since the gateway started")
    wide = console.width >= WIDE_COLUMNS
    more = ("from cache", "wait 95 %", "this month") if wide else ()
    table = _table("seat", "state", "running", "waiting", "served", "refused", "failed", "tokens out", *more)
    for seat in view.seats:
        most = "" if seat.max_streams.value is None else f" of {seat.max_streams}"
        counts = (seat.waiting, seat.served, seat.refused, seat.failed, seat.tokens_out)
        style = "" if seat.state == "active" else "dim"
        state = f"off by {seat.off_by}" if seat.off_by else "over its share" if seat.over_share else seat.state
        cells = (seat.name, state, f"{seat.running}{most}", *counts)
        _row(table, *cells, *((_hit(seat), seat.wait_p95, _month(seat)) if wide else ()), style=style)
    _indented(console, table)


def _hit(seat: SeatRow) -> str:
    return f"{seat.hit_share}{'' if seat.expected_share.value is None else f' of {seat.expected_share}'}"


def _month(seat: SeatRow) -> Text:
    budget = "" if seat.budget_tokens.value is None else f" of {seat.budget_tokens}"
    return Text(f"{seat.month_tokens}{budget}", style="yellow" if seat.over_budget else "")


def _numbers(view: StatusView, console: Console) -> None:
    numbers, gateway = view.numbers, view.gateway
    counts = f"served {numbers.served}  refused {numbers.refused}  failed {numbers.failed}"
    counts += f"  left by the client {numbers.left}"
    heading(console, "gateway", f"{gateway.state} for {gateway.uptime}, restarts {gateway.restarts}")
    rates = f"mean stream {numbers.mean_hold}  streams ended when full {numbers.drain_rate}"
    say(console, (f"{counts}  {rates}", "dim"), indent=2)
    held = f"bodies held {numbers.body_bytes} of {numbers.body_budget_bytes}"
    say(console, (f"agents at work {numbers.runs}  {held}", "dim"), indent=2)
