"""The parts of scripts/bench-residency that need no card."""

from __future__ import annotations

import ast
import sys
import time
from pathlib import Path

import pytest

from tests.bench_residency import running, workers_named
from tests.bench_residency.comparing import agreement, ratio, settled


def _answers(*answers: list[dict[str, float]]) -> dict[str, list[list[dict[str, float]]]]:
    return {"tokens": list(answers), "long_tokens": [[{"9": -0.5}]]}


def test_tokens_are_compared_place_by_place() -> None:
    one = _answers([{"1": -0.1, "2": -2.0}, {"5": -0.7, "6": -0.75}], [{"3": -0.2}])
    other = _answers([{"1": -0.2, "2": -1.9}, {"6": -0.7, "5": -0.72}], [{"3": -0.2}])
    assert agreement(one, one).startswith("3 of 3 (logprobs apart by 0.0000, at most 0.0000), long prompts 1 of 1 ")
    assert agreement(one, other).startswith(
        "2 of 3 (logprobs apart by 0.0500, at most 0.1000; 1 of 2 answers part, at tokens apart by at most 0.0200), "
    )


def test_behind_the_first_difference_logprobs_say_nothing() -> None:
    one = _answers([{"1": -0.1}, {"7": -0.1}])
    other = _answers([{"2": -0.1, "1": -0.4}, {"7": -9.0}])
    said = "1 of 2 (no token equal; 1 of 1 answers part, at tokens apart by at most 0.3000), "
    assert agreement(one, other).startswith(said)


def test_a_token_that_the_other_never_thought_of_is_infinitely_far() -> None:
    assert "apart by at most inf" in agreement(_answers([{"1": -0.1}]), _answers([{"2": -0.1, "3": -2.0}]))


def test_a_run_that_failed_is_not_taken_for_one_that_differs() -> None:
    assert agreement({"error": "x"}, _answers()) == "not compared: one of them has no tokens"


def test_the_workers_that_runs_name_are_there() -> None:
    source = Path(workers_named.__file__).with_name("workers.py").read_text()
    classes = {node.name for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}
    named = {workers_named.STOCK, workers_named.PLACED, workers_named.UNMAPPED, workers_named.ALL_VRAM}
    assert {name.rpartition(".")[2] for name in named} <= classes
    assert {name.rpartition(".")[0] for name in named} == {"tests.bench_residency.workers"}


def test_traffic_is_followed_once_ten_seconds_are_as_good_as_the_best_placement() -> None:
    shares = [0.5] * 4 + [0.11] * 8
    rows: list[dict[str, float]] = [{"at": 20.0, "visits": 0, "cold_visits": 0}]
    for share in shares:
        last = rows[-1]
        rows.append(
            {"at": last["at"] + 2, "visits": last["visits"] + 100, "cold_visits": last["cold_visits"] + 100 * share}
        )
    assert settled(rows, best=0.1) == 8.0
    assert settled(rows, best=0.09) is None


def test_pairs_of_boots_are_compared_by_their_ratios_with_an_honest_interval() -> None:
    assert ratio([(80.0, 100.0), (160.0, 200.0)]) == "0.800 (95 %: 0.800 to 0.800, 2 pairs of boots)"
    wide = ratio([(80.0, 100.0), (100.0, 100.0), (64.0, 100.0), (80.0, 100.0), (80.0, 100.0)])
    assert wide == "0.800 (95 %: 0.658 to 0.973, 5 pairs of boots)"


def test_a_run_that_hangs_is_cut_off_and_never_taken_for_one_that_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = tmp_path / "hangs"
    hangs.write_text("#!/bin/sh\necho began\nexec sleep 60\n")
    hangs.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(hangs))
    monkeypatch.setattr(running, "RUN_S", 0.3)
    benched = running.Bench(tmp_path, tmp_path, time.monotonic() + 60)
    benched.run(running.Run("x", {}, [], dies=True))
    assert benched.found["x"] == {"error": "cut off: began\n"}


def test_a_run_whose_files_are_not_there_fails_alone(tmp_path: Path) -> None:
    benched = running.Bench(tmp_path, tmp_path, time.monotonic() + 60)
    benched.run(running.Run("x", {}, [], prepare=(tmp_path / "counts.json").read_text))
    assert benched.found["x"]["error"].startswith("FileNotFoundError: ")
