"""gateway.metrics: the view as Prometheus text."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from gateway.metrics import render
from gateway.state import Phase, Severity
from gateway.status import view
from gateway.status_view import StatusView
from tests.status_sample import NOW_S, box, files, finding, gateway, seat


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
