"""/v1/messages: what is checked and seen, what the engine gets, how a stream waits and fails."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.dialects import Prepared
from gateway.dialects.messages import MESSAGES
from gateway.dialects.rewrite import BILLING
from gateway.dialects.traits import Traits
from gateway.parsing import parse
from gateway.problem import Problem, engine_lost
from gateway.taps import JsonTap, MessagesTap

LINE = f"{BILLING} cc_version=2.1.332.58d;"
USER = {"role": "user", "content": [{"type": "text", "text": "fix it", "cache_control": {"type": "ephemeral"}}]}


def prepare(raw: bytes) -> Prepared | Problem:
    return MESSAGES.prepare(raw, parse(raw))


def prepared(**body: Any) -> Prepared:
    result = prepare(json.dumps({"messages": [USER], **body}).encode())
    assert isinstance(result, Prepared), result
    return result


@pytest.mark.parametrize("given", [None, "", "x", [], {}])
def test_there_is_no_request_without_messages(given: Any) -> None:
    problem = prepare(json.dumps({"messages": given}).encode())
    assert isinstance(problem, Problem)
    assert (problem.status, problem.param) == (400, "messages")


CLAUDE: dict[str, Any] = {
    "model": "claude-x",
    "system": [{"type": "text", "text": "You are.", "cache_control": {"type": "ephemeral"}}],
    "messages": [USER, {"role": "system", "content": "environment"}],
    "tools": [{"name": "Bash", "input_schema": {}, "defer_loading": True}],
    "thinking": {"type": "adaptive"},
    "output_config": {"effort": "high"},
    "context_management": {"edits": []},
    "metadata": {"user_id": "{}"},
    "max_tokens": 32000,
    "stream": True,
}


def test_what_claude_code_sends_passes_as_it_is_but_for_its_billing_line() -> None:
    raw = json.dumps(CLAUDE).encode()
    result = prepare(raw)
    assert isinstance(result, Prepared)
    assert result.body is raw
    assert result.traits == Traits(first_text="fix it", tools=True)
    assert (result.stream, result.model, result.max_tokens) == (True, "claude-x", ("max_tokens", 32000))
    billed = {**CLAUDE, "system": [{"type": "text", "text": LINE}, *CLAUDE["system"]]}
    other = prepare(json.dumps(billed).encode())
    assert isinstance(other, Prepared)
    assert json.loads(other.body) == CLAUDE


def test_everything_at_once() -> None:
    hosted = {"type": "web_search_20250305", "name": "web_search"}
    result = prepared(system=LINE + "\nx", tools=[hosted, CLAUDE["tools"][0]], priority=1, id_slot=3)
    assert json.loads(result.body) == {"messages": [USER], "system": "x", "tools": CLAUDE["tools"]}


@pytest.mark.parametrize(
    "more", [{"output_config": {"format": {"type": "json_schema"}}}, {"output_format": {"type": "json_schema"}}]
)
def test_a_title_call_is_seen(more: dict[str, Any]) -> None:
    assert prepared(tools=[], **more).traits == Traits(first_text="fix it", json_output=True)


def test_a_partial_turn_and_an_image_are_seen() -> None:
    partial = {"role": "assistant", "content": [{"type": "text", "text": "{"}]}
    assert prepared(messages=[USER, partial]).traits.continues_at == "messages[1]"
    image = {"role": "user", "content": [{"type": "tool_result", "content": [{"type": "image"}]}]}
    assert prepared(messages=[USER, image]).traits.image_at == "messages[1].content[0].content[0]"


def test_half_a_character_is_no_obstacle() -> None:
    raw = b'{"system":"%s\\nx","messages":[{"role":"user","content":"\\ud83d"}]}' % LINE.encode()
    result = prepare(raw)
    assert isinstance(result, Prepared)
    assert result.body == b'{"system":"x","messages":[{"role":"user","content":"\\ud83d"}]}'


def test_a_tap_fits_what_the_engine_answers() -> None:
    request = prepared()
    assert isinstance(MESSAGES.tap(request, 200, True), MessagesTap)
    assert isinstance(MESSAGES.tap(request, 200, False), JsonTap)
    assert isinstance(MESSAGES.tap(request, 529, True), JsonTap)


def test_a_stream_waits_with_pings_and_fails_with_an_error_event() -> None:
    assert MESSAGES.opening("r") == b""
    assert MESSAGES.heartbeat(2, 5) == b'event: ping\ndata: {"type":"ping"}\n\n'
    event = MESSAGES.stream_error(engine_lost('"line"\n\nbreak'), None)
    assert event.count(b"\n\n") == 1
    tap = MessagesTap()
    assert tap.feed(MESSAGES.heartbeat(0, 0) + event, 1.0) == MESSAGES.heartbeat(0, 0)
    assert tap.meter.failed
    told = json.loads(tap.meter.error)
    assert (told["type"], told["error"]["type"]) == ("error", "overloaded_error")
