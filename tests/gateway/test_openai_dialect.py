"""The OpenAI forms: what is refused, what the engine gets, how problems are spelled."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects import Prepared
from gateway.dialects.openai import CHAT, COMPLETIONS, OpenAI
from gateway.dialects.traits import Traits
from gateway.problem import Problem, bad_request, engine_lost
from gateway.taps import ChatTap, JsonTap

MESSAGES = [{"role": "user", "content": "hi"}]


def prepare(dialect: OpenAI, raw: bytes) -> Prepared | Problem:
    return dialect.prepare(raw, orjson.loads(raw))


def prepared(raw: bytes, dialect: OpenAI = CHAT) -> Prepared:
    result = prepare(dialect, raw)
    assert isinstance(result, Prepared), result
    return result


# What is forwarded

BLANKS = st.text(" \n\t", max_size=2).map(str.encode)
FLAGS = st.sampled_from([b"true", b"false", b"null", b"1", b"0"])


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """A body that passes the checks, spelled in any way, with repeated and escaped keys."""
    members = [b'"messages":[{"role":"user","content":"\\"stream_options\\":{} 1.0 \\u00e9"}]']
    members += draw(st.lists(st.sampled_from([b'"temperature":1.0', b'"top_p" : 1e-1', b'"seed":0.10']), unique=True))
    if draw(st.booleans()):
        members.append(b'"metadata":{"stream":true,"stream_options":{"include_usage":true}}')
    for _ in range(draw(st.integers(0, 2))):
        members.append(b'"stream":' + draw(st.sampled_from([b"true", b"true", b"false", b"null"])))
    for _ in range(draw(st.integers(0, 2))):
        key = draw(st.sampled_from([b'"stream_options"', b'"stream\\u005foptions"', b'"stream\\u005Foptions"']))
        inner = draw(st.sampled_from([b"", b'"include_usage":' + draw(FLAGS), b'"other":[1,{"a":null}]']))
        value = b"null" if draw(st.integers(0, 4)) == 0 else b"{" + draw(BLANKS) + inner + b"}"
        members.append(key + draw(BLANKS) + b":" + draw(BLANKS) + value)
    gap = draw(BLANKS)
    return gap + b"{" + gap + (draw(BLANKS) + b"," + gap).join(draw(st.permutations(members))) + b"}" + gap


@given(bodies())
def test_a_stream_always_asks_for_usage_and_nothing_else_changes(raw: bytes) -> None:
    before = json.loads(raw)
    result = prepared(raw)
    after = json.loads(result.body)
    options = before.get("stream_options")
    asked = isinstance(options, dict) and options.get("include_usage") is True
    assert result.stream is (before.get("stream") is True)
    assert result.strip_usage is not asked
    if result.stream:
        assert after["stream_options"]["include_usage"] is True
        assert after == before | {"stream_options": {**(options or {}), "include_usage": True}}
    if asked or not result.stream:
        assert result.body is raw
    for spelling in (b'"temperature":1.0', b'"top_p" : 1e-1', b'"seed":0.10'):
        assert (spelling in result.body) is (spelling in raw)


@pytest.mark.parametrize(
    ("raw", "forwarded"),
    [
        (b'{"messages":[1],"stream":true}', b'{"stream_options":{"include_usage":true},"messages":[1],"stream":true}'),
        (
            b'{"messages":[1],"stream":true,"stream_options": null }',
            b'{"messages":[1],"stream":true,"stream_options": {"include_usage":true} }',
        ),
        (
            b'{"messages":[1],"stream":true,"stream_options":{"include_usage":false, "x":1e2}}',
            b'{"messages":[1],"stream":true,"stream_options":{"include_usage":true, "x":1e2}}',
        ),
        (
            b'{"stream_options":{},"messages":[1],"stream":true,"stream\\u005foptions":{}}',
            b'{"stream_options":{},"messages":[1],"stream":true,"stream\\u005foptions":{"include_usage":true}}',
        ),
        (
            b'{"messages":[1],"stream":true,"stream_options":{"include_usage":true}}',
            b'{"messages":[1],"stream":true,"stream_options":{"include_usage":true}}',
        ),
        (b' {"messages":[1.0], "stream":false}\n', b' {"messages":[1.0], "stream":false}\n'),
    ],
)
def test_what_the_engine_gets(raw: bytes, forwarded: bytes) -> None:
    assert prepared(raw).body == forwarded


def test_the_model_is_passed_on_when_there_is_one() -> None:
    assert prepared(b'{"messages":[1],"model":"m"}').model == "m"
    assert prepared(b'{"messages":[1]}').model is None
    assert prepared(b'{"prompt":"x","model":null}', COMPLETIONS).model is None


# What is refused

PASSES: list[tuple[OpenAI, dict[str, Any]]] = [
    (CHAT, {"messages": MESSAGES}),
    (CHAT, {"messages": MESSAGES, "n": 1, "best_of": None, "n_cmpl": 1}),
    (CHAT, {"messages": MESSAGES, "use_beam_search": False, "background": None}),
    (CHAT, {"messages": MESSAGES, "stream": None, "stream_options": None, "model": None}),
    (CHAT, {"messages": MESSAGES, "max_tokens": 0, "max_completion_tokens": 5}),
    (CHAT, {"messages": MESSAGES, "temperature": "hot", "unknown": [1]}),
    (COMPLETIONS, {"prompt": "x"}),
    (COMPLETIONS, {"prompt": ["x"]}),
    (COMPLETIONS, {"prompt": [1, 2, 3]}),
    (COMPLETIONS, {"prompt": [[1, 2, 3]]}),
]
REFUSED: list[tuple[OpenAI, dict[str, Any], str, str]] = [
    (CHAT, {}, "messages", "missing"),
    (CHAT, {"prompt": "x"}, "messages", "missing"),
    (CHAT, {"messages": None}, "messages", "missing"),
    (CHAT, {"messages": []}, "messages", "at least one"),
    (CHAT, {"messages": "hi"}, "messages", "list"),
    (CHAT, {"messages": {}}, "messages", "list"),
    (COMPLETIONS, {"messages": MESSAGES}, "prompt", "missing"),
    (COMPLETIONS, {"prompt": ["a", "b"]}, "prompt", "one sequence"),
    (COMPLETIONS, {"prompt": [[1], [2]]}, "prompt", "one sequence"),
    (CHAT, {"messages": MESSAGES, "n": 4}, "n", "n=4"),
    (CHAT, {"messages": MESSAGES, "n": 0}, "n", "n=0"),
    (CHAT, {"messages": MESSAGES, "n": True}, "n", "whole number"),
    (CHAT, {"messages": MESSAGES, "n": "1"}, "n", "whole number"),
    (CHAT, {"messages": MESSAGES, "n": 1.0}, "n", "whole number"),
    (COMPLETIONS, {"prompt": "x", "best_of": 2}, "best_of", "best_of=2"),
    (CHAT, {"messages": MESSAGES, "n_cmpl": 2}, "n_cmpl", "n_cmpl=2"),
    (CHAT, {"messages": MESSAGES, "use_beam_search": True}, "use_beam_search", "one sequence"),
    (CHAT, {"messages": MESSAGES, "background": True}, "background", "outlive"),
    (CHAT, {"messages": MESSAGES, "stream": "true"}, "stream", "true or false"),
    (CHAT, {"messages": MESSAGES, "stream": 1}, "stream", "true or false"),
    (CHAT, {"messages": MESSAGES, "stream_options": []}, "stream_options", "object"),
    (CHAT, {"messages": MESSAGES, "model": 5}, "model", "string"),
    (CHAT, {"messages": MESSAGES, "max_tokens": -1}, "max_tokens", "0 or more"),
    (CHAT, {"messages": MESSAGES, "max_tokens": True}, "max_tokens", "whole number"),
    (CHAT, {"messages": MESSAGES, "max_completion_tokens": 1.5}, "max_completion_tokens", "whole number"),
]


@pytest.mark.parametrize(("dialect", "body"), PASSES)
def test_what_the_gateway_need_not_know_is_left_to_the_engine(dialect: OpenAI, body: dict[str, Any]) -> None:
    raw = json.dumps(body).encode()
    assert prepared(raw, dialect).body is raw


@pytest.mark.parametrize(("dialect", "body", "field", "said"), REFUSED)
def test_a_refusal_names_the_field(dialect: OpenAI, body: dict[str, Any], field: str, said: str) -> None:
    problem = prepare(dialect, json.dumps(body).encode())
    assert isinstance(problem, Problem)
    assert (problem.status, problem.param, problem.heals) == (400, field, False)
    assert said in problem.message
    assert field in problem.message


# What clients are told


def test_an_error_has_the_shape_that_sdks_read() -> None:
    told = json.loads(CHAT.error(bad_request("x is wrong", "x")))
    assert told == {
        "error": {"message": "x is wrong", "type": "invalid_request_error", "param": "x", "code": "invalid_request"}
    }


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (408, "timeout_error"),
        (413, "invalid_request_error"),
        (415, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "server_error"),
        (502, "server_error"),
        (503, "service_unavailable_error"),
        (504, "server_error"),
    ],
)
def test_the_type_follows_the_status(status: int, kind: str) -> None:
    assert json.loads(CHAT.error(Problem(status, "c", "m")))["error"]["type"] == kind


def test_an_error_in_a_stream_is_one_event_that_our_own_tap_sees() -> None:
    event = CHAT.stream_error(engine_lost('"line"\n\nbreak'), None)
    assert event.count(b"\n\n") == 1
    tap = ChatTap(False)
    assert tap.feed(event, 1.0) == b""
    assert tap.meter.failed
    assert b"data: " + tap.meter.error + b"\n\n" == event
    assert not tap.whole


def test_heartbeats_are_comments() -> None:
    assert CHAT.heartbeat(2, 5) == b": queued position=2 of=5\n\n"
    assert CHAT.heartbeat(0, 0) == b": reading the prompt\n\n"


def test_a_tap_fits_what_the_engine_answers() -> None:
    request = prepared(b'{"messages":[1],"stream":true}')
    assert isinstance(CHAT.tap(request, 200, True), ChatTap)
    assert isinstance(CHAT.tap(request, 200, False), JsonTap)
    assert isinstance(CHAT.tap(request, 500, True), JsonTap)


def test_options_longer_than_any_are_refused() -> None:
    raw = b'{"messages":[1],"stream":true,"stream_options":{"a":"%s"}}' % (b"x" * 70_000)
    found = CHAT.prepare(raw, json.loads(raw))
    assert isinstance(found, Problem)
    assert (found.status, found.heals) == (400, False)
    assert "longer than 65536 bytes" in found.message


def test_what_acts_on_the_engine_is_dropped_and_usage_asked_for() -> None:
    raw = b'{"priority":-5,"messages":[1],"cache_salt":"x","stream":true,"id_slot":1}'
    assert prepared(raw).body == b'{"stream_options":{"include_usage":true},"messages":[1],"stream":true}'


def test_what_is_known_of_a_conversation() -> None:
    form = {"type": "json_schema", "json_schema": {}}
    fields = {"tools": [{"type": "function"}], "response_format": form, "prompt_cache_key": "k", "max_tokens": 5}
    messages = [{"role": "system", "content": "s"}, *MESSAGES, {"role": "assistant", "content": "par"}]
    raw = json.dumps({"messages": messages, "continue_final_message": True, **fields}).encode()
    found = prepared(raw)
    assert found.max_tokens == ("max_tokens", 5)
    assert found.traits == Traits(
        first_text="hi", continues_at="messages[2]", continues_asked=True, tools=True, json_output=True, prompt_key="k"
    )
    assert prepared(b'{"messages":[1],"functions":[{}]}').traits.tools
    assert prepared(b'{"messages":[1],"tools":[]}').traits == Traits()
    assert prepared(b'{"prompt":"abc"}', COMPLETIONS).traits == Traits(first_text="abc")


def test_the_bound_of_the_answer_that_the_engine_would_take_is_known() -> None:
    assert prepared(b'{"messages":[1],"max_tokens":7,"max_completion_tokens":9}').max_tokens == (
        "max_completion_tokens",
        9,
    )
    assert prepared(b'{"messages":[1],"max_tokens":0}').max_tokens is None
