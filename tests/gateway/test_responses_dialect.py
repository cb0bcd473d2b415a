"""/v1/responses: what is checked and seen, and how a stream opens, waits and fails."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest

from gateway.counting import plain_text
from gateway.dialects import Prepared
from gateway.dialects.responses import RESPONSES
from gateway.dialects.traits import Traits
from gateway.problem import Problem, engine_busy, engine_lost, engine_said
from gateway.taps import JsonTap, ResponsesTap
from tests.gateway.replies import REPLIES


def prepare(raw: bytes) -> Prepared | Problem:
    return RESPONSES.prepare(raw, orjson.loads(raw))


def prepared(**body: Any) -> Prepared:
    result = prepare(json.dumps(body).encode())
    assert isinstance(result, Prepared), result
    return result


@pytest.mark.parametrize("given", [None, "", [], {}, 5])
def test_there_is_no_request_without_an_input(given: Any) -> None:
    problem = prepare(json.dumps({"input": given}).encode())
    assert isinstance(problem, Problem)
    assert (problem.status, problem.param) == (400, "input")


CODEX = {
    "model": "m",
    "instructions": "be brief",
    "input": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "d"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "fix"}]},
        {"type": "reasoning", "summary": [], "encrypted_content": "x"},
        {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "shell", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "ok"},
    ],
    "tools": [{"type": "function", "name": "shell"}, {"type": "namespace", "tools": []}],
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "reasoning": {"summary": "auto"},
    "client_metadata": {"a": "b"},
    "prompt_cache_key": "0199",
    "parallel_tool_calls": False,
    "stream": True,
    "unknown": {"priority": 1},
}


def test_what_codex_sends_passes_as_it_is() -> None:
    raw = json.dumps(CODEX).encode()
    result = prepare(raw)
    assert isinstance(result, Prepared)
    assert result.body is raw
    assert (result.stream, result.model, result.max_tokens) == (True, "m", None)
    assert result.traits == Traits(first_text="fix", tools=True, prompt_key="0199")


def test_tools_that_are_not_the_clients_are_taken_out() -> None:
    tools = [{"type": "web_search"}, *CODEX["tools"], {"type": "custom", "name": "x"}, {"type": ["odd"]}, {}]
    result = prepare(json.dumps(CODEX | {"tools": tools}).encode())
    assert isinstance(result, Prepared)
    assert json.loads(result.body) == CODEX
    assert result.body.replace(b"[]},{", b"[]}, {").replace(b'"},{', b'"}, {') == json.dumps(CODEX).encode()


def test_a_form_of_the_answer_and_its_bound_are_seen() -> None:
    form = {"format": {"type": "json_schema", "name": "t", "schema": {}}}
    result = prepared(input="title", text=form, max_output_tokens=500, priority=9)
    assert result.traits == Traits(first_text="title", json_output=True)
    assert result.max_tokens == ("max_output_tokens", 500)
    assert b"priority" not in result.body
    assert prepared(input="x", text={"verbosity": "low"}, prompt_cache_key=5).traits == Traits(first_text="x")


def test_an_image_is_seen_wherever_it_is() -> None:
    image = {"type": "input_image", "image_url": "data:"}
    assert prepared(input=[{"role": "user", "content": [image]}]).traits.image_at == "input[0].content[0]"
    output = {"type": "function_call_output", "output": [image]}
    assert prepared(input=[output]).traits.image_at == "input[0].output[0]"


def test_a_tap_fits_what_the_engine_answers() -> None:
    request = prepared(input="x")
    assert isinstance(RESPONSES.tap(request, 200, True), ResponsesTap)
    assert isinstance(RESPONSES.tap(request, 200, False), JsonTap)
    assert isinstance(RESPONSES.tap(request, 500, True), JsonTap)


# Inside a stream


def value_of(event: bytes) -> Any:
    name, data = event.removesuffix(b"\n\n").split(b"\n")
    value = json.loads(data.removeprefix(b"data: "))
    assert name == b"event: " + value["type"].encode()
    return value


def test_a_stream_that_waits_opens_as_the_sdks_want_it() -> None:
    opening = value_of(RESPONSES.opening("r1"))
    assert (opening["type"], opening["sequence_number"]) == ("response.created", 0)
    assert (opening["response"]["id"], opening["response"]["status"]) == ("resp_r1", "queued")
    assert value_of(RESPONSES.heartbeat(3, 5)) == {"type": "ping"}


def test_our_own_events_pass_our_own_tap() -> None:
    tap = ResponsesTap()
    opening = RESPONSES.opening("r1")
    assert tap.feed(opening + RESPONSES.heartbeat(1, 2), 1.0) == opening + RESPONSES.heartbeat(1, 2)
    assert tap.feed(RESPONSES.stream_error(engine_lost("x"), tap), 1.0) == b""
    assert tap.meter.failed


def test_a_failure_follows_what_was_sent_and_names_the_same_response() -> None:
    reply = REPLIES["responses vllm"]
    tap = ResponsesTap()
    tap.feed(b"".join(event for event, _ in reply.events[:5]), 1.0)
    failed = value_of(RESPONSES.stream_error(engine_lost("it closed the connection"), tap))
    assert (failed["type"], failed["sequence_number"]) == ("response.failed", 5)
    assert (failed["response"]["id"], failed["response"]["status"]) == ("resp_1", "failed")
    assert failed["response"]["error"]["code"] == "server_error"
    assert "it closed the connection" in failed["response"]["error"]["message"]
    alone = value_of(RESPONSES.stream_error(engine_lost("x"), None))
    assert (alone["sequence_number"], alone["response"]["id"]) == (1, "resp_none")


def test_the_sdks_own_types_take_our_events() -> None:
    from openai.types.responses import ResponseCreatedEvent, ResponseFailedEvent

    created = ResponseCreatedEvent.model_validate(value_of(RESPONSES.opening("r1")))
    assert created.response.status == "queued"
    for problem in (engine_lost("x"), engine_busy(503), engine_said(400, "no", "", None)):
        failed = ResponseFailedEvent.model_validate(value_of(RESPONSES.stream_error(problem, None)))
        assert failed.response.error is not None
        assert failed.response.output == []


# For a counter that knows only plain prompts


def test_every_text_of_a_request_is_in_its_plain_form() -> None:
    plain = json.loads(plain_text(json.dumps(CODEX).encode()))
    assert plain["model"] == "m"
    lines = plain["prompt"].split("\n")
    assert lines[0] == "be brief"
    assert {"d", "fix", "shell", "{}", "ok", "x"} <= set(lines)
    assert "0199" not in plain["prompt"]
    assert json.loads(plain_text(b'{"input":"a\\ud83d","model":null}')) == {"model": None, "prompt": "a\ud83d"}
