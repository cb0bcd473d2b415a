"""gateway.status.verdict: one sentence for each state of a box."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from appliance.engine import lifecycle
from gateway.snapshot import GatewaySnapshot, WaitingView
from gateway.state import BoxState, EngineProfile, EngineState, Pair, Phase, Severity
from gateway.status import verdict as status_verdict
from gateway.status.compose import view
from tests.status_sample import GPU, NOW_S, box, finding, gateway, lane, waiting

WARN, FAIL, INFO = Severity.WARN, Severity.FAIL, Severity.INFO

Case = tuple[int, str, BoxState, GatewaySnapshot | None, str]


def set_by_ana(mode: str) -> dict[str, object]:
    return {"mode": mode, "mode_by": "ana", "mode_since_s": NOW_S - 300}


def in_line(running: int, *line: WaitingView, **changes: object) -> GatewaySnapshot:
    return gateway(running).model_copy(update={"waiting": line, **changes})


PLAN = Pair(plan_file="/state/plans/mine-0123.json")
PART = EngineProfile(name="m", floor_tok_per_s=1.0, cold_tokens=1, streams=4, helps="10.1.0.1:29501")

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
    (
        9,
        "warn",
        box(Phase.STARTING, step="loading the weights", progress=0.62, left_s=250.0),
        gateway(0),
        "Starting: the engine is loading the weights (62 %), ~4 min left.",
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
    (
        13,
        "warn",
        box(),
        gateway(3, 2, queue_max=2, lane=lane()),
        "Full: 3 of 4 streams busy, 2 of 2 wait; the next request is refused.",
    ),
    (
        14,
        "ok",
        box(),
        in_line(4, waiting(1, why="reading", why_s=40.0), waiting(2, why="streams_busy", why_s=3.0)),
        "Full: 4 of 4 streams busy, 2 wait; the next ticket is free in ~3 s.",
    ),
    (
        16,
        "ok",
        box(),
        in_line(3, waiting(1, "ana", why="quiet", why_s=9.0), waiting(2, why="gate", why_s=23.0), lane=lane()),
        "Serving: 3 of 4 streams busy, 2 wait; held free for a ~128K prompt of ana, at most ~14 s more.",
    ),
    (
        17,
        "ok",
        box(),
        in_line(
            3,
            waiting(1, why="reading", why_s=31.0),
            lane=lane(closed=False, reading_seat="cy", reading_tokens=80_000, reading_left_s=9.0, spacing_left_s=31.0),
        ),
        "Serving: 3 of 4 streams busy, 1 waits; a ~80K prompt of cy is being read, "
        "the next long one may follow in ~31 s at the latest.",
    ),
    (
        17,
        "ok",
        box(),
        in_line(2, waiting(1, why="spacing", why_s=22.0), lane=lane(closed=False, spacing_left_s=22.0)),
        "Serving: 2 of 4 streams busy, 1 waits; long prompts keep a distance, "
        "the next one may follow in ~22 s at the latest.",
    ),
    (
        18,
        "ok",
        box(),
        in_line(3, waiting(1, why="pace"), lane=lane(closed=False, next_seat="", next_tokens=None)),
        "Serving: 3 of 4 streams busy, 1 waits; "
        "the last stream is kept free so that no running answer falls behind its pace.",
    ),
    (19, "ok", box(), gateway(2, 1), "Serving: 2 of 4 streams busy, 1 waits because its seat has no stream left."),
    (19, "ok", box(), in_line(2, waiting(1, why="order")), "Serving: 2 of 4 streams busy, 1 waits: others go first."),
    (
        19,
        "ok",
        box(),
        gateway(2, 2),
        "Serving: 2 of 4 streams busy, 2 wait because their seats have no stream left.",
    ),
    (20, "ok", box(), gateway(2), "Serving: 2 of 4 streams busy, nobody waits."),
    (
        23,
        "warn",
        box(leaving=True, trial=PLAN),
        gateway(2, closed="engine_not_ready"),
        "About to serve with plan mine-0123: nothing new is sent to the engine, 2 streams still run and end first. "
        "To end them now: moe-appliance restart",
    ),
    (
        23,
        "warn",
        box(leaving=True, trial=PLAN),
        gateway(1, closed="maintenance", **set_by_ana("drained")),
        "Drained by ana 5 min ago. About to serve with plan mine-0123: nothing new is sent to the engine, 1 stream "
        "still runs and ends first. To end it now: moe-appliance restart",
    ),
    (
        23,
        "warn",
        box(leaving=True, trial=PLAN),
        gateway(0, closed="engine_not_ready"),
        "About to serve with plan mine-0123: nothing new is sent to the engine, no stream runs, and it is restarted "
        "now.",
    ),
    (
        22,
        "ok",
        BoxState(revision=1, engine=EngineState(phase=Phase.READY, profile=PART)),
        gateway().model_copy(update={"closed": "engine_not_ready"}),
        "Serving as a part: helps box 0 at 10.1.0.1:29501, which answers the requests.",
    ),
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
    assert listed == {case[0] for case in CASES} | {21}


def test_a_finding_makes_a_healthy_box_warn_and_is_named() -> None:
    findings = (finding("clock", INFO), finding("listen"), finding("memory", FAIL))
    verdict = view(box(findings=findings), gateway(2), NOW_S).verdict
    assert verdict.rule == 20
    assert verdict.tone == "warn"
    assert verdict.sentence == (
        "Serving: 2 of 4 streams busy, nobody waits. But: the memory is wrong (and 1 more). To mend it: mend memory"
    )


def test_a_finding_of_interest_only_changes_nothing() -> None:
    assert view(box(findings=(finding("clock", INFO),)), gateway(), NOW_S).verdict.tone == "ok"


def test_the_number_of_failures_is_the_one_that_the_lifecycle_counts() -> None:
    assert status_verdict.SAME_CAUSE_LIMIT == lifecycle.SAME_CAUSE_LIMIT
