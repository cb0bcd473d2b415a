"""gateway.metrics: the view as Prometheus text."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from gateway.metrics import render
from gateway.snapshot import Times
from gateway.state import Phase, Severity
from gateway.status.compose import view
from gateway.status.views import StatusView
from tests.status_sample import NOW_S, box, files, finding, gateway, lively, seat, stream


def samples(found: StatusView) -> dict[tuple[str, ...], float]:
    text = render(found)[0].decode()
    return {
        (sample.name, *(sample.labels[label] for label in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_names_and_numbers_of_a_busy_box() -> None:
    got = samples(view(box(findings=(finding("a"), finding("b", Severity.WARN, "a"))), gateway(3, 2), NOW_S))
    assert got["moe_streams_running",] == 3
    assert got["moe_streams_max",] == 4
    assert got["moe_queue_depth",] == 2
    assert got["moe_stream_hold_seconds",] == 22.4
    assert got["moe_engine_phase", "ready"] == 1
    assert sum(value for key, value in got.items() if key[0] == "moe_engine_phase") == 1
    assert got["moe_requests_total", "served", "ana"] == 1250
    assert got["moe_outcomes_total", "failed"] == 3
    assert got["moe_tokens_out_total", "ana"] == 98_000
    assert got["moe_findings", "warn"] == 2
    assert got["moe_seats_file_broken",] == 0
    assert got["moe_body_bytes",] == 1024 * 1024
    assert got["moe_verdict", "warn"] == 1


def test_what_is_not_known_is_left_out() -> None:
    found = samples(view(box(Phase.STARTING), gateway(0, mean_hold_s=None), NOW_S))
    assert not {"moe_stream_hold_seconds", "moe_engine_uptime_seconds"} & {key[0] for key in found}
    absent = samples(view(box(), None, NOW_S))
    assert absent["moe_gateway_state", "absent"] == 1
    assert not {"moe_streams_running", "moe_requests_total", "moe_queue_depth"} & {key[0] for key in absent}


def test_a_broken_seat_file_raises_its_gauge() -> None:
    assert samples(view(box(), gateway(files=files("bad")), NOW_S))["moe_seats_file_broken",] == 1


def test_a_label_is_escaped() -> None:
    found = samples(view(box(), gateway(seats=(seat('a"b\\c\nd'),)), NOW_S))
    assert found["moe_tokens_out_total", 'a"b\\c\nd'] == 98_000


def test_rendering_twice_shares_no_state() -> None:
    found = view(box(), gateway(), NOW_S)
    assert render(found) == render(found)
    assert render(found)[1].startswith("text/plain; version=0.0.4")


def test_times_are_a_histogram_and_without_a_gateway_that_tells_them_nothing() -> None:
    times = Times(bounds_s=(0.5, 1.0), counts=(3, 0, 2), sum_s=9.5)
    got = samples(view(box(), gateway(first_token=times), NOW_S))
    assert [got["moe_first_token_seconds_bucket", le] for le in ("0.5", "1.0", "+Inf")] == [3, 3, 5]
    assert (got["moe_first_token_seconds_count",], got["moe_first_token_seconds_sum",]) == (5, 9.5)
    assert "moe_queue_wait_seconds_bucket" not in {key[0] for key in got}


def test_the_slowest_stream_is_told() -> None:
    running = (stream("a", tok_per_s=61.0), stream("b", tok_per_s=48.5), stream("c", tok_per_s=None, tokens=0))
    assert (
        samples(view(box(), gateway(0).model_copy(update={"running": running}), NOW_S))[
            "moe_stream_slowest_tokens_per_second",
        ]
        == 48.5
    )
    assert ("moe_stream_slowest_tokens_per_second",) not in samples(view(box(), gateway(0), NOW_S))


def test_cards_mode_budgets_and_ledger_have_their_names() -> None:
    got = samples(view(*lively(), NOW_S))
    assert got["moe_gpu_busy_ratio", "0"] == 0.87
    assert got["moe_gpu_memory_used_bytes", "1"] == 88 * 1024**3
    assert got["moe_gpu_pcie_rx_bytes_per_second", "0"] == 21e9
    assert got["moe_gpu_slowed", "1", "power cap"] == 1
    assert got["moe_gpu_gauges_stale",] == 0
    assert (got["moe_operator_mode", "serving"], got["moe_operator_mode", "drained"]) == (1, 0)
    assert got["moe_seats_off_by_hand",] == 1
    assert got["moe_seat_month_tokens", "ana"] == 12_400_000
    assert got["moe_seat_budget_tokens", "ana"] == 20_000_000
    assert ("moe_seat_budget_tokens", "ben") not in got
    assert got["moe_ledger_rows_lost_total",] == 0
    assert got["moe_ledger_ok",] == 1
    assert got["moe_above_streams_ratio",] == 0.008


def test_prompt_and_cached_tokens_are_counted_by_seat() -> None:
    found = samples(view(box(), gateway(seats=(seat(prompt_tokens=1000, cached_tokens=900),)), NOW_S))
    assert (found["moe_prompt_tokens_total", "ana"], found["moe_cached_tokens_total", "ana"]) == (1000, 900)


def test_figures_of_cards_that_do_not_answer_are_left_out() -> None:
    state, snapshot = lively()
    assert state.gauges is not None
    old = state.model_copy(update={"gauges": state.gauges.model_copy(update={"error": "hangs"})})
    found = samples(view(old, snapshot, NOW_S))
    assert found["moe_gpu_gauges_stale",] == 1
    assert not [key for key in found if key[0] == "moe_gpu_busy_ratio"]
