"""`moe-appliance seats size`: what an operator reads, what a program gets, and what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import httpx
import pytest
import structlog
import typer
from typer.testing import CliRunner, Result

from appliance.cli import seats
from appliance.config import Config
from appliance.errors import ConfigError, MoeError, NotRunning
from gateway.ledger import reading
from gateway.ledger.rows import Row, Served, Usage
from gateway.ledger.writing import NAME, Ledger
from gateway.logs import Log
from gateway.state import BoxState, EngineProfile, EngineState
from tests.gateway.ledgers import row

DAY = 86_400


@dataclass
class FakeBox:
    """What the verb asks of the root's object."""

    folder: Path
    environ: dict[str, str] = field(default_factory=dict)
    state: BoxState | None = None
    config: Config = field(default_factory=Config)

    @property
    def paths(self) -> SimpleNamespace:
        return SimpleNamespace(state_dir=self.folder)

    def daemon(self, method: str, path: str) -> httpx.Response:
        if self.state is None:
            raise NotRunning("no appliance answers", "start it")
        return httpx.Response(200, text=self.state.model_dump_json())


def local_midnight_s() -> float:
    """The one that was last: working days are local."""
    return datetime.now().astimezone().replace(hour=0, minute=0, second=0, microsecond=0).timestamp()


def turn_of(at_s: float, seat: str) -> Row:
    """20 s, of which it waited 2; 400 tokens written, 500 read anew."""
    times = {"queue_s": 2.0, "ttft_s": 3.0, "duration_s": 20.0}
    return row(at_s=at_s, seat=seat, prompt_tokens=3000, cached_tokens=2500, completion_tokens=400, **times)


@pytest.fixture
def box(tmp_path: Path) -> FakeBox:
    return FakeBox(tmp_path)


def run(box: FakeBox, *line: str) -> Result:
    app = typer.Typer()

    @app.callback()
    def _root(ctx: typer.Context) -> None:
        ctx.obj = box

    app.add_typer(seats.app, name="seats")
    return CliRunner().invoke(app, ["seats", "size", *line], catch_exceptions=False)


def answer(box: FakeBox, *line: str) -> dict[str, Any]:
    made = run(box, *line, "--json")
    assert made.exit_code == 0, made.output
    found: dict[str, Any] = json.loads(made.stdout)
    return found


def plain(made: Result) -> str:
    assert made.exit_code == 0, made.output
    return re.sub(" +", " ", made.stdout)


class TestStudy:
    def test_the_json_has_the_keys_and_figures_of_the_study(self, box: FakeBox) -> None:
        found = answer(box)
        assert round(found["duty_share"], 3) == 0.071
        assert (found["seats_1pct"], found["seats_5pct"]) == (19, 28)
        assert (found["seats_by_volume"], found["seats_by_volume_half"]) == (262, 131)
        assert found["pods"] == {"20": 2, "100": 4, "250": 7}

    def test_the_text_says_it_at_a_glance(self, box: FakeBox) -> None:
        said = plain(run(box))
        assert said.startswith("One pod has ~19 seats, by the study's developer.\n")
        assert "more than 4 streams are wanted ~0.9 % of the time" in said
        assert "By volume it would be ~262, or ~131 at half use" in said
        assert "one pod 8 h a day same work in 4 h\n" in said
        assert "a developer has a stream, of the time ~7.1 % ~14.2 %\n" in said
        assert "seats, more than 4 wanted 1 % of the time ~19 ~10\n" in said
        assert "seats, 5 % of the time ~28 ~15\n" in said
        assert "20 ~2 ~2 ~5,447 3,600 ~+1,847 (51 % more)\n" in said
        assert "100 ~4 ~6 ~10,893 18,000 ~-7,107 (39 % less)\n" in said
        assert "250 ~7 ~14 ~19,063 45,000 ~-25,937 (58 % less)\n" in said
        assert "One pod costs as much as 15.1 subscriptions." in said

    def test_hours_streams_floor_pace_and_prices_change_it(self, box: FakeBox) -> None:
        assert answer(box, "--hours", "4")["seats_1pct"] == 10
        assert answer(box, "--streams", "6")["seats_1pct"] == 34
        assert answer(box, "--floor", "20")["duty_share"] > 0.13
        assert answer(box, "--pace", "336")["seats_by_volume"] == 524
        assert answer(box, "--prefill", "698.3")["duty_share"] == pytest.approx(0.101, abs=1e-3)
        found = answer(box, "--price-pod", "1000", "--price-seat", "100", "--developers", "30")
        assert found["cost"]["break_even_seats"] == 10
        assert found["cost"]["teams"][0]["more_eur"] == 2000 - 3000

    def test_teams_are_sorted_and_once_each(self, box: FakeBox) -> None:
        assert list(answer(box, "--developers", "50,7,50")["pods"]) == ["7", "50"]

    @pytest.mark.parametrize("given", ["", "0", "10001", "-5", "ten", "1,,2", "5.5", "9999999"])
    def test_teams_that_are_no_numbers_are_refused(self, box: FakeBox, given: str) -> None:
        made = run(box, "--developers", given)
        assert made.exit_code == 2
        assert "--developers" in made.output


class TestProfile:
    def test_a_file_of_daily_tokens_is_a_profile(self, box: FakeBox) -> None:
        file = box.folder / "days.csv"
        rows = [f"2027-01-0{day},77620,679179,18000000" for day in range(4, 9)]
        file.write_text("\n".join(["date,output,input,cached", *rows]))
        found = answer(box, "--profile", str(file))
        assert (found["seats_1pct"], found["seats_by_volume"]) == (19, 262)
        assert "by " in plain(run(box, "--profile", str(file)))

    def test_a_name_from_a_file_system_is_escaped(self, box: FakeBox) -> None:
        file = box.folder / "\x1b[31m[red].json"
        file.write_text('{"output_tokens": 388103, "new_input_tokens": 3395897}')
        said = run(box, "--profile", str(file)).stdout
        assert "\x1b" not in said
        assert "[red].json" in said

    def test_a_bad_file_is_an_error_with_its_name_and_key(self, box: FakeBox) -> None:
        file = box.folder / "week.toml"
        file.write_text("output_tokens = 5\n")
        with pytest.raises(ConfigError, match=r"week\.toml: new_input_tokens is missing"):
            run(box, "--profile", str(file))

    def test_two_sources_are_refused(self, box: FakeBox) -> None:
        assert run(box, "--profile", "x.csv", "--from-ledger").exit_code == 2
        assert run(box, "--claude-code", "--from-ledger").exit_code == 2

    def test_a_folder_without_claude_code_is_refused(self, box: FakeBox) -> None:
        assert run(box, "somewhere").exit_code == 2


class TestClaudeCode:
    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        usage = {"output_tokens": 50_000, "input_tokens": 400_000}
        lines = [
            json.dumps({"timestamp": f"2027-01-0{day}T12:00:00Z", "message": {"id": f"m{day}", "usage": usage}})
            for day in range(4, 9)
        ]
        (folder / "a.jsonl").write_text("\n".join([*lines, '{"usage"']))

    @pytest.mark.parametrize("named", [True, False])
    def test_the_folder_is_the_named_one_or_claude_codes_own(self, box: FakeBox, named: bool) -> None:
        folder = box.folder / "projects"
        self.write(folder)
        box.environ["CLAUDE_CONFIG_DIR"] = str(box.folder)
        said = plain(run(box, "--claude-code", *([str(folder)] if named else [])))
        assert "by the use of Claude Code in" in said
        assert "5 answers in 1 file, of which the last 28 days count" in said
        assert "1 damaged line and 0 unreadable files were left out" in said


class TestLedger:
    """Ten days of four seats, each with a turn of 20 s in every two minutes of four hours."""

    @pytest.fixture
    def kept(self, monkeypatch: pytest.MonkeyPatch) -> list[Served]:
        midnight = local_midnight_s()
        rows: list[Served] = []

        def intervals(path: Path, since_s: float, until_s: float) -> Iterator[Served]:
            assert path.name == "ledger.db"
            yield from (row for row in rows if since_s <= row.arrived_s < until_s)

        def usage(path: Path, since_s: float, until_s: float) -> list[Usage]:
            names = sorted({row.seat for row in rows})
            each = len(rows) // max(1, len(names))
            return [
                Usage(name, requests=each, served=each, completion_tokens=400 * each, prompt_tokens=3500 * each)
                for name in names
            ]

        def hours(path: Path, since_s: float, until_s: float) -> tuple[int, ...]:
            found = [int(row.arrived_s // 3600 % 24) for row in rows]
            return tuple(found.count(hour) for hour in range(24))

        monkeypatch.setattr(reading, "intervals", intervals)
        monkeypatch.setattr(reading, "usage", usage)
        monkeypatch.setattr(reading, "hours", hours)
        for day in range(10, 0, -1):
            for turn in range(120):
                at = midnight - day * DAY + 9 * 3600 + turn * 120
                rows.extend(Served(at + n * 25, 0.0, at + n * 25 + 20, f"seat{n}") for n in range(4))
        return rows

    def test_the_teams_own_activity_is_used_and_shown(self, box: FakeBox, kept: list[Served]) -> None:
        found = answer(box, "--from-ledger")
        assert found["activity"]["seats"] == 4
        assert found["activity"]["requests"] == 4800
        # 120 turns of 20 s in a working day of 8 h
        assert found["duty_share"] == pytest.approx(120 * 20 / (8 * 3600), rel=0.15)
        said = plain(run(box, "--from-ledger"))
        assert said.startswith("One pod has ~")
        assert "by an active seat of this box. 4 seats of this box are active." in said
        assert "measured on 1" in said
        assert "More than 4 streams were wanted ~0.0 % of that time; the promise is 1 %." in said

    def test_more_active_seats_than_the_box_has_are_said_first(self, box: FakeBox, kept: list[Served]) -> None:
        said = plain(run(box, "--from-ledger", "--streams", "1")).partition("\n")[0]
        assert said.endswith("4 seats of this box are active, 2 more than it can promise its pace to.")

    def test_the_running_box_says_its_streams_and_its_floor(self, box: FakeBox, kept: list[Served]) -> None:
        profile = EngineProfile(name="own", floor_tok_per_s=25, cold_tokens=1, streams=6)
        box.state = BoxState(engine=EngineState(profile=profile))
        found = answer(box, "--from-ledger")["pace"]
        assert (found["streams"], found["floor_tok_per_s"]) == (6, 25)
        assert answer(box, "--from-ledger", "--streams", "2")["pace"]["streams"] == 2

    def test_too_little_is_refused_with_what_is_enough(self, box: FakeBox, kept: list[Served]) -> None:
        del kept[100:]
        with pytest.raises(MoeError, match=r"100 requests on 1 day with.*enough are 500 requests on 5 days"):
            run(box, "--from-ledger")
        kept.clear()
        with pytest.raises(MoeError, match="nothing in the last 14 days"):
            run(box, "--from-ledger")

    def test_hours_are_measured_and_not_given(self, box: FakeBox, kept: list[Served]) -> None:
        assert run(box, "--from-ledger", "--hours", "6").exit_code == 2

    def test_a_real_ledger_is_read(self, box: FakeBox) -> None:
        # given six days with a hundred turns of two seats, in a ledger as the gateway writes it
        log: Log = structlog.get_logger()
        ledger = Ledger(box.folder / NAME, 0, log)
        midnight = local_midnight_s()
        for day in range(6, 0, -1):
            for turn in range(100):
                ledger.put(turn_of(midnight - day * DAY + 9 * 3600 + turn * 200, f"seat{turn % 2}"))
        ledger.start()
        ledger.close(30)
        # when seats are sized from it
        found = answer(box, "--from-ledger")
        # then a seat had half of the turns: 18 s of each, since the wait of 2 s is none of the engine's
        assert (found["activity"]["requests"], found["activity"]["seats"]) == (600, 2)
        assert found["activity"]["waited_share"] == 1
        assert found["activity"]["duty_share"] == pytest.approx(50 * 18 / (8 * 3600), rel=0.2)
        assert found["profile"]["output_tokens"] == pytest.approx(300 * 400, rel=0.01)
        assert found["profile"]["new_input_tokens"] == pytest.approx(300 * 500, rel=0.01)

    def test_a_box_without_a_ledger_says_so(self, box: FakeBox) -> None:
        with pytest.raises(MoeError, match="ledger"):
            run(box, "--from-ledger")


class TestPlot:
    def test_a_file_gets_the_pictures(self, box: FakeBox) -> None:
        file = box.folder / "size.svg"
        assert run(box, "--plot", str(file)).exit_code == 0
        assert ElementTree.parse(file).getroot().tag.endswith("svg")

    def test_a_dash_draws_them_into_the_terminal(self, box: FakeBox) -> None:
        said = plain(run(box, "--plot", "-"))
        assert "EUR a month: pods against subscriptions\n" in said
        assert "Chance that more than 4 streams are wanted at once\n" in said
        assert not (box.folder / "-").exists()

    def test_a_file_that_cannot_be_written_is_an_error(self, box: FakeBox) -> None:
        with pytest.raises(MoeError, match=r"size\.svg: cannot be written: No such file"):
            run(box, "--plot", str(box.folder / "none" / "size.svg"))
