"""What people are told: the numbers are in the sentence, and when to come back is one that agents obey."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import problem as problems
from gateway.admission_types import RETRY_MAX_S, RETRY_MIN_S, Reason, Rejected, TicketId
from gateway.problem import Problem, ordinal, refused
from gateway.state import Cause, EngineState, Phase

NOW = 1_800_000_000.0
ADMISSION = [r for r in Reason if r not in (Reason.MAX_STREAM, Reason.SEAT_GONE)]


def in_range(problem: Problem) -> bool:
    return problem.retry_after_s is None or RETRY_MIN_S <= problem.retry_after_s <= RETRY_MAX_S


def rejected(reason: Reason, retry_after_s: int, position: int, depth: int) -> Rejected:
    return Rejected(TicketId(1), reason, retry_after_s=retry_after_s, position=position, depth=depth)


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (1, "1st"),
        (2, "2nd"),
        (3, "3rd"),
        (4, "4th"),
        (10, "10th"),
        (11, "11th"),
        (12, "12th"),
        (13, "13th"),
        (21, "21st"),
        (22, "22nd"),
        (101, "101st"),
        (111, "111th"),
        (113, "113th"),
    ],
)
def test_ordinal(n: int, text: str) -> None:
    assert ordinal(n) == text


@given(
    st.sampled_from(ADMISSION), st.integers(RETRY_MIN_S, RETRY_MAX_S), st.integers(1, 99), st.integers(0, 99),
    st.integers(1, 256),
)  # fmt: skip
def test_a_refusal_by_admission_names_the_time_and_keeps_it(
    reason: Reason, retry_s: int, position: int, depth: int, streams: int
) -> None:
    problem = refused(rejected(reason, retry_s, position, depth), streams)
    assert problem.retry_after_s == retry_s
    assert problem.heals
    assert problem.status in (429, 503)
    assert f"Retry in {retry_s} s." in problem.message
    assert (problem.reason, problem.code, problem.position, problem.depth) == (reason, str(reason), position, depth)
    if reason in (Reason.QUEUE_FULL, Reason.QUEUE_BYTES, Reason.SEAT_QUEUE_FULL, Reason.PREDICTED_WAIT):
        assert f"All {streams} streams are busy and you would be {ordinal(position)} in line" in problem.message
    if reason in (Reason.QUEUE_FULL, Reason.QUEUE_BYTES, Reason.DEADLINE):
        assert str(depth) in problem.message


def test_429_is_for_waiting_and_503_for_the_box() -> None:
    statuses = {reason: refused(rejected(reason, 10, 1, 1), 4).status for reason in Reason}
    assert statuses == {
        Reason.QUEUE_FULL: 429,
        Reason.QUEUE_BYTES: 429,
        Reason.SEAT_QUEUE_FULL: 429,
        Reason.PREDICTED_WAIT: 429,
        Reason.DEADLINE: 429,
        Reason.ENGINE_NOT_READY: 503,
        Reason.ENGINE_LOST: 503,
        Reason.DRAINING: 503,
        Reason.SEAT_GONE: 403,
        Reason.MAX_STREAM: 503,
    }


def test_a_seat_that_is_gone_is_not_told_to_retry() -> None:
    problem = refused(rejected(Reason.SEAT_GONE, 0, 0, 0), 4)
    assert (problem.retry_after_s, problem.heals) == (None, False)


def test_an_empty_line_that_is_full_says_so() -> None:
    assert "nobody waits" in refused(rejected(Reason.QUEUE_FULL, 10, 0, 0), 4).message


@given(st.sampled_from(Phase), st.none() | st.floats(NOW - 1e6, NOW + 1e6), st.text(max_size=5), st.booleans())
def test_an_engine_that_is_not_ready_always_says_when_to_come_back(
    phase: Phase, retry_at_s: float | None, step: str, caused: bool
) -> None:
    cause = Cause(id="x", title="the model file is truncated", remedy="fetch it again") if caused else None
    engine = EngineState(phase=phase, step=step, cause=cause, retry_at_s=retry_at_s)
    problem = problems.engine_not_ready(engine, NOW)
    assert problem.retry_after_s is not None
    assert in_range(problem)
    assert f"Retry in {problem.retry_after_s} s." in problem.message
    assert ("the model file is truncated" in problem.message) == caused
    assert problem.reason is Reason.ENGINE_NOT_READY


def test_a_backoff_is_waited_for() -> None:
    engine = EngineState(phase=Phase.BACKOFF, retry_at_s=NOW + 20)
    assert problems.engine_not_ready(engine, NOW).retry_after_s == 25
    assert problems.engine_not_ready(engine, NOW + 90).retry_after_s == RETRY_MIN_S


OTHERS: list[tuple[Problem, int, list[str]]] = [
    (problems.bad_request("x", "n"), 400, []),
    (problems.denied(401, "unknown", "x"), 401, []),
    (problems.unknown_path("/v1/x", ("/v1/models",)), 404, ["/v1/x"]),
    (problems.method_not_allowed("/v1/x", "POST"), 405, ["/v1/x", "POST"]),
    (problems.unknown_model("gpt", ("a", "b")), 404, ["gpt", "a, b"]),
    (problems.unknown_model("gpt", ()), 404, ["none yet"]),
    (problems.body_too_large(64 * 1024 * 1024), 413, ["64 MiB"]),
    (problems.body_too_large(1024), 413, ["1024 bytes"]),
    (problems.body_too_slow(30.0), 408, ["30 s"]),
    (problems.bodies_full(), 503, ["10 s"]),
    (problems.engine_lost("x"), 502, ["(x)"]),
    (problems.engine_unreachable("x"), 503, ["(x)", "10 s"]),
    (problems.engine_busy(429), 503, ["429", "10 s"]),
    (problems.engine_refused_key(), 502, []),
    (problems.ended(Reason.MAX_STREAM, 1800.0), 504, ["1800 s", "max_stream_s"]),
    (problems.ended(Reason.SEAT_GONE, 0), 403, []),
    (problems.ended(Reason.DRAINING, 0), 503, ["10 s"]),
]


@pytest.mark.parametrize(("problem", "status", "named"), OTHERS, ids=lambda value: getattr(value, "code", None))
def test_every_other_problem(problem: Problem, status: int, named: list[str]) -> None:
    assert problem.status == status
    assert all(number in problem.message for number in named)
    assert in_range(problem)
    assert problem.heals or problem.retry_after_s is None


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"error":{"message":"too long"}}', "too long"),
        (b'{"error":{"message":5}}', "status 400"),
        (b'{"error":"x"}', "status 400"),
        (b"[]", "status 400"),
        (b"<html>", "status 400"),
    ],
)
def test_what_the_engine_said_is_passed_on(body: bytes, said: str) -> None:
    problem = problems.engine_said(400, body)
    assert said in problem.message
    assert problem.heals is False
    assert problems.engine_said(500, body).heals is True


def test_no_constructor_is_left_out() -> None:
    text = Path(problems.__file__).read_text()
    made = [line.split("(")[0][4:] for line in text.splitlines() if line.startswith("def ") and "-> Problem" in line]
    tested = Path(__file__).read_text()
    assert [
        name for name in made if f"problems.{name}(" not in tested and f"import Problem, ordinal, {name}" not in tested
    ] == []
