"""gateway.status.compose: one view, its figures, its verdict and its findings."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.engine import lifecycle
from gateway.snapshot import GatewaySnapshot
from gateway.state import BoxState, EngineProfile, Phase, Severity
from gateway.status import verdict as status_verdict
from gateway.status.compose import DEMO_LABEL, view
from gateway.status.figures import UNKNOWN, Figure, count, pace, percent, seconds
from gateway.status.findings import arranged
from gateway.status.views import FindingRow, StatusView
from tests.status_sample import GPU, NOW_S, box, files, finding, gateway, seat, stream

WARN, FAIL, INFO = Severity.WARN, Severity.FAIL, Severity.INFO

Case = tuple[int, str, BoxState, GatewaySnapshot | None, str]


def set_by_ana(mode: str) -> dict[str, object]:
    return {"mode": mode, "mode_by": "ana", "mode_since_s": NOW_S - 300}


CASES: list[Case] = [
    (
        1,
        "warn",
        box().model_copy(update={"stopping": True}),
        gateway(1),
        "Stopping: the daemon ends; 1 stream still runs.",
    ),
    (
        1,
        "warn",
        box().model_copy(update={"stopping": True}),
        None,
        "Stopping: the daemon ends; the gateway does not answer any more.",
    ),
    (
        2,
        "bad",
        box(),
        None,
        "Not serving: the gateway does not answer; the daemon starts it again by itself. To see why: "
        "journalctl -u moe-appliance -n 50",
    ),
    (
        3,
        "warn",
        box(),
        gateway(2, draining=True, closed="draining"),
        "Draining: new requests are refused; 2 streams still run.",
    ),
    (3, "warn", box(), gateway(0, draining=True), "Draining: new requests are refused; no stream runs."),
    (
        4,
        "bad",
        box(Phase.REFUSED, findings=(finding("cpu", FAIL),)),
        gateway(0),
        "Not serving: the cpu is wrong. Mend it, then: moe-appliance restart",
    ),
    (
        4,
        "bad",
        box(Phase.REFUSED, findings=(finding("cpu", FAIL), finding("disk", FAIL))),
        gateway(0),
        "Not serving: 2 checks failed, the first: the cpu is wrong. Mend it, then: moe-appliance restart",
    ),
    (
        4,
        "bad",
        box(Phase.REFUSED, cause=GPU),
        gateway(0),
        "Not serving: no space is left on the GPU. Mend it, then: moe-appliance restart",
    ),
    (
        5,
        "bad",
        box(Phase.FAILED, cause=GPU),
        gateway(0),
        "Not serving: the engine failed 3 times with the same cause: no space is left on the GPU. Mend it, then: "
        "moe-appliance restart",
    ),
    (
        6,
        "bad",
        box(Phase.BACKOFF, cause=GPU, retry_at_s=NOW_S + 4),
        gateway(0),
        "Not serving: the engine ended: no space is left on the GPU; it starts again in 4 s. To start it now: "
        "moe-appliance restart",
    ),
    (
        6,
        "bad",
        box(Phase.BACKOFF),
        gateway(0),
        "Not serving: the engine ended: the cause is not known; it starts again soon. To start it now: "
        "moe-appliance restart",
    ),
    (7, "warn", BoxState(), gateway(0), "Starting: nothing was heard of the engine yet."),
    (7, "warn", box(Phase.OFF), gateway(0), "Not serving: the engine is off. To start it: moe-appliance restart"),
    (8, "warn", box(Phase.STOPPING), gateway(0), "Not serving: the engine is being stopped."),
    (
        8,
        "warn",
        box(Phase.STOPPING, cause=GPU),
        gateway(0),
        "Not serving: the engine is being stopped: no space is left on the GPU.",
    ),
    (
        9,
        "warn",
        box(Phase.STARTING, step="loading the model", progress=0.62),
        gateway(0),
        "Starting: the engine is loading the model (62 %).",
    ),
    (9, "warn", box(Phase.PREPARING), gateway(0), "Starting: the engine is being prepared."),
    (9, "warn", box(Phase.STARTING), gateway(0), "Starting: the engine is starting up."),
    (9, "warn", box(Phase.WARMING), gateway(0), "Starting: the engine is being tried out."),
    (
        10,
        "warn",
        box(),
        gateway(2, closed="maintenance", **set_by_ana("drained")),
        "Drained by ana 5 min ago: new requests are refused; 2 streams still run. To serve again: moe-appliance resume",
    ),
    (
        4,
        "bad",
        box(Phase.REFUSED, cause=GPU),
        gateway(0, closed="maintenance", **set_by_ana("drained")),
        "Drained by ana 5 min ago. Not serving: no space is left on the GPU. Mend it, then: moe-appliance restart",
    ),
    (
        12,
        "warn",
        box(),
        gateway(1, 2, **set_by_ana("paused")),
        "Paused by ana 5 min ago: nobody is let through, 2 wait; 1 stream still runs. To go on: moe-appliance resume",
    ),
    (
        12,
        "warn",
        box(),
        gateway(0, mode="paused"),
        "Paused: nobody is let through, nobody waits; no stream runs. To go on: moe-appliance resume",
    ),
    (
        11,
        "warn",
        box(),
        gateway(0, closed="engine_lost"),
        "Not serving: the engine is ready, admission is closed (engine lost).",
    ),
    (
        13,
        "warn",
        box(),
        gateway(4, 2, queue_max=2),
        "Full: 4 of 4 streams busy, 2 of 2 wait; the next request is refused.",
    ),
    (
        13,
        "warn",
        box(),
        gateway(4, 0, queue_max=0),
        "Full: 4 of 4 streams busy, nobody may wait; the next request is refused.",
    ),
    (14, "ok", box(), gateway(4, 3), "Full: 4 of 4 streams busy, 3 wait; the next ticket is free in ~6 s."),
    (14, "ok", box(), gateway(4, 1, mean_hold_s=None), "Full: 4 of 4 streams busy, 1 waits."),
    (15, "ok", box(), gateway(4), "Full: 4 of 4 streams busy, nobody waits."),
    (16, "ok", box(), gateway(2, 1), "Serving: 2 of 4 streams busy, 1 waits because its seat has no stream left."),
    (
        16,
        "ok",
        box(),
        gateway(2, 2),
        "Serving: 2 of 4 streams busy, 2 wait because their seats have no stream left.",
    ),
    (17, "ok", box(), gateway(2), "Serving: 2 of 4 streams busy, nobody waits."),
]


@pytest.mark.parametrize(("rule", "tone", "state", "snapshot", "sentence"), CASES)
def test_the_verdict_is_one_sentence_for_each_branch(
    rule: int, tone: str, state: BoxState, snapshot: GatewaySnapshot | None, sentence: str
) -> None:
    verdict = view(state, snapshot, NOW_S).verdict
    assert (verdict.sentence, verdict.tone, verdict.rule) == (sentence, tone, rule)


def test_every_numbered_rule_is_reached_by_a_case() -> None:
    text = Path(status_verdict.__file__).read_text()
    listed = {int(number) for number in re.findall(r"^ ?(\d+)\. ", text, re.M)}
    assert listed == {case[0] for case in CASES} | {18}


def test_a_finding_makes_a_healthy_box_warn_and_is_named() -> None:
    findings = (finding("clock", INFO), finding("listen"), finding("memory", FAIL))
    verdict = view(box(findings=findings), gateway(2), NOW_S).verdict
    assert verdict.rule == 17
    assert verdict.tone == "warn"
    assert verdict.sentence == (
        "Serving: 2 of 4 streams busy, nobody waits. But: the memory is wrong (and 1 more). To mend it: mend memory"
    )


def test_a_finding_of_interest_only_changes_nothing() -> None:
    assert view(box(findings=(finding("clock", INFO),)), gateway(), NOW_S).verdict.tone == "ok"


def test_the_number_of_failures_is_the_one_that_the_lifecycle_counts() -> None:
    assert status_verdict.SAME_CAUSE_LIMIT == lifecycle.SAME_CAUSE_LIMIT


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

    found = view(box(phase), gateway(running, wait) if known else None, NOW_S)
    for figure in figures(json.loads(found.model_dump_json())):
        assert (figure["text"] == UNKNOWN) == (figure["value"] is None)
        assert str(figure["text"]).startswith("~") == figure["estimated"]
