"""One start in virtual time: its steps, its hangs, the lines that must come."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from appliance.engine.adapter import VLLM_STEPS, Required, Step, read_step
from appliance.engine.boot_times import Boot
from appliance.engine.stall import Usage
from appliance.engine.start_watch import WARMING, StartWatch, used
from gateway.state import Cause

PLUGIN = Required(re.compile("exl3 plugin loaded"), "the plugin", Cause(id="engine.plugin", title="P.", remedy="p"))
LOADING = "Loading safetensors checkpoint shards:  {}% Completed | 1/2"
LAST: Boot = (("", 30.0), ("loading the weights", 300.0), (WARMING, 30.0))


def start(last: Boot = LAST, *, required: tuple[Required, ...] = (), cards: bool = True) -> StartWatch:
    return StartWatch(0.0, lambda line: read_step(VLLM_STEPS, line), required, last, {0: 0, 1: 0} if cards else {})


def quiet(watch: StartWatch, from_s: int, until_s: int, *, cores: float = 2.0, held: int = 1 << 29) -> Cause | None:
    """Looks of two seconds; the first cause."""
    for now_s in range(from_s + 2, until_s + 1, 2):
        cause = watch.look(Usage(cores * now_s), {0: held, 1: held}, float(now_s))
        if cause is not None:
            return cause
    return None


def test_cards_that_wait_for_each_other_are_recognised_two_minutes_after_the_last_line() -> None:
    watch = start()
    assert quiet(watch, 0, 10) is None
    watch.line("(EngineCore pid=9) INFO [parallel_state.py:1615] world_size=2 rank=0 local_rank=0 backend=nccl", 10.0)
    assert quiet(watch, 10, 128) is None
    cause = quiet(watch, 128, 140)
    assert cause is not None
    assert (cause.id, cause.retry) == ("engine.collective_hang", True)


def test_a_line_of_the_log_breaks_the_silence() -> None:
    watch = start()
    assert quiet(watch, 0, 100) is None
    watch.line("still here", 100.0)
    assert quiet(watch, 100, 200) is None


def test_without_figures_from_before_the_start_nothing_is_concluded() -> None:
    assert quiet(start(cards=False), 0, 1000) is None


def test_a_step_that_stands_still_ends_the_start_and_names_itself() -> None:
    watch = start()
    step = watch.line(LOADING.format(62), 30.0)
    assert step is not None
    assert step.limit_s is not None
    cause = quiet(watch, 30, 30 + int(step.limit_s) + 2, cores=0.1, held=40 << 30)
    assert cause is not None
    assert cause.id == "engine.step_timeout"
    assert "loading the weights" in cause.title


def test_the_first_start_of_its_kind_has_more_time() -> None:
    watch = start(())
    step = watch.line(LOADING.format(62), 30.0)
    assert step is not None
    assert step.limit_s is not None
    assert quiet(watch, 30, 30 + 2 * int(step.limit_s), cores=0.1, held=40 << 30) is None


def test_nothing_stands_still_once_it_answers() -> None:
    watch = start()
    watch.line(LOADING.format(62), 30.0)
    watch.healthy(40.0)
    assert quiet(watch, 40, 4000) is None
    assert watch.line(LOADING.format(70), 50.0) is None


def test_the_estimate_is_the_last_start_and_nobody_knows_without_one() -> None:
    watch = start()
    watch.line(LOADING.format(0), 30.0)
    watch.line(LOADING.format(50), 180.0)
    found = watch.estimate(180.0)
    assert found is not None
    assert found.left_s == pytest.approx(150.0 + 30.0)
    assert start(()).estimate(10.0) is None


def test_a_start_that_is_slower_than_the_last_one_says_more_time_and_never_a_smaller_share() -> None:
    watch = start()
    shares, left = [], []
    for now_s, percent in ((30.0, 0), (150.0, 20), (400.0, 40), (800.0, 60), (1300.0, 80)):
        watch.line(LOADING.format(percent), now_s)
        for later_s in (0.0, 60.0):
            found = watch.estimate(now_s + later_s)
            assert found is not None
            shares.append(found.share)
            left.append(found.left_s)
    assert shares == sorted(shares)
    assert max(left) > left[0]


def test_a_good_start_is_remembered_from_its_spawn_to_ready() -> None:
    watch = start()
    watch.line(LOADING.format(0), 30.0)
    watch.line(LOADING.format(100), 330.0)
    watch.healthy(340.0)
    assert watch.ready(400.0) == (("", 30.0), ("loading the weights", 310.0), (WARMING, 60.0))


def test_a_required_line_may_come_at_any_time_also_after_the_first_answer() -> None:
    watch = start(required=(PLUGIN,))
    watch.line("nothing of it", 1.0)
    assert watch.missing is PLUGIN
    watch.healthy(2.0)
    watch.line("INFO exl3 plugin loaded in 2 s", 3.0)
    assert watch.missing is None


def test_figures_of_cards_are_whole_or_none() -> None:
    assert used([(0, 5), (1, 7)]) == {0: 5, 1: 7}
    assert used([(0, 5), (1, None)]) is None
    assert used([]) is None


def test_a_boot_of_vllm_goes_through_its_steps_in_order() -> None:
    log = (Path(__file__).parents[1] / "data/vllm-0.26.0-boot.log").read_text().splitlines()
    watch, steps = start(), list[Step]()
    for second, line in enumerate(log):
        step = watch.line(line, float(second))
        if step is not None and (not steps or steps[-1].name != step.name):
            steps.append(step)
    names = [name for name, _ in watch.ready(float(len(log)))]
    assert names == ["", *(step.name for step in steps)]
    assert "loading the weights" in names
