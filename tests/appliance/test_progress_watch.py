"""When a serving engine is asked for a token, and when it hangs: in virtual time."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.engine.adapter import MetricNames
from appliance.engine.progress_watch import (
    HANG_MIN_S,
    IDLE_S,
    LOOK_MAX_S,
    Act,
    Counts,
    Limits,
    Watch,
    act,
    answered,
    counts_of,
    hang_limit_s,
    hung,
    looked,
    unanswered,
)

NAMES = MetricNames("w_total", "r_total", "running", "waiting")
LIMITS = Limits(hang_s=180.0, canary_s=30.0)
IDLE = Counts(10, 20, 0, 0)
WORKS = Counts(10, 20, 1, 0)


def after(watch: Watch, seconds: int, counts: Counts | None, streams: int, *, counted: bool = True) -> Watch:
    """In looks of five seconds."""
    for _ in range(seconds // 5):
        watch = looked(watch, counts, streams, 5.0, counted=counted)
    return watch


def test_metrics_are_summed_up_over_their_labels_and_a_gauge_that_cannot_be_read_is_none() -> None:
    text = """# TYPE w_total counter
w_total{engine="0",model_name="a b} c"} 3.0
w_total{engine="1"} 4 1796032472
w_total_created{engine="0"} 99
r_total 5e2
running{engine="0"} NaNsense
waiting 2
nothing
"""
    assert counts_of(text, NAMES) == Counts(7.0, 500.0, 0.0, 2.0)
    assert counts_of("w_total 1", NAMES) == Counts(1.0, None, 0.0, 0.0)
    assert counts_of("w_total x\nrunning 1", NAMES) is None


@given(st.text(), st.text())
def test_any_text_is_read_without_an_error(line: str, rest: str) -> None:
    counts_of("\n".join((line, f"w_total{rest}", f"w_total{{{rest}", rest)), NAMES)


@pytest.mark.parametrize("odd", ["NaN", "+Inf", "x"])
def test_one_odd_line_for_ever_hides_no_hang_and_makes_none(odd: str) -> None:
    def counts(read: int, value: str = odd) -> Counts | None:
        return counts_of(f'w_total{{e="0"}} 3\nw_total{{e="1"}} {value}\nr_total {read}\nrunning 1\n', NAMES)

    # given an engine that stands still, whatever its metrics say of one core
    stands = after(looked(Watch(), counts(7), 1, 5.0), 180, counts(7), 1)
    assert act(stands, LIMITS) is Act.ASK

    # when the other counter moves, it moves; a sample that comes and goes does not make it move
    assert looked(stands, counts(8), 1, 5.0).quiet_s == 0
    flaps = looked(looked(Watch(), counts(7, "4"), 1, 5.0), counts(7), 1, 5.0)
    assert looked(flaps, counts(7, "4"), 1, 5.0).quiet_s == 15.0


def test_a_stream_that_moves_nothing_is_a_suspicion_though_the_engine_says_that_it_is_idle() -> None:
    watch = after(looked(Watch(), IDLE, 0, 5.0), 175, IDLE, 1)
    assert act(watch, LIMITS) is Act.WAIT
    watch = looked(watch, IDLE, 1, 5.0)
    assert act(watch, LIMITS) is Act.ASK
    watch, doing = unanswered(watch, looked(watch, IDLE, 1, 30.0), LIMITS)
    assert doing is Act.HUNG
    cause = hung(watch, LIMITS)
    assert cause.id == "engine.hung"
    assert "a stream runs" in cause.title


def test_an_answer_clears_a_suspicion_such_as_a_client_that_reads_slowly() -> None:
    watch = answered(after(looked(Watch(), IDLE, 0, 5.0), 200, IDLE, 1))
    assert act(watch, LIMITS) is Act.WAIT


def test_what_runs_in_the_engine_counts_as_work_without_a_stream_of_the_gateway() -> None:
    watch = after(looked(Watch(), WORKS, 0, 5.0), 180, WORKS, 0)
    assert act(watch, LIMITS) is Act.ASK
    assert "it has work" in hung(watch, LIMITS).title


def test_a_counter_that_moves_clears_everything() -> None:
    watch = after(looked(Watch(), WORKS, 3, 5.0), 175, WORKS, 3)
    watch = looked(watch, Counts(10, 21, 1, 2), 3, 5.0)
    assert (watch.quiet_s, watch.misses) == (0.0, 0)


def test_a_client_that_comes_back_does_not_make_a_hung_engine_look_new() -> None:
    watch = looked(Watch(), IDLE, 0, 5.0)
    for _ in range(4):
        watch = after(after(watch, 45, IDLE, 1), 10, IDLE, 0)
    assert act(watch, LIMITS) is Act.ASK
    assert unanswered(watch, looked(watch, IDLE, 0, 30.0), LIMITS)[1] is Act.HUNG


def test_an_idle_engine_is_asked_once_a_minute_and_hangs_at_the_second_miss() -> None:
    watch = after(Watch(), int(IDLE_S) - 5, IDLE, 0)
    assert act(watch, LIMITS) is Act.WAIT
    watch = looked(watch, IDLE, 0, 5.0)
    assert act(watch, LIMITS) is Act.ASK
    assert act(answered(watch), LIMITS) is Act.WAIT
    watch, doing = unanswered(watch, looked(watch, IDLE, 0, 30.0), LIMITS)
    assert doing is Act.WAIT
    watch = looked(watch, IDLE, 0, 5.0)
    assert act(watch, LIMITS) is Act.ASK
    watch, doing = unanswered(watch, looked(watch, IDLE, 0, 30.0), LIMITS)
    assert doing is Act.HUNG
    assert "twice in a row" in hung(watch, LIMITS).title


@pytest.mark.parametrize("meanwhile", [(IDLE, 1), (Counts(11, 20, 0, 0), 0)])
def test_what_somebody_sent_meanwhile_makes_the_question_void(meanwhile: tuple[Counts, int]) -> None:
    watch = after(looked(Watch(), IDLE, 0, 5.0), 60, IDLE, 0)
    watch, doing = unanswered(watch, looked(watch, *meanwhile, 30.0), LIMITS)
    assert (doing, watch.misses) == (Act.WAIT, 0)


def test_a_busy_engine_is_not_asked_before_it_is_suspected() -> None:
    watch = looked(after(Watch(), 600, IDLE, 0), IDLE, 1, 5.0)
    assert act(watch, LIMITS) is Act.WAIT


def test_an_engine_without_counters_is_only_asked_when_it_is_idle() -> None:
    watch = after(Watch(), 6000, None, 1, counted=False)
    assert act(watch, LIMITS) is Act.WAIT
    assert act(after(watch, 60, None, 0, counted=False), LIMITS) is Act.ASK


def test_counters_that_cannot_be_read_are_no_movement() -> None:
    watch = after(looked(Watch(), IDLE, 1, 5.0), 180, None, 1)
    assert act(watch, LIMITS) is Act.ASK


def test_without_a_canary_a_suspicion_is_enough_and_without_hang_s_nothing_is_suspected() -> None:
    watch = after(looked(Watch(), IDLE, 1, 5.0), 180, IDLE, 1)
    assert act(watch, Limits(180.0, 0.0)) is Act.HUNG
    assert act(after(watch, 6000, IDLE, 1), Limits(0.0, 30.0)) is Act.WAIT
    assert act(after(Watch(), 6000, IDLE, 0), Limits(180.0, 0.0)) is Act.WAIT


@pytest.mark.parametrize(
    ("declared_s", "prefill_s", "limit_s"),
    [(180.0, None, 180.0), (180.0, 100.0, 200.0), (180.0, 10.0, HANG_MIN_S), (20.0, None, HANG_MIN_S), (0.0, 9.0, 0.0)],
)
def test_the_limit_follows_the_longest_prefill_where_it_is_known(
    declared_s: float, prefill_s: float | None, limit_s: float
) -> None:
    assert hang_limit_s(declared_s, prefill_s) == limit_s


COUNTS = st.none() | st.builds(
    Counts, st.sampled_from([1.0, 2.0]), st.just(1.0), st.sampled_from([0.0, 1.0]), st.just(0.0)
)


@given(st.lists(st.tuples(COUNTS, st.integers(0, 2), st.floats(0, 1e6))))
def test_no_suspicion_without_so_much_busy_time_since_the_last_movement(
    looks: list[tuple[Counts | None, int, float]],
) -> None:
    watch, busy_s = Watch(), 0.0
    for counts, streams, elapsed_s in looks:
        before, watch = watch, looked(watch, counts, streams, elapsed_s)
        moved = before.counts is not None and counts is not None and before.counts.written != counts.written
        busy_s = 0.0 if moved else busy_s + min(elapsed_s, LOOK_MAX_S) * watch.busy
        assert watch.quiet_s == pytest.approx(busy_s)
        if act(watch, Limits(180.0, 0.0)) is Act.HUNG:
            assert busy_s >= 180.0


def test_the_real_text_of_vllm_is_understood() -> None:
    text = (Path(__file__).parents[1] / "data/vllm-0.26.0-metrics.txt").read_text()
    names = MetricNames(
        "vllm:generation_tokens_total",
        "vllm:prompt_tokens_total",
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
    )
    assert counts_of(text, names) == Counts(96.0, 1328.0, 0.0, 0.0)
