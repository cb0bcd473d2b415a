"""The parts of scripts/bench-residency that need no card."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.bench_residency import workers_named
from tests.bench_residency.comparing import agreement, ratio


def test_tokens_are_compared_place_by_place() -> None:
    one = {"tokens": [[1, 2], [3]], "long_tokens": [[9]]}
    other = {"tokens": [[1, 5], [3]], "long_tokens": [[9]]}
    assert agreement(one, one) == "3 of 3, long prompts 1 of 1"
    assert agreement(one, other) == "2 of 3, long prompts 1 of 1"


def test_a_run_that_failed_is_not_taken_for_one_that_differs() -> None:
    assert agreement({"error": "x"}, {"tokens": [[1]]}) == "not compared: one of them has no tokens"


def test_the_workers_that_runs_name_are_there() -> None:
    source = Path(workers_named.__file__).with_name("workers.py").read_text()
    classes = {node.name for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}
    named = {workers_named.STOCK, workers_named.PLACED, workers_named.UNMAPPED, workers_named.ALL_VRAM}
    assert {name.rpartition(".")[2] for name in named} <= classes
    assert {name.rpartition(".")[0] for name in named} == {"tests.bench_residency.workers"}


def test_pairs_of_boots_are_compared_by_their_ratios_with_an_honest_interval() -> None:
    assert ratio([(80.0, 100.0), (160.0, 200.0)]) == "0.800 (95 %: 0.800 to 0.800, 2 pairs of boots)"
    wide = ratio([(80.0, 100.0), (100.0, 100.0), (64.0, 100.0), (80.0, 100.0), (80.0, 100.0)])
    assert wide == "0.800 (95 %: 0.658 to 0.973, 5 pairs of boots)"
