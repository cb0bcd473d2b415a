"""`moe-appliance usage`: who used what. Reads the ledger, whether the box runs or not; writes to standard output."""

from __future__ import annotations

import csv
import io
import json
import re
import time
from dataclasses import asdict, fields
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from gateway.ledger.rows import Usage

DAY_S = 86400.0


def register(app: typer.Typer) -> None:
    """Add the verb to the root."""
    app.command()(usage)


def usage(
    ctx: typer.Context,
    seat: Annotated[str | None, typer.Option(metavar="NAME", help="Only this seat.")] = None,
    since: Annotated[
        str, typer.Option(metavar="WHEN", help="A day (2026-11-01, UTC), days back (7d), or month: this one.")
    ] = "month",
    monthly: Annotated[bool, typer.Option("--monthly", help="Each calendar month that there was, UTC.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV, for spreadsheets.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Show what each seat used: requests, tokens, cached share, waits. Of this month, unless --since says otherwise."""
    from gateway.ledger import reading
    from gateway.ledger.writing import NAME

    path: Path = ctx.obj.paths.state_dir / NAME
    if as_csv and as_json:
        raise typer.BadParameter("choose one of --csv and --json")
    now_s = time.time()
    since_s = start_of(since, now_s)
    if monthly:
        rows, total, head = reading.months(path, seat), None, "month"
    else:
        found, total = reading.usage_and_total(path, since_s, now_s, seat)
        rows, head = [("", row) for row in found], ""
    if as_json:
        print(_json(rows, total))
    elif as_csv:
        print(_csv(rows, head), end="")
    else:
        _table(rows, total, head)
        if not monthly:
            _say_kept(path, since_s)


def start_of(text: str, now_s: float) -> float:
    """The first second that --since means. Raises typer.BadParameter."""
    now = datetime.fromtimestamp(now_s, UTC)
    if text == "month":
        return datetime(now.year, now.month, 1, tzinfo=UTC).timestamp()
    if days := re.fullmatch(r"([0-9]{1,5})d", text):
        return now_s - int(days[1]) * DAY_S
    try:
        day = date.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is no day; write 2026-11-01, 7d or month", param_hint="--since") from error
    return datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()


Rows = list[tuple[str, "Usage"]]


def _json(rows: Rows, total: Usage | None) -> str:
    shown = [({"month": month} if month else {}) | asdict(row) for month, row in rows]
    return json.dumps({"usage": shown} | ({"total": asdict(total)} if total is not None else {}))


def _csv(rows: Rows, head: str) -> str:
    from gateway.ledger.rows import Usage

    names = [field.name for field in fields(Usage)]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*([head] if head else []), *names])
    for month, row in rows:
        values = asdict(row)
        writer.writerow([*([month] if head else []), *("" if values[n] is None else values[n] for n in names)])
    return out.getvalue()


def _table(rows: Rows, total: Usage | None, head: str) -> None:
    from rich.console import Console
    from rich.text import Text

    from appliance.cli.terminal import plain, table
    from gateway.status.figures import count, pace, percent, seconds

    if not rows:
        print("no requests in that time")
        return
    shown = table()
    for heading in (*((head,) if head else ()), "seat"):
        shown.add_column(heading)
    figures = ["requests", "served", "refused", "failed", "left", "prompt", "cached", "output"]
    for heading in (*figures, *(() if head else ("wait p50", "p95", "first token", "pace"))):
        shown.add_column(heading, justify="right")
    for month, row in (*rows, *((("", total),) if total is not None and len(rows) > 1 else ())):
        told = (row.requests, row.served, row.refused, row.failed, row.left, row.prompt_tokens)
        cells = [*([month] if head else []), plain(row.seat) or "all", *(str(count(number)) for number in told)]
        cells += [str(percent(row.hit_share)), str(count(row.completion_tokens))]
        if not head:
            waits = (row.wait_p50_s, row.wait_p95_s, row.ttft_p50_s)
            cells += [*(str(seconds(wait)) for wait in waits), str(pace(_rounded(row.tok_per_s_p50)))]
        shown.add_row(*map(Text, cells))
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 200
    console.print(shown)


def _rounded(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 1)


def _say_kept(path: Path, since_s: float) -> None:
    """What is left out, when single requests of that time are folded into months already."""
    from gateway.ledger import reading

    from_s = reading.kept_from_s(path)
    if from_s is not None and since_s < from_s:
        day = datetime.fromtimestamp(from_s, UTC).date()
        print(
            f"single requests are kept from {day} on; of what came before, whole months are in the sums, and "
            "nothing in waits and paces: moe-appliance usage --monthly"
        )
