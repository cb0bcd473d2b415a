"""appliance/engine/show_forms.py: what answers to tools and JSON show, whatever an engine sends."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.engine.probe_forms import Answer, counter, message
from appliance.engine.probe_seen import Streamed
from appliance.engine.show_forms import (
    TOOL,
    answered,
    called,
    hopeless,
    json_question,
    kept_to_json,
    markup,
    talks,
    tool_followup,
    tool_question,
)

CALL = {"id": "c1", "name": TOOL, "arguments": '{"city": "Paris"}'}


def reply(**more: Any) -> Streamed:
    return Streamed(0.0, **{"finish": "stop", **more})


def said(content: object, finish: str = "stop") -> Answer:
    return Answer(200, {"choices": [{"message": {"content": content}, "finish_reason": finish}]})


@pytest.mark.parametrize(
    ("one", "ok", "says"),
    [
        (reply(call=CALL, finish="tool_calls"), True, "arguments of its schema"),
        (reply(call={**CALL, "arguments": '{"city": "Pa'}, finish="length"), None, "cut"),
        (reply(call={**CALL, "arguments": '{"city": "Pa'}), False, "arguments are not those"),
        (reply(call={**CALL, "arguments": '{"town": "Paris"}'}), False, "arguments are not those"),
        (reply(call={**CALL, "name": "other"}), False, "a tool was called that there is not: other"),
        (reply(text="It is sunny."), False, "answered without a call: It is sunny."),
        (reply(text=""), False, "nothing"),
        (reply(text='<tool_call>{"name": "x"}'), False, "came as text, with <tool_call"),
        (reply(text="\uff5cDSML\uff5cinvoke", finish="length"), False, "DSML"),
        (reply(status=400, refused=b'{"error":{"message":"no tools"}}'), False, "refused with 400: no tools"),
        (reply(status=503, refused=b"{}"), None, "503"),
        (reply(refused=b'{"error":{"message":"boom"}}'), False, "boom"),
    ],
)
def test_an_answer_is_a_call_of_the_tool_or_says_why_not(one: Streamed, ok: bool | None, says: str) -> None:
    seen = called(one)
    assert seen.ok is ok
    assert says in seen.observed


@pytest.mark.parametrize(
    ("one", "ok"),
    [
        (reply(text="Sunny."), True),
        (reply(call=CALL), True),
        (reply(thought=True, finish="length"), True),
        (reply(text="[TOOL_CALLS]"), False),
        (reply(status=400, refused=b'{"error":"roles must alternate"}'), False),
        (reply(text=" "), None),
    ],
)
def test_a_result_is_answered_in_words_or_with_another_call(one: Streamed, ok: bool | None) -> None:
    assert answered(one).ok is ok


def test_a_call_comes_back_with_its_result_as_agents_send_it() -> None:
    question = tool_question("m", "auto")
    body = tool_followup(question, CALL)
    assert [turn["role"] for turn in body["messages"]] == ["user", "assistant", "tool"]
    assert body["messages"][1]["tool_calls"][0]["function"] == {"name": TOOL, "arguments": CALL["arguments"]}
    assert body["messages"][2]["tool_call_id"] == "c1"
    assert len(question["messages"]) == 1


def test_pieces_of_a_call_are_put_together() -> None:
    one = reply()
    pieces = (
        {"index": 0, "id": "c1", "function": {"name": TOOL, "arguments": ""}},
        {"index": 0, "function": {"arguments": '{"city":'}},
        {"index": 1, "id": "c2", "function": {"name": "other", "arguments": "{}"}},
        {"index": 0, "function": {"arguments": ' "Rome"}'}},
    )
    for piece in pieces:
        one.take({"choices": [{"delta": {"tool_calls": [piece]}, "finish_reason": None}]}, 1.0)
    assert one.call == {"id": "c1", "name": TOOL, "arguments": '{"city": "Rome"}'}
    assert called(one).ok


def test_no_other_way_is_tried_where_it_could_not_help() -> None:
    assert hopeless(reply(status=400, refused=b"... requires --enable-auto-tool-choice ..."))
    assert hopeless(reply(text="<tool_call>"))
    assert not hopeless(reply(text="It is sunny."))


def test_an_answer_in_words_is_left_early_and_thoughts_are_not() -> None:
    many = [0.1] * 24
    assert talks(reply(text="word", at_s=many))
    assert not talks(reply(text="word", at_s=many[:-1]))
    assert not talks(reply(text="word", at_s=many, thought=True))
    assert not talks(reply(text="word", at_s=many, call=CALL))


@pytest.mark.parametrize(
    ("one", "schema", "ok"),
    [
        (said('{"a": 1}'), False, True),
        (said('{"city": "Rome"}'), True, True),
        (said('{"city": "Oslo"}'), True, False),
        (said('{"a": 1}'), True, False),
        (said("Paris"), False, False),
        (said("[1]"), False, False),
        (said(None), False, False),
        (said('{"a": ', "length"), False, None),
        (Answer(400, {"error": {"message": "no"}}), False, False),
        (Answer(429), False, None),
        (Answer(0, why="no answer within 45 s"), True, None),
    ],
)
def test_json_is_kept_to_or_not(one: Answer, schema: bool, ok: bool | None) -> None:
    assert kept_to_json(one, schema).ok is ok


def test_only_one_of_the_two_json_questions_has_a_schema() -> None:
    assert json_question("m", schema=False)["response_format"] == {"type": "json_object"}
    assert json_question("m", schema=True)["response_format"]["json_schema"]["schema"]["required"] == ["city"]


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner), max_leaves=8))
def test_no_body_makes_the_judgement_fall_over(body: Any) -> None:
    shapes = (body, {"choices": body}, {"choices": [body]}, {"choices": [{"message": body}]}, {"error": body})
    for shape in shapes:
        kept_to_json(Answer(200, shape), schema=True)
        message(shape)
        if isinstance(shape, dict):
            one = reply()
            one.take({**shape, "usage": body}, 0.0)
            one.take({"choices": [{"delta": {"tool_calls": [body], "content": body}}]}, 0.0)
            called(one)
            _ = (one.tokens, one.prompt_tokens, one.cached_tokens)


def test_no_plain_text_has_markup() -> None:
    assert markup("Call the function <b>now</b> [and] tools") == ""


def test_a_counter_is_the_sum_over_its_labels() -> None:
    text = 'a_total{x="1"} 2.0\na_total{x="2"} 3.5\na_total_created{x="1"} 9\n# HELP a_total 7\nb_total 1\n'
    assert counter(text, "a_total") == 5.5
    assert counter(text, "b_total") == 1
    assert counter(text, "c_total") is None
    assert counter('a_total{x="} 5 \\" {"} 2 # {trace="t"} 7\na_total\t1 1796032472', "a_total") == 3


@pytest.mark.parametrize("odd", ["x", "NaN", "+Inf", "", '{x="1} 3', "{}"])
def test_a_counter_with_a_sample_that_cannot_be_read_is_not_known(odd: str) -> None:
    assert counter(f'a_total{{x="0"}} 1\na_total {odd}\n', "a_total") is None
    assert counter(f'a_total{{x="0"}} 1\na_total{odd if odd[:1] == "{" else " " + odd}\nb_total 2', "b_total") == 2


def test_a_question_is_plain_json() -> None:
    assert json.loads(json.dumps(tool_question("m", "required")))["tool_choice"] == "required"
