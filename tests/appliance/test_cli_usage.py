"""`moe-appliance usage`: the ledger's sums for people, spreadsheets and programs, whether a box runs or not."""

from __future__ import annotations

import csv
import io
import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from appliance.cli import usage
from appliance.cli.box import Box
from appliance.errors import MoeError
from gateway.ledger.writing import NAME
from tests.gateway.ledgers import DAY_S, row, running_ledger

NOW_S = datetime(2026, 11, 20, 12, tzinfo=UTC).timestamp()


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Box:
    monkeypatch.setattr(time, "time", lambda: NOW_S)
    (tmp_path / "appliance.toml").write_text("")
    (tmp_path / "state").mkdir()
    return Box(tmp_path / "appliance.toml", {})


def ledger(box: Box, *rows: dict[str, Any], keep_days: int = 0) -> None:
    """A ledger with these requests."""
    with running_ledger(box.paths.state_dir / NAME, now_s=NOW_S) as made:
        for fields in rows:
            made.put(row(**{"at_s": NOW_S - 100} | fields))
    if keep_days:
        from gateway.ledger.file import LedgerFile

        file = LedgerFile(box.paths.state_dir / NAME)
        file.prepare()
        while file.fold(NOW_S - keep_days * DAY_S):
            pass
        file.close()


def run(box: Box, line: str = "") -> Result:
    app = typer.Typer()

    @app.callback()
    def _root(ctx: typer.Context) -> None:
        ctx.obj = box

    usage.register(app)
    return CliRunner().invoke(app, ["usage", *line.split()], catch_exceptions=False)


def test_a_table_with_a_row_for_each_seat_and_the_total(box: Box) -> None:
    ledger(box, {}, {"seat": "ben", "word": "refused"}, {"seat": "ben", "completion_tokens": 1_234_567})
    lines = [line.split() for line in run(box).stdout.splitlines()]
    assert lines[0][:3] == ["seat", "requests", "served"]
    assert [line[:3] for line in lines[1:]] == [["ana", "1", "1"], ["ben", "2", "1"], ["all", "3", "2"]]
    assert "1 234 617" in run(box).stdout
    assert "80 %" in run(box).stdout


def test_one_seat_needs_no_total(box: Box) -> None:
    ledger(box, {}, {"seat": "ben"})
    lines = run(box, "--seat ben").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["seat", "ben"]


@pytest.mark.parametrize(
    ("since", "requests"), [("month", 2), ("7d", 1), ("2026-11-10", 2), ("2026-10-31", 3), ("0d", 0)]
)
def test_since_is_a_day_a_number_of_days_or_the_month(box: Box, since: str, requests: int) -> None:
    ledger(box, {}, {"at_s": NOW_S - 10 * DAY_S}, {"at_s": NOW_S - 20 * DAY_S})
    assert json.loads(run(box, f"--since {since} --json").stdout)["total"]["requests"] == requests


@pytest.mark.parametrize("line", ["--since tomorrow", "--since 5", "--since 2026-13-01", "--csv --json"])
def test_what_cannot_be_meant_is_refused(box: Box, line: str) -> None:
    ledger(box, {})
    assert run(box, line).exit_code == 2


def test_json_and_csv_have_every_figure(box: Box) -> None:
    ledger(box, {}, {"seat": "ben", "cached_tokens": None})
    shown = json.loads(run(box, "--json").stdout)
    [head, *lines] = list(csv.reader(io.StringIO(run(box, "--csv").stdout)))
    for names, usages in zip(lines, shown["usage"], strict=True):
        assert names == ["" if usages[name] is None else str(usages[name]) for name in head]
    assert shown["usage"][1]["hit_share"] is None
    assert shown["total"]["requests"] == 2


def test_months_are_for_ever(box: Box) -> None:
    ledger(box, {}, {"at_s": NOW_S - 40 * DAY_S}, {"at_s": NOW_S - 400 * DAY_S, "seat": "ben"}, keep_days=30)
    shown = json.loads(run(box, "--monthly --json").stdout)["usage"]
    assert [(found["month"], found["seat"]) for found in shown] == [
        ("2025-10", "ben"),
        ("2026-10", "ana"),
        ("2026-11", "ana"),
    ]
    table = run(box, "--monthly --seat ana").stdout.splitlines()
    assert [line.split()[0] for line in table] == ["month", "2026-10", "2026-11"]
    [head, first, *_] = list(csv.reader(io.StringIO(run(box, "--monthly --csv").stdout)))
    assert dict(zip(head, first, strict=True))["month"] == "2025-10"
    assert "2026-11-20 on" in run(box, "--since 2026-01-01").stdout, "what is folded is there by whole months"
    assert "kept from" not in run(box, "--since 0d").stdout


def test_a_day_that_is_far_ahead_has_no_requests(box: Box) -> None:
    ledger(box, {})
    assert run(box, "--since 9999-12-31").stdout == "no requests in that time\n"
    assert json.loads(run(box, "--json --since 0001-01-01").stdout)["total"]["requests"] == 1


def test_this_month_is_whole_also_when_days_of_it_are_folded(box: Box) -> None:
    days = [{"at_s": NOW_S - 1 - day * DAY_S} for day in range(15)]
    ledger(box, *days, keep_days=2)
    shown = json.loads(run(box, "--json").stdout)
    assert (shown["total"]["requests"], shown["total"]["completion_tokens"]) == (15, 15 * 50)
    assert len(run(box, "--csv").stdout.splitlines()) == 2
    [month] = json.loads(run(box, "--monthly --json").stdout)["usage"]
    assert month["requests"] == 15, "every way of asking says the same"
    assert "kept from 2026-11-19 on" in run(box).stdout, "the clock of the test is at noon"


def test_without_a_ledger_it_says_so(box: Box) -> None:
    with pytest.raises(MoeError, match="there is no ledger"):
        run(box)


def test_an_empty_time_is_said(box: Box) -> None:
    ledger(box, {})
    assert run(box, "--since 0d").stdout == "no requests in that time\n"


def test_a_seat_that_a_file_made_up_does_not_move_the_cursor(box: Box) -> None:
    ledger(box, {"seat": "\x1b[2J[bold]x"})
    assert "\x1b" not in run(box).stdout
    assert "[bold]x" in run(box).stdout
