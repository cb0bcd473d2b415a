"""What people are told: the numbers are in the sentence, and when to come back is one that agents obey."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import problem as problems
from gateway.admission_types import RETRY_MAX_S, RETRY_MIN_S, Reason, Rejected, TicketId
from gateway.dialects.messages import MESSAGES
from gateway.dialects.openai import CHAT, COMPLETIONS
from gateway.dialects.responses import RESPONSES
from gateway.problem import Problem, ordinal, refused
from gateway.responses import problem_headers
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
        where = f"you would be {ordinal(position)} in line"
        assert f"This box serves {streams} streams at once and {where}" in problem.message
    if reason in (Reason.QUEUE_FULL, Reason.QUEUE_BYTES, Reason.DEADLINE):
        assert (f"{depth} other" if depth else "nobody else waits") in problem.message


@pytest.mark.parametrize("reason", [Reason.QUEUE_FULL, Reason.QUEUE_BYTES, Reason.DEADLINE, Reason.PAUSED])
@pytest.mark.parametrize(("depth", "said"), [(0, "nobody else waits"), (1, "1 other waits"), (2, "2 others wait")])
def test_who_waits_is_told_without_the_one_that_is_refused(reason: Reason, depth: int, said: str) -> None:
    assert said in refused(rejected(reason, 10, 1, depth), 4).message


def test_429_is_for_waiting_and_503_for_the_box() -> None:
    statuses = {reason: refused(rejected(reason, 10, 1, 1), 4).status for reason in Reason}
    assert statuses == {
        Reason.QUEUE_FULL: 429,
        Reason.QUEUE_BYTES: 429,
        Reason.SEAT_QUEUE_FULL: 429,
        Reason.SEAT_COLD_QUEUE_FULL: 429,
        Reason.PREDICTED_WAIT: 429,
        Reason.DEADLINE: 429,
        Reason.ENGINE_NOT_READY: 503,
        Reason.ENGINE_LOST: 503,
        Reason.DRAINING: 503,
        Reason.MAINTENANCE: 503,
        Reason.PAUSED: 503,
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


@pytest.mark.parametrize("quotation", ["“ValueError: cannot encode my secret”", "“my secret, cut sho"])
def test_what_the_engine_said_at_its_end_is_told_to_nobody_who_did_not_ask(quotation: str) -> None:
    cause = Cause(id="engine.exit_code", title=f"The engine ended with exit code 1: {quotation}.", remedy="x")
    problem = problems.engine_not_ready(EngineState(phase=Phase.FAILED, cause=cause), NOW)
    assert "secret" not in problem.message
    assert "The reason: The engine ended with exit code 1: …. Retry" in problem.message


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize(("helps", "address"), [("10.1.0.1:29501", "10.1.0.1"), ("[fd00::1]:29501", "[fd00::1]")])
def test_a_box_that_only_helps_another_says_where_to_ask_and_not_to_come_back(
    phase: Phase, helps: str, address: str
) -> None:
    profile = EngineState().profile.model_copy(update={"helps": helps})
    problem = problems.engine_not_ready(EngineState(phase=phase, profile=profile), NOW)
    assert problem.message == f"This box computes for {address}; ask there."
    assert (problem.status, problem.code, problem.heals, problem.retry_after_s) == (
        503,
        "engine_not_ready",
        False,
        None,
    )


@pytest.mark.parametrize(("left_s", "retry_s"), [(2.0, RETRY_MIN_S), (30.5, 31), (600.0, RETRY_MAX_S)])
def test_a_load_that_says_how_long_it_takes_is_waited_for(left_s: float, retry_s: int) -> None:
    engine = EngineState(phase=Phase.STARTING, step="loading", progress=0.9, since_s=NOW - 10, left_s=left_s)
    assert problems.engine_not_ready(engine, NOW).retry_after_s == retry_s


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
    (problems.context_too_long(12030, 8192), 400, ["12030 tokens", "8192 tokens"]),
    (problems.answer_too_long(6000, 4000, 8192), 400, ["10000 tokens", "6000 in", "4000 in", "8192 tokens"]),
    (problems.image_on_text_only("messages[0].content[1]"), 400, ["messages[0].content[1]"]),
    (problems.continuation_not_honoured("messages[3]"), 400, ["messages[3]"]),
    (problems.dialect_not_served("/v1/x", ("/v1/y", "/v1/z")), 501, ["/v1/x", "/v1/y, /v1/z"]),
    (problems.dialect_not_served("/v1/x", ()), 501, ["/v1/x"]),
    (problems.count_failed(), 503, ["10 s"]),
    (problems.first_token_late(235.0), 503, ["235 s", "10 s"]),
    (problems.body_too_large(64 * 1024 * 1024), 413, ["64 MiB"]),
    (problems.body_too_large(1024), 413, ["1024 bytes"]),
    (problems.body_too_slow(30.0), 408, ["30 s"]),
    (problems.bodies_full(), 503, ["10 s"]),
    (problems.engine_lost("x"), 502, ["(x)"]),
    (problems.engine_unreachable("x"), 503, ["(x)", "10 s"]),
    (problems.engine_busy(429), 503, ["429", "10 s"]),
    (problems.engine_refused_key(), 502, []),
    (problems.maintenance(), 503, ["59 s"]),
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


@pytest.mark.parametrize(("status", "heals"), [(400, False), (404, False), (422, False), (500, True), (502, True)])
@pytest.mark.parametrize("message", ["too long", ""])
def test_what_the_engine_said_is_passed_on(status: int, heals: bool, message: str) -> None:
    problem = problems.engine_said(status, message, "its_code", "its_param")
    assert (problem.status, problem.code, problem.param, problem.heals) == (status, "its_code", "its_param", heals)
    assert problem.message == (message or f"The engine refused the request with status {status}.")
    assert problems.engine_said(status, message, "", None).code == "engine_refused"


# What programs are told: types, codes, headers

SHAPES: list[tuple[Problem, str, str, str]] = [
    # problem, type of OpenAI, type of Anthropic, code of `response.failed`
    (problems.bad_request("x", "n"), "invalid_request_error", "invalid_request_error", "invalid_prompt"),
    (problems.denied(401, "unknown", "x"), "authentication_error", "authentication_error", "invalid_prompt"),
    (problems.denied(403, "disabled", "x"), "permission_error", "permission_error", "invalid_prompt"),
    (problems.unknown_path("/x", ()), "not_found_error", "not_found_error", "invalid_prompt"),
    (problems.method_not_allowed("/x", "POST"), "invalid_request_error", "invalid_request_error", "invalid_prompt"),
    (problems.unknown_model("gpt", ()), "not_found_error", "not_found_error", "invalid_prompt"),
    (problems.context_too_long(9, 8), "invalid_request_error", "invalid_request_error", "context_length_exceeded"),
    (problems.answer_too_long(6, 5, 8), "invalid_request_error", "invalid_request_error", "invalid_prompt"),
    (problems.image_on_text_only("x"), "invalid_request_error", "invalid_request_error", "invalid_prompt"),
    (problems.continuation_not_honoured("x"), "invalid_request_error", "invalid_request_error", "invalid_prompt"),
    (problems.nothing_to_continue(), "invalid_request_error", "invalid_request_error", "invalid_prompt"),
    (problems.dialect_not_served("/x", ()), "server_error", "api_error", "invalid_prompt"),
    (problems.count_failed(), "service_unavailable_error", "overloaded_error", "rate_limit_exceeded"),
    (problems.first_token_late(235.0), "service_unavailable_error", "overloaded_error", "rate_limit_exceeded"),
    (problems.body_too_large(1024), "invalid_request_error", "request_too_large", "invalid_prompt"),
    (problems.body_too_slow(30.0), "timeout_error", "timeout_error", "server_error"),
    (problems.bodies_full(), "service_unavailable_error", "overloaded_error", "rate_limit_exceeded"),
    (problems.engine_not_ready(EngineState(), NOW), "service_unavailable_error", "overloaded_error",
     "rate_limit_exceeded"),
    (problems.engine_lost("x"), "server_error", "api_error", "server_error"),
    (problems.engine_unreachable("x"), "service_unavailable_error", "overloaded_error", "rate_limit_exceeded"),
    (problems.engine_busy(429), "service_unavailable_error", "overloaded_error", "rate_limit_exceeded"),
    (problems.engine_refused_key(), "server_error", "api_error", "server_error"),
    (problems.engine_said(400, "x", "", None), "invalid_request_error", "invalid_request_error", "invalid_prompt"),
    (problems.engine_said(500, "x", "", None), "server_error", "api_error", "server_error"),
    (problems.maintenance(), "service_unavailable_error", "overloaded_error", "rate_limit_exceeded"),
    (problems.ended(Reason.MAX_STREAM, 1800.0), "server_error", "timeout_error", "invalid_prompt"),
    (problems.ended(Reason.SEAT_GONE, 0), "permission_error", "permission_error", "invalid_prompt"),
    (problems.ended(Reason.DRAINING, 0), "service_unavailable_error", "overloaded_error", "rate_limit_exceeded"),
    (refused(rejected(Reason.QUEUE_FULL, 20, 1, 9), 4), "rate_limit_error", "rate_limit_error", "rate_limit_exceeded"),
    (refused(rejected(Reason.DEADLINE, 20, 1, 9), 4), "rate_limit_error", "rate_limit_error", "rate_limit_exceeded"),
    (refused(rejected(Reason.ENGINE_LOST, 10, 1, 9), 4), "service_unavailable_error", "overloaded_error",
     "rate_limit_exceeded"),
    (refused(rejected(Reason.SEAT_GONE, 0, 0, 0), 4), "permission_error", "permission_error", "invalid_prompt"),
]  # fmt: skip
EACH_SHAPE = pytest.mark.parametrize(
    ("problem", "openai", "anthropic", "failed"), SHAPES, ids=[f"{row[0].code}-{row[0].status}" for row in SHAPES]
)
FINAL = {"server_is_overloaded", "slow_down", "insufficient_quota", "usage_not_included"}
"""Codes at which Codex gives up. Source: facts/clients.md section 3.3."""


@EACH_SHAPE
def test_the_shape_of_openai(problem: Problem, openai: str, anthropic: str, failed: str) -> None:
    for dialect in (CHAT, COMPLETIONS, RESPONSES):
        told = json.loads(dialect.error(problem))
        named = dialect is RESPONSES and problem.tokens is not None
        names = {"messages": "input", "max_tokens": "max_output_tokens"} if named else {}
        param = names.get(problem.param or "", problem.param)
        error = {"message": problem.message, "type": openai, "param": param, "code": problem.code}
        assert told == {"error": error}
    error["param"] = problem.param
    event = CHAT.stream_error(problem, None)
    inside = json.loads(event.removeprefix(b"data: "))["error"]
    again = inside.pop("message").removesuffix(problem.message)
    assert event.endswith(b"}}\n\n")
    assert inside == {name: value for name, value in error.items() if name != "message"}
    assert bool(again) is problem.heals, "agents that read only the sentence send it again at these words"
    assert bool(re.search("(?i)rate limit|overloaded|server error|service unavailable|timeout", again)) is problem.heals


@EACH_SHAPE
def test_the_shape_of_anthropic(problem: Problem, openai: str, anthropic: str, failed: str) -> None:
    told = json.loads(MESSAGES.error(problem))
    assert (told["type"], told["error"]["type"]) == ("error", anthropic)
    assert told["error"]["message"]
    assert problem.tokens is not None or told["error"]["message"] == problem.message
    name, data = MESSAGES.stream_error(problem, None).removesuffix(b"\n\n").split(b"\n")
    inside = json.loads(data.removeprefix(b"data: "))
    assert name == b"event: error"
    assert inside["error"]["message"] == told["error"]["message"]
    assert (inside["error"]["type"] == "overloaded_error") is problem.heals, "Claude Code sends it again at this type"


@EACH_SHAPE
def test_a_response_fails_with_a_code_that_codex_understands(
    problem: Problem, openai: str, anthropic: str, failed: str
) -> None:
    value = json.loads(RESPONSES.stream_error(problem, None).split(b"data: ")[1])
    error = value["response"]["error"]
    assert error["code"] == failed
    assert error["code"] not in FINAL
    assert (error["code"] in ("rate_limit_exceeded", "server_error")) is problem.heals
    assert error["message"].startswith(problem.message)
    timed = re.search(r"Please try again in (\d+)s\.", error["message"])
    assert (timed is not None) is (failed == "rate_limit_exceeded")
    assert timed is None or int(timed[1]) == problem.retry_after_s


@EACH_SHAPE
def test_headers_say_whether_and_when(problem: Problem, openai: str, anthropic: str, failed: str) -> None:
    headers = dict(problem_headers(problem))
    assert (headers.get(b"x-should-retry") == b"false") is not problem.heals
    assert headers.get(b"retry-after") == (str(problem.retry_after_s).encode() if problem.retry_after_s else None)
    assert not (problem.retry_after_s and not problem.heals)
    if problem.status in (429, 503):
        assert problem.heals
        assert problem.retry_after_s, "Codex gives up at once without it"


@pytest.mark.parametrize("text", ["\ud83d", "\x00\n", "x" * 100_000])
def test_what_a_client_named_can_always_be_told(text: str) -> None:
    for problem in (problems.unknown_model(text, ("m",)), problems.unknown_path(text, ("/v1/models",))):
        for dialect in (CHAT, MESSAGES):
            assert len(dialect.error(problem)) < 1000
            assert dialect.stream_error(problem, None).count(b"\n\n") == 1


def test_every_problem_has_a_shape() -> None:
    text = Path(problems.__file__).read_text()
    made = re.findall(r"^def (\w+)\([^)]*\) -> Problem", text, re.MULTILINE)
    tested = Path(__file__).read_text().partition("SHAPES: ")[2].partition("# fmt: skip")[0]
    assert len(made) > 20
    assert [name for name in made if f"problems.{name}(" not in tested and f"({name}(" not in tested] == []


def test_no_constructor_is_left_out() -> None:
    text = Path(problems.__file__).read_text()
    made = [line.split("(")[0][4:] for line in text.splitlines() if line.startswith("def ") and "-> Problem" in line]
    tested = Path(__file__).read_text()
    assert [
        name for name in made if f"problems.{name}(" not in tested and f"import Problem, ordinal, {name}" not in tested
    ] == []
