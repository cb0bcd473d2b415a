"""`moe-appliance simulate`: what an operator reads, what a program gets, and what is refused."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import typer
from typer.testing import CliRunner, Result

from appliance.cli import simulate, simulate_text
from appliance.cli.simulate_days import simulate_all
from appliance.errors import ConfigError, MoeError
from gateway.learning.learned import NAME, Learned
from gateway.learning.paces import Written
from gateway.simulation import cells
from tests.e2e.box import until
from tests.interrupts import heed_interrupts

WANTED_KEYS = {
    "policy", "kv_case", "seats", "at_pace_share", "g30_share", "failed_share", "p95_wait_s", "collapses", "seeds"
}  # fmt: skip
SHORT = ("--hours", "0.5", "--seeds", "2")


@dataclass(frozen=True)
class Paths:
    state_dir: Path


@dataclass(frozen=True)
class FakeBox:
    paths: Paths


def run(*line: str, state_dir: Path = Path("/nowhere")) -> Result:
    app = typer.Typer()
    app.callback()(lambda: None)
    simulate.register(app)
    return CliRunner().invoke(app, ["simulate", *line], obj=FakeBox(Paths(state_dir)), catch_exceptions=False)


def answer(*line: str) -> list[dict[str, Any]]:
    made = run(*line, "--json")
    assert made.exit_code == 0, made.output
    found: list[dict[str, Any]] = json.loads(made.stdout)
    return found


def plain(made: Result) -> str:
    assert made.exit_code == 0, made.output
    return re.sub(" +", " ", made.stdout)


@pytest.fixture(autouse=True)
def one_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Child processes take longer to start than these days to pass."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})


class TestAnswers:
    def test_the_json_has_a_row_for_each_policy_and_number_of_seats(self) -> None:
        rows = answer("--seats", "6,3", "--policy", "appliance", "--policy", "none", *SHORT)
        assert [(row["policy"], row["seats"]) for row in rows] == [
            ("appliance", 3), ("appliance", 6), ("none", 3), ("none", 6)
        ]  # fmt: skip
        assert all(row.keys() >= WANTED_KEYS for row in rows)
        assert {(row["seeds"], row["kv_case"], row["kv_tokens"]) for row in rows} == {(2, "B", 1_360_000)}
        assert all(0 <= row["at_pace_share"] <= 1 for row in rows)

    def test_the_text_says_what_was_simulated_and_assumed(self) -> None:
        said = plain(run("--seats", "5", *SHORT))
        assert said.startswith("With 5 developers on a pod with 1,360,000 tokens of cache, ~")
        assert "19 of 20 turns wait at most ~" in said
        assert "\nfifo-cap-4 5 ~" in said
        assert "Simulated, not measured." in said
        assert "runs of ~10 turns, ~22 min between runs" in said
        assert "A turn that waited for 180 s fails" in said

    def test_the_same_question_has_the_same_answer_also_on_several_cpus(self, monkeypatch: pytest.MonkeyPatch) -> None:
        line = ("--seats", "4", "--policy", "appliance", *SHORT)
        alone = answer(*line)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
        assert answer(*line) == alone

    def test_cache_cap_floor_and_deadline_are_what_is_said(self) -> None:
        (row,) = answer(
            "--seats", "2", "--policy", "none", "--kv-tokens", "500000", "--host-kv", "--no-deadline", *SHORT
        )
        assert (row["kv_case"], row["kv_tokens"], row["host_kv"], row["deadline_s"]) == (None, 500_000, True, None)
        rows = answer("--seats", "2", "--cap", "2", "--kv-case", "A", *SHORT)
        assert [row["policy"] for row in rows] == ["appliance", "recommended", "fifo-cap-2"]
        assert {row["kv_tokens"] for row in rows} == {624_000}
        (row,) = answer("--seats", "2", "--policy", "none", "--floor", "500", *SHORT)
        assert row["at_pace_share"] == 0

    def test_the_table_has_the_rows_of_the_issue(self) -> None:
        rows = answer("--table", "--hours", "0.1", "--seeds", "1")
        assert all(row.keys() >= WANTED_KEYS for row in rows)
        shipped = [(row["kv_case"], row["seats"]) for row in rows if row["policy"] == "appliance" and not row["hogs"]]
        assert shipped == [("B", 19), ("B", 28), ("B", 40), ("A", 28), ("C", 40)]
        hogs = [(row["kv_case"], row["seats"]) for row in rows if row["policy"] == "appliance" and row["hogs"]]
        assert hogs == [("B", 17), ("C", 17)]
        said = plain(run("--table", "--hours", "0.1", "--seeds", "1"))
        assert "\nfifo-cap-4 C 2 17 ~" in said
        assert "A hog: a seat beside them with 6 agents that never pause" in said

    def test_turns_that_fail_seldom_are_not_called_none(self) -> None:
        scenario = cells.Scenario(40, hours=1.0)
        (found,) = simulate_all([cells.Trial("none", replace(scenario, seats=1), "B")], 1)
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            simulate_text.show([cells.Trial("none", scenario, "B")], [replace(found, failed_share=0.0004)])
        assert "<0.1 % of turns fail at their deadline" in said.getvalue()


class TestFiles:
    def test_a_developers_week_changes_the_load(self, tmp_path: Path) -> None:
        week = tmp_path / "week.toml"
        week.write_text("output_tokens = 4000000\nnew_input_tokens = 30000000\nreply_tokens = 800\n")
        said = plain(run("--seats", "3", "--profile", str(week), *SHORT))
        assert f"Developers, by {week}:" in said
        assert "a turn brings 6,000 new tokens and writes ~800" in said
        week.write_text("output_tokens = 40000000\nnew_input_tokens = 30000000\n")
        assert "more than one session can write at the floor" in plain(
            run("--seats", "1", "--profile", str(week), *SHORT)
        )

    def test_a_boxs_own_pace_changes_what_is_kept(self, tmp_path: Path) -> None:
        pace = tmp_path / "pace.json"
        pace.write_text('{"ms_per_token": [30], "prefill": {"a": 0.05}}')
        line = ("--seats", "1", "--policy", "none", *SHORT)
        assert answer(*line, "--pace", str(pace))[0]["at_pace_share"] < answer(*line)[0]["at_pace_share"]
        assert f"The pod, by {pace}: a token of each of 1, 2, 3 .. streams takes 30 ms" in plain(
            run(*line, "--pace", str(pace))
        )

    @pytest.mark.parametrize(
        ("content", "said"),
        [
            (None, "no such file"),
            ("{", "not valid JSON"),
            ("[]", "must be a table"),
            ('{"ms_per_token": [5]}', "prefill"),
            ('{"ms_per_token": [5], "ms_per_token": [6]}', "there twice"),
            (" " * (1 << 20) + "{}", "too large"),
        ],
    )
    def test_a_pace_that_cannot_be_used_is_named(self, tmp_path: Path, content: str | None, said: str) -> None:
        pace = tmp_path / "pace.json"
        if content is not None:
            pace.write_text(content)
        with pytest.raises(ConfigError, match=said) as caught:
            run("--seats", "1", "--pace", str(pace))
        assert str(pace) in str(caught.value)

    def test_a_pace_must_be_a_file(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="not a regular file"):
            run("--seats", "1", "--pace", str(tmp_path))


class TestMeasured:
    LINE = ("--seats", "1", "--policy", "none", "--measured", *SHORT)

    def test_the_engine_that_served_last_gives_the_pace(self, tmp_path: Path) -> None:
        learned = Learned.load(tmp_path)
        for engine, ms, at_s in (("old", 9.0, 1.0), ("new\x1b[2J", 31.0, 2.0)):
            known = learned.of(engine, "m")
            known.at_s = at_s
            for _ in range(5):
                known.paces.note(Written(1.0, 1000 / ms, 400, False), 0.0)
        assert learned.keep() == ""
        said = plain(run(*self.LINE, state_dir=tmp_path))
        assert "The pod, by what this box measured of m on new\\x1b[2J (reading: nothing yet, so the study's)" in said
        assert "streams takes 31," in said

    def test_a_box_that_measured_nothing_says_so(self, tmp_path: Path) -> None:
        with pytest.raises(MoeError, match="has measured nothing") as caught:
            run(*self.LINE, state_dir=tmp_path)
        assert "leave out --measured" in caught.value.remedy
        (tmp_path / NAME).write_text('{"version":2,"engines":[]}')
        with pytest.raises(MoeError, match="has measured nothing"):
            run(*self.LINE, state_dir=tmp_path)

    def test_a_file_that_cannot_be_read_is_left_where_it_is(self, tmp_path: Path) -> None:
        (tmp_path / NAME).write_text("{")
        with pytest.raises(MoeError, match="cannot be used: it is no JSON") as caught:
            run(*self.LINE, state_dir=tmp_path)
        assert caught.value.remedy == f"rm {tmp_path / NAME} (the gateway measures anew); or leave out --measured"
        assert (tmp_path / NAME).read_text() == "{"


class TestPlot:
    def test_one_number_is_drawn_in_quarters_for_each_policy(self, tmp_path: Path) -> None:
        file = tmp_path / "plot.svg"
        rows = answer("--seats", "8", "--plot", str(file), *SHORT)
        assert sorted({row["seats"] for row in rows}) == [2, 4, 6, 8]
        root = ElementTree.fromstring(file.read_text())
        assert root.tag.endswith("svg")
        assert "prefers-color-scheme: dark" in file.read_text()
        said = "".join(root.itertext())
        assert all(policy in said for policy in ("appliance", "recommended", "fifo-cap-4"))
        assert "tok/s or faster" in said
        assert "within 30 s" in said
        assert "wait at most" in said

    def test_a_file_that_cannot_be_written_is_an_error_after_the_figures(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shown: list[int] = []
        monkeypatch.setattr(simulate_text, "show", lambda trials, found: shown.append(len(found)))
        with pytest.raises(MoeError, match="cannot be written"):
            run("--seats", "1", "--plot", str(tmp_path / "none" / "plot.svg"), *SHORT)
        assert shown == [3]

    def test_more_policies_than_dashes_are_refused(self) -> None:
        names = [word for name in ("none", "vtc", "appliance", "fifo-cap-2") for word in ("--policy", name)]
        made = run("--seats", "1", "--plot", "x.svg", *names)
        assert made.exit_code == 2
        assert "3 policies at most" in made.output


class TestInterrupted:
    @pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU has no child processes")
    def test_ctrl_c_ends_all_processes_at_once_and_quietly(self) -> None:
        line = [sys.executable, "-m", "appliance", "simulate", "--seats", "150", "--policy", "appliance"]
        process = subprocess.Popen(
            line,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=heed_interrupts,
        )
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        until("days are simulated", lambda: len(children.read_text().split()) >= 2, 30)
        began = [Path(f"/proc/{pid}") for pid in children.read_text().split()]
        os.killpg(process.pid, signal.SIGINT)
        said, _ = process.communicate(timeout=5)
        assert (process.returncode, said) == (130, "")
        until("nothing is left", lambda: not any(child.exists() for child in began), 5)


class TestRefused:
    @pytest.mark.parametrize(
        ("line", "said"),
        [
            ((), "say how many developers"),
            (("--seats", "ten"), "write a number"),
            (("--seats", "0"), "1 to 200"),
            (("--seats", "201"), "1 to 200"),
            (("--seats", "2", "--policy", "lifo"), "round-robin"),
            (("--seats", "2", "--kv-case", "b"), "one of A, B, C"),
            (("--seats", "2", "--kv-case", "B", "--kv-tokens", "100000"), "take one of"),
            (("--seats", "2", "--kv-tokens", "100"), "20000"),
            (("--table", "--seats", "2"), "--table"),
            (("--table", "--host-kv"), "--table"),
            (("--table", "--measured"), "--table"),
            (("--seats", "2", "--measured", "--pace", "p.json"), "take one of"),
        ],
    )
    def test_wrong_usage_says_what_to_write(self, line: tuple[str, ...], said: str) -> None:
        made = run(*line)
        assert made.exit_code == 2
        assert said in re.sub(r"[\s│]+", " ", made.output)
