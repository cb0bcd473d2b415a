"""gateway.status.compose: one view, its figures and its findings."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.state import EngineProfile, Phase, Severity
from gateway.status.compose import DEMO_LABEL, view
from gateway.status.figures import UNKNOWN, Figure, count, pace, percent, seconds
from gateway.status.findings import arranged
from gateway.status.views import FindingRow, StatusView
from tests.status_sample import GPU, NOW_S, box, cared, files, finding, gateway, seat, stream

WARN, FAIL, INFO = Severity.WARN, Severity.FAIL, Severity.INFO


def test_the_lanes_are_as_many_as_streams_may_run() -> None:
    slow = stream("ben", tok_per_s=20.0, estimated=False)
    fresh = stream("cy", tokens=0, tok_per_s=None, step="prefill")
    lanes = view(box(), gateway(running=3).model_copy(update={"running": (stream(), slow, fresh)}), NOW_S).lanes
    assert [lane.busy for lane in lanes.rows] == [True, True, True, False]
    assert [lane.tok_per_s.text for lane in lanes.rows] == ["~61.2 tok/s", "20 tok/s", UNKNOWN, UNKNOWN]
    assert [lane.tokens.text for lane in lanes.rows] == ["~500", "500", "0", UNKNOWN]
    assert [lane.below_floor for lane in lanes.rows] == [False, True, False, False]
    assert (lanes.scale_tok_per_s, lanes.floor_share) == (80.0, 0.5)
    assert [lane.share for lane in lanes.rows] == [0.765, 0.25, None, None]


def test_streams_above_a_lowered_cap_are_shown_and_marked() -> None:
    lanes = view(box(), gateway(3, streams_max=2), NOW_S).lanes
    assert [(lane.number, lane.extra) for lane in lanes.rows] == [(1, False), (2, False), (3, True)]


def test_without_a_floor_there_is_no_tick_and_the_fastest_sets_the_scale() -> None:
    profile = EngineProfile(name="none", floor_tok_per_s=0.0, cold_tokens=1, streams=4)
    found = view(box(profile=profile), gateway(1), NOW_S)
    assert found.lanes.floor_share is None
    assert found.lanes.rows[0].share == 1.0
    assert found.engine.floor.text == UNKNOWN


@pytest.mark.parametrize("changes", [{"draining": True}, {"closed": "engine_lost"}])
def test_a_lane_that_takes_nobody_is_not_open(changes: dict[str, object]) -> None:
    assert view(box(), gateway(), NOW_S).lanes.open
    assert not view(box(), gateway(**changes), NOW_S).lanes.open
    assert not view(box(Phase.STARTING), gateway(), NOW_S).lanes.open


def test_a_predicted_wait_without_a_measured_stream_is_not_invented() -> None:
    measured, unmeasured = gateway(4, 2), gateway(4, 2, mean_hold_s=None)
    assert [row.predicted.text for row in view(box(), measured, NOW_S).queue.rows] == ["~6 s", "~11 s"]
    found = view(box(), unmeasured, NOW_S)
    assert [row.predicted.text for row in found.queue.rows] == [UNKNOWN, UNKNOWN]
    assert (found.numbers.mean_hold.text, found.numbers.drain_rate.text) == (UNKNOWN, UNKNOWN)


def test_the_numbers_of_everybody() -> None:
    numbers = view(box(), gateway(), NOW_S).numbers
    shown = (numbers.served, numbers.refused, numbers.failed, numbers.left, numbers.mean_hold, numbers.drain_rate)
    assert [str(figure) for figure in shown] == ["1 311", "11", "3", "7", "22 s", "~10.7 / min"]


def test_the_engine_says_what_it_is() -> None:
    demo = EngineProfile(name="demo", floor_tok_per_s=20.0, cold_tokens=1, streams=4, demo=True)
    ready = view(box(profile=demo), gateway(), NOW_S).engine
    assert ready.demo_label == DEMO_LABEL
    assert (ready.uptime.text, ready.headline, ready.context_tokens.text) == ("2 min", "Ready", "131 072")
    waits = view(box(Phase.BACKOFF, cause=GPU, retry_at_s=NOW_S + 3.2), gateway(), NOW_S).engine
    assert (waits.demo_label, waits.uptime.text, waits.retry_in.text) == (None, UNKNOWN, "3.2 s")
    assert (waits.cause, waits.remedy) == (GPU.title, "nvidia-smi")


def test_a_broken_seat_file_is_shown_and_raised_as_a_finding() -> None:
    found = view(box(), gateway(files=files("seats.toml:3: bad")), NOW_S)
    assert [(row.kind, row.state) for row in found.files] == [("seats", "broken"), ("admins", "ok")]
    assert [(row.id, row.observed) for row in found.findings] == [("seats.file_broken", "seats.toml:3: bad")]
    assert "seats.toml is broken" in found.verdict.sentence


def test_a_box_that_nobody_can_enter_says_how_to_add_a_seat() -> None:
    found = view(box(), gateway(0, seats=(seat(state="disabled"),), files=files(missing=True)), NOW_S)
    assert found.verdict.command == "moe-appliance seats add NAME"
    assert found.files[0].state == "missing"
    broken = view(box(), gateway(0, seats=(), files=files("bad")), NOW_S)
    assert [[child.id for child in row.folded] for row in broken.findings] == [["seats.none"]]


def test_findings_are_sorted_and_folded_under_their_cause() -> None:
    rows = arranged(
        (
            finding("i", INFO),
            finding("w2", WARN, depends_on="w1"),
            finding("w1"),
            finding("f2", FAIL, depends_on="w2"),
            finding("f1", FAIL),
            finding("alone", INFO, depends_on="not there"),
        )
    )
    assert [(row.id, [child.id for child in row.folded]) for row in rows] == [
        ("w1", ["f2", "w2"]),
        ("f1", []),
        ("i", []),
        ("alone", []),
    ]


_IDS = st.sampled_from("abcd")


@given(st.lists(st.tuples(_IDS, st.sampled_from(Severity), st.none() | _IDS)))
def test_no_finding_is_ever_lost_or_doubled(made: list[tuple[str, Severity, str | None]]) -> None:
    def flat(rows: tuple[FindingRow, ...]) -> list[str]:
        return [name for row in rows for name in (row.id, *flat(row.folded))]

    rows = arranged(finding(id, severity, depends_on) for id, severity, depends_on in made)
    assert sorted(flat(rows)) == sorted(id for id, _, _ in made)


@pytest.mark.parametrize(
    ("figure", "text"),
    [
        (seconds(None), UNKNOWN),
        (seconds(float("nan")), UNKNOWN),
        (seconds(-3), "0 s"),
        (seconds(3.21), "3.2 s"),
        (seconds(0.2, estimated=True), "~1 s"),
        (seconds(9.97), "10 s"),
        (seconds(119.4), "119 s"),
        (seconds(125), "2 min"),
        (seconds(4000), "1 h 6 min"),
        (seconds(200_000), "2 d 7 h"),
        (count(0), "0"),
        (count(1_234_567, estimated=True), "~1 234 567"),
        (pace(123.4), "123 tok/s"),
        (pace(40.0), "40 tok/s"),
        (pace(float("inf")), UNKNOWN),
        (percent(0.999), "99 %"),
        (percent(1.7), "100 %"),
    ],
)
def test_figures_are_written_one_way(figure: Figure, text: str) -> None:
    assert str(figure) == text


def test_a_view_survives_json_and_a_newer_writer() -> None:
    found = view(box(findings=(finding("a"), finding("b", WARN, "a"))), gateway(4, 2), NOW_S)
    newer = json.loads(found.model_dump_json()) | {"new": 1}
    assert newer["verdict"]["sentence"] == found.verdict.sentence
    assert StatusView.model_validate(newer) == found


@given(st.sampled_from(Phase), st.integers(0, 6), st.integers(0, 3), st.booleans())
def test_every_estimate_carries_the_mark_and_no_other(phase: Phase, running: int, wait: int, known: bool) -> None:
    def figures(value: object) -> list[dict[str, object]]:
        if isinstance(value, dict):
            if value.keys() == {"value", "text", "estimated"}:
                return [value]
            return [figure for child in value.values() for figure in figures(child)]
        return [figure for child in value for figure in figures(child)] if isinstance(value, list) else []

    found = view(box(phase), cared(gateway(running, wait)) if known else None, NOW_S)
    for figure in figures(json.loads(found.model_dump_json())):
        assert (figure["text"] == UNKNOWN) == (figure["value"] is None)
        assert str(figure["text"]).startswith("~") == figure["estimated"]
