"""What is measured: usage as each form spells it, pace, the recorded stream of a chat, replies in one piece."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import taps
from gateway.meter import Meter, Usage, chat_usage, messages_usage, responses_usage
from gateway.taps import ChatTap, JsonTap
from tests.gateway.recording import DONE, HEAD, USAGE, USED, chunk, crlf, cut, recorded

RECORDED = recorded()
COMMENTS = {b": ping\n\n", b":\n\n", b": ping\r\n\r\n", b":\r\n\r\n"}
COUNTED = Usage(11, 7, 4)
ERROR = b'data: {"error":{"message":"EngineCore encountered an issue.","code":500}}\n\n'


def run(pieces: Iterable[bytes], *, strip: bool = False) -> tuple[bytes, ChatTap]:
    """Everything that is sent on, one piece each second from 1.0 on, and the tap."""
    tap, out, now = ChatTap(strip), b"", 0.0
    for piece in pieces:
        now += 1.0
        out += tap.feed(piece, now)
    return out + tap.finish(now), tap


def wanted(form: list[bytes], strip: bool) -> bytes:
    """What is sent on of it: no comments, and no usage that only we asked for."""
    return b"".join(event for event in (form[:-2] + form[-1:] if strip else form) if event not in COMMENTS)


@pytest.mark.parametrize("strip", [False, True])
@pytest.mark.parametrize("form", [RECORDED, crlf(RECORDED)], ids=["lf", "crlf"])
def test_a_stream_cut_anywhere_is_forwarded_and_measured_alike(form: list[bytes], strip: bool) -> None:
    stream, expected = b"".join(form), wanted(form, strip)
    for place in range(len(stream)):
        out, tap = run([stream[:place], stream[place:]], strip=strip)
        assert out == expected
        assert (tap.meter.usage, tap.whole, tap.meter.failed) == (COUNTED, True, False)


@given(st.booleans(), st.booleans(), st.lists(st.integers(0, 4000), max_size=40))
def test_many_cuts_change_nothing(with_cr: bool, strip: bool, places: list[int]) -> None:
    form = crlf(RECORDED) if with_cr else RECORDED
    tap, sent = ChatTap(strip), b""
    expected = wanted(form, strip)
    ends = {len(expected[: expected.index(event) + len(event)]) for event in form if event in expected} | {0}
    for piece in cut(b"".join(form), places):
        sent += tap.feed(piece, 1.0)
        assert len(sent) in ends
    assert sent + tap.finish(1.0) == expected
    assert (tap.meter.usage, tap.whole, tap.meter.failed) == (COUNTED, True, False)


@given(st.integers(0, len(b"".join(RECORDED)) - 1), st.booleans())
def test_a_stream_that_breaks_off_is_not_whole_and_ends_with_a_whole_event(length: int, strip: bool) -> None:
    stream = b"".join(RECORDED)
    out, tap = run([stream[:length]], strip=strip)
    assert tap.whole is stream[:length].rstrip(b"\n").endswith(b"\n\ndata: [DONE]")
    assert wanted(RECORDED, strip).startswith(out)
    assert tap.whole or out == b"" or out.endswith(b"\n\n")


def test_only_the_chunk_that_we_asked_for_is_dropped() -> None:
    no_choices = b"data: " + json.dumps({**HEAD, "choices": []}).encode() + b"\n\n"
    both = b"data: " + json.dumps({**HEAD, "choices": [{"delta": {"content": "x"}}], "usage": USAGE}).encode() + b"\n\n"
    broken = b'data: {"choices":[],"usage":{"prompt_tokens":"many"}}\n\n'
    stream = [no_choices, both, broken, b'data: {"usage":7}\n\n', b"data: [1]\n\n", b'data: "usage"\n\n']
    out, tap = run([*stream, b"data: " + USED + b"\n\n", DONE], strip=True)
    assert out == b"".join(stream) + DONE
    assert tap.meter.usage == COUNTED


def test_the_last_usage_counts() -> None:
    first = USED.replace(b'"completion_tokens":7', b'"completion_tokens":1')
    _, tap = run([b"data: " + first + b"\n\ndata: " + USED + b"\n\n"])
    assert tap.meter.usage == COUNTED


@pytest.mark.parametrize("before", [0, 3, 8])
@pytest.mark.parametrize("done", [b"", DONE])
def test_an_error_in_the_stream_is_seen_wherever_it_comes(before: int, done: bytes) -> None:
    stream = b"".join(RECORDED[:before]) + ERROR + done
    for pieces in ([stream], list(cut(stream, range(len(stream))))):
        out, tap = run(pieces)
        assert out == wanted(RECORDED[:before], False), (
            "what says that all is well is dropped, and the error is kept back"
        )
        assert json.loads(tap.meter.error)["error"]["code"] == 500
        assert tap.meter.failed is True
        assert tap.whole is False


FINISH = b'data: {"choices":[{"index":0,"delta":{},"finish_reason" : "stop"}]}\n\n'


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_an_engine_that_gives_an_answer_up_has_failed(reason: str) -> None:
    given_up = FINISH.replace(b"stop", reason.encode())
    out, tap = run([RECORDED[1], given_up, DONE])
    assert out == RECORDED[1]
    assert (tap.whole, tap.meter.failed) == (False, True)
    assert reason.encode() in tap.meter.error


def test_an_answer_that_nobody_finished_is_not_whole() -> None:
    out, tap = run([RECORDED[1], RECORDED[3], DONE])
    assert out == RECORDED[1] + RECORDED[3]
    assert not tap.whole
    bare = b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'
    assert run([bare, DONE])[1].whole, "an engine that never speaks of it"


def test_an_ending_without_its_empty_line_still_counts() -> None:
    for ending in (b"data: [DONE]", b"data: [DONE]\n", b"data:[DONE]\r\n"):
        out, tap = run([RECORDED[1], FINISH, ending])
        assert out == RECORDED[1] + FINISH + ending.rstrip() + b"\n\n", "whoever reads it needs the empty line"
        assert tap.whole


def test_half_an_event_is_dropped_so_that_an_error_can_follow() -> None:
    out, tap = run([RECORDED[1], RECORDED[3][:-1]])
    assert out == RECORDED[1]
    assert not tap.whole


def test_times_and_pace_come_from_tokens_not_from_chunks() -> None:
    stream = [RECORDED[0], RECORDED[1], *(b"data: " + chunk({"content": "a b c"}) + b"\n\n" for _ in range(3))]
    _, tap = run(stream)
    meter = tap.meter
    assert (meter.first_token_s, meter.last_token_s) == (3.0, 5.0)
    assert (meter.estimated, meter.tokens, meter.tok_per_s) == (True, 3, 1.0)
    meter.usage = Usage(1, 9, None)
    assert (meter.estimated, meter.tokens, meter.tok_per_s) == (False, 9, 4.0)


def test_a_comment_in_front_does_not_hide_an_event() -> None:
    plain = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
    _, tap = run([plain, b": ping\n\n" + plain, b"event: chunk\n" + plain, b": ping\n\n"])
    assert (tap.meter.events, tap.meter.last_token_s) == (3, 3.0)


@pytest.mark.parametrize(
    ("choice", "token"),
    [
        ({"delta": {"role": "assistant"}}, False),
        ({"delta": {"role": "assistant", "content": ""}}, False),
        ({"delta": {"content": None, "tool_calls": []}}, False),
        ({"delta": {}, "finish_reason": "stop"}, False),
        ({"delta": {"content": "x"}}, True),
        ({"delta": {"reasoning_content": "x"}}, True),
        ({"delta": {"tool_calls": [{"index": 0}]}}, True),
        ({"text": "x"}, True),
        ({"text": ""}, False),
        ("x", False),
    ],
)
def test_the_first_token_is_output(choice: object, token: bool) -> None:
    _, tap = run([b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"])
    assert (tap.meter.first_token_s is not None) is token


def test_no_pace_without_two_tokens_or_time() -> None:
    assert Meter().tok_per_s is None
    assert Meter(1.0, 1.0, 5).tok_per_s is None
    assert Meter(1.0, 2.0, 1).tok_per_s is None


@pytest.mark.parametrize(
    ("value", "usage"),
    [
        (None, None),
        ([], None),
        ({"prompt_tokens": 1}, None),
        ({"prompt_tokens": 1, "completion_tokens": "2"}, None),
        ({"prompt_tokens": 1, "completion_tokens": True}, None),
        ({"prompt_tokens": 1, "completion_tokens": -2}, None),
        ({"prompt_tokens": 2**63, "completion_tokens": 2}, None),
        ({"prompt_tokens": 1, "completion_tokens": 2}, Usage(1, 2, None)),
        ({"prompt_tokens": 1, "completion_tokens": 2, "prompt_tokens_details": None}, Usage(1, 2, None)),
        (
            {"prompt_tokens": 1, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": -1}},
            Usage(1, 2, None),
        ),
        (USAGE, COUNTED),
    ],
)
def test_usage_as_engines_spell_it(value: object, usage: Usage | None) -> None:
    assert chat_usage(value) == usage


@pytest.mark.parametrize(
    ("value", "usage"),
    [
        (None, None),
        ({"prompt_tokens": 1, "completion_tokens": 2}, None),
        ({"input_tokens": 1}, None),
        ({"input_tokens": 1, "output_tokens": 2, "input_tokens_details": []}, Usage(1, 2, None)),
        ({"input_tokens": 11, "output_tokens": 7, "input_tokens_details": {"cached_tokens": 4}}, COUNTED),
    ],
)
def test_usage_of_responses_has_the_cached_tokens_in_it(value: object, usage: Usage | None) -> None:
    assert responses_usage(value) == usage


@pytest.mark.parametrize(
    ("value", "usage"),
    [
        (None, None),
        ([], None),
        ({"input_tokens": 1}, None),
        ({"output_tokens": 1}, None),
        ({"input_tokens": None, "output_tokens": 2}, None),
        ({"input_tokens": 1, "output_tokens": 2}, Usage(1, 2, None)),
        ({"input_tokens": 7, "cache_read_input_tokens": 4, "output_tokens": 7}, COUNTED),
        (
            {
                "input_tokens": 5,
                "cache_read_input_tokens": 4,
                "cache_creation_input_tokens": 2,
                "output_tokens": 7,
            },
            COUNTED,
        ),
        ({"input_tokens": 11, "cache_read_input_tokens": None, "output_tokens": 7}, Usage(11, 7, None)),
    ],
)
def test_usage_of_messages_leaves_the_cached_tokens_out_and_the_prompt_does_not(
    value: object, usage: Usage | None
) -> None:
    assert messages_usage(value) == usage


@pytest.mark.parametrize(
    ("reply", "usage", "failed", "whole"),
    [
        (json.dumps({"choices": [], "usage": USAGE}).encode(), COUNTED, False, True),
        (b'{"error":{"message":"x"}}', None, True, True),
        (b'{"error":null}', None, False, True),
        (b'{"choices":[', None, False, False),
        (b"<html>", None, False, False),
        (b"[]", None, False, False),
        (b"", None, False, False),
    ],
)
def test_a_reply_in_one_piece(reply: bytes, usage: Usage | None, failed: bool, whole: bool) -> None:
    for status in (200, 500):
        for pieces in ([reply], list(cut(reply, range(len(reply))))):
            tap = JsonTap(status, chat_usage)
            assert b"".join(tap.feed(piece, 1.0) for piece in pieces) + tap.finish(2.0) == reply
            assert (tap.meter.usage, tap.meter.failed) == (usage, failed)
            assert tap.whole is (whole or status != 200)


ERRORS = (
    b'event: error\ndata: {"message":"x"}\n\n',
    b"event:error\r\ndata: x\r\n\r\n",
    b'data: {"object":"error","message":"x","code":500}\n\n',
    b'error: {"code":500,"message":"x"}\n\n',
)


@pytest.mark.parametrize("error", ERRORS)
def test_errors_as_engines_spell_them_are_seen_and_what_ends_well_is_dropped(error: bytes) -> None:
    stream = b"".join(RECORDED[:5]) + error
    for pieces in ([stream + DONE], [stream, DONE], list(cut(stream + DONE, range(len(stream))))):
        out, tap = run(pieces)
        assert out == wanted(RECORDED[:5], False)
        assert (tap.meter.failed, tap.whole) == (True, False)


@pytest.mark.parametrize("text", ["error: {", "event: error", '"object":"error"', '{"error": 1}'])
def test_text_about_errors_is_no_error(text: str) -> None:
    said = b"data: " + chunk({"content": text}) + b"\n\n"
    out, tap = run([*RECORDED[:4], said, b": error\n\n", FINISH, DONE])
    assert out == wanted(RECORDED[:4], False) + said + FINISH + DONE
    assert (tap.meter.failed, tap.whole) == (False, True)


def test_a_reply_too_large_to_parse_still_passes() -> None:
    tap, piece = JsonTap(200, chat_usage), b"x" * (taps.BUFFER_MAX_BYTES // 2 + 1)
    assert tap.feed(piece, 1.0) is piece
    assert tap.feed(piece, 1.0) is piece
    assert tap.finish(1.0) == b""
    assert tap.whole
    assert tap.meter.usage is None
