"""What is sent on, measured and stripped does not depend on how the bytes arrived, in any form."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.meter import Usage, responses_usage
from gateway.sse import HELD_MAX_BYTES
from gateway.taps import BUFFER_MAX_BYTES, ChatTap, EventTap, JsonTap, MessagesTap, ResponsesTap
from tests.gateway.recording import cut
from tests.gateway.replies import DONE, REPLIES, TRICKY, Reply, named

EACH = pytest.mark.parametrize("reply", REPLIES.values(), ids=REPLIES.keys())
LINES = pytest.mark.parametrize("crlf", [False, True], ids=["lf", "crlf"])
COMMENTS = pytest.mark.parametrize("comments", [False, True], ids=["", "comments"])


def run(tap: EventTap, pieces: Iterable[bytes]) -> bytes:
    """Everything that is sent on, one piece each second from 1.0 on."""
    out, now_s = b"", 0.0
    for piece in pieces:
        now_s += 1.0
        out += tap.feed(piece, now_s)
    return out + tap.finish(now_s)


def ended(reply: Reply, tap: EventTap) -> None:
    assert (tap.whole, tap.meter.failed) == (not reply.failed, reply.failed)
    assert tap.meter.usage == reply.usage
    assert tap.meter.events == reply.tokens
    assert (tap.meter.first_token_s is not None) is (reply.tokens > 0)


@EACH
@LINES
@COMMENTS
def test_a_stream_split_at_any_byte_is_forwarded_and_measured_alike(reply: Reply, crlf: bool, comments: bool) -> None:
    came, kept = reply.stream(crlf=crlf, comments=comments)
    for place in range(len(came) + 1):
        tap = reply.tap()
        assert run(tap, [came[:place], came[place:]]) == kept
        ended(reply, tap)


@EACH
@LINES
def test_a_stream_that_comes_byte_by_byte_is_the_same(reply: Reply, crlf: bool) -> None:
    came, kept = reply.stream(crlf=crlf, comments=True)
    tap = reply.tap()
    assert run(tap, (came[at : at + 1] for at in range(len(came)))) == kept
    ended(reply, tap)


@given(
    st.sampled_from(list(REPLIES.values())), st.booleans(), st.booleans(),
    st.lists(st.integers(0, 4000), max_size=40),
)  # fmt: skip
def test_many_cuts_change_nothing(reply: Reply, crlf: bool, comments: bool, places: list[int]) -> None:
    came, kept = reply.stream(crlf=crlf, comments=comments)
    events = [event.replace(b"\n", b"\r\n") if crlf else event for event, keep in reply.events if keep]
    ends, at = {0}, 0
    for event in events:
        at += len(event)
        ends.add(at)
    tap, sent = reply.tap(), b""
    for piece in cut(came, places):
        sent += tap.feed(piece, 1.0)
        assert len(sent) in ends, "only whole events are sent on"
    assert sent + tap.finish(1.0) == kept
    ended(reply, tap)


@given(st.sampled_from(list(REPLIES.values())), st.booleans(), st.integers(0, 4000))
def test_a_stream_that_breaks_off_is_whole_only_behind_its_last_event(reply: Reply, crlf: bool, length: int) -> None:
    came, kept = reply.stream(crlf=crlf, comments=False)
    tap = reply.tap()
    out = run(tap, [came[:length]])
    assert kept.startswith(out)
    assert tap.whole is (out.rstrip() == kept.rstrip() and not reply.failed)
    assert tap.whole or not out or out.endswith(b"\r\n\r\n" if crlf else b"\n\n")


@EACH
def test_what_an_engine_says_of_its_failure_is_kept_for_the_gateway_to_tell(reply: Reply) -> None:
    tap = reply.tap()
    came, kept = reply.stream(crlf=False, comments=False)
    run(tap, [came])
    assert bool(tap.meter.error) is reply.failed
    if reply.failed:
        assert json.loads(tap.meter.error)
        assert tap.meter.error in came
        assert tap.meter.error not in kept


def test_nothing_is_sent_behind_an_error_however_late_it_comes() -> None:
    tap = ChatTap(False)
    token = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
    assert tap.feed(token, 1.0) == token
    assert tap.feed(b'data: {"error":{"message":"no"}}\n\n', 2.0) == b""
    assert tap.feed(token, 3.0) == b""
    assert tap.finish(4.0) == b""
    assert (tap.meter.events, tap.meter.last_token_s) == (1, 1.0)


def test_a_comment_inside_of_an_event_stays_with_it() -> None:
    tap = ChatTap(False)
    event = b': note\ndata: {"choices":[{"delta":{"content":"x"}}]}\n\n'
    assert tap.feed(b":\n\n" + event + b": a\n: b\n\n\n\n", 1.0) == event
    assert tap.meter.events == 1


def test_events_that_no_form_knows_pass() -> None:
    values = (b"[1]", b'"x"', b"{", b'{"type":7}', b'{"type":["error"],"error":null}', b'{"response":5}')
    odd = [b"event: new\n\n", b"id: 7\nretry: 9\n\n", *(b"data: %s\n\n" % value for value in values)]
    for tap in (ChatTap(True), MessagesTap(), ResponsesTap()):
        assert run(tap, [b"".join(odd) + b"data: x\n\n"]) == b"".join(odd) + b"data: x\n\n"
        assert (tap.whole, tap.meter.failed, tap.meter.usage) == (False, False, None)


def test_text_is_no_error_in_any_form() -> None:
    for tap, value in (
        (MessagesTap(), {"type": "content_block_delta", "delta": {"text": TRICKY}}),
        (ResponsesTap(), {"type": "response.output_text.delta", "delta": TRICKY}),
    ):
        event = named(value)
        assert run(tap, [event * 3]) == event * 3
        assert not tap.meter.failed


def test_a_message_that_stops_without_a_reason_is_not_whole() -> None:
    tap = MessagesTap()
    stop = named({"type": "message_stop"})
    begun = named({"type": "message_start", "message": {"id": "msg_1"}})
    nothing = named({"type": "message_delta", "delta": {"stop_reason": None}, "usage": {"output_tokens": 1}})
    assert run(tap, [begun, nothing, stop]) == begun + nothing
    assert not tap.whole


def test_a_tool_call_of_claude_has_its_id_in_the_meter() -> None:
    for reply, id in (("messages tools", "msg_1"), ("responses vllm", "resp_1")):
        tap = REPLIES[reply].tap()
        run(tap, [REPLIES[reply].stream(crlf=False, comments=False)[0]])
        assert tap.meter.reply_id == id


def test_the_number_of_the_last_event_that_was_sent_is_known() -> None:
    reply = REPLIES["responses vllm"]
    events = [event for event, _ in reply.events]
    tap = ResponsesTap()
    assert tap.sequence == 0
    for number, event in enumerate(events[:6]):
        tap.feed(event[:20], 1.0)
        assert tap.sequence == max(0, number - 1)
        tap.feed(event[20:], 1.0)
        assert tap.sequence == number
    bare = ResponsesTap()
    bare.feed(b"".join(event for event, _ in REPLIES["responses llama.cpp"].events[:5]), 1.0)
    assert bare.sequence == 0


def test_an_event_above_the_limit_passes_and_the_rest_is_measured() -> None:
    reply = REPLIES["chat vllm"]
    large = b'data: {"choices":[{"delta":{"content":"' + b"x" * HELD_MAX_BYTES + b'"}}]}\n\n'
    came = b"".join([*(event for event, _ in reply.events[:2]), large, *(event for event, _ in reply.events[2:])])
    for size in (65_536, 1_000_003):
        tap = reply.tap()
        out = run(tap, cut(came, range(0, len(came), size)))
        assert out == came.replace(reply.events[-2][0], b"")
        assert (tap.meter.usage, tap.whole) == (reply.usage, True)


@pytest.mark.parametrize("name", ["chat vllm", "messages vllm", "responses vllm"])
def test_an_ending_without_its_empty_line_still_counts(name: str) -> None:
    reply = REPLIES[name]
    came, kept = reply.stream(crlf=False, comments=False)
    came = came if name == "chat vllm" else came.removesuffix(DONE)
    for line in (b"", b"\n"):
        tap = reply.tap()
        assert run(tap, [came.removesuffix(b"\n\n") + line]) == kept, "whoever reads it needs the empty line"
        assert (tap.whole, tap.meter.usage) == (True, reply.usage)


def test_pace_is_of_tokens_in_each_form() -> None:
    for name in ("messages llama.cpp", "responses llama.cpp"):
        reply = REPLIES[name]
        tap = reply.tap()
        out = run(tap, [event for event, _ in reply.events])
        assert out == reply.stream(crlf=False, comments=False)[1]
        meter = tap.meter
        first_s, last_s = (3.0, 6.0) if name[0] == "m" else (4.0, 7.0)
        assert (meter.first_token_s, meter.last_token_s) == (first_s, last_s), "until it ends"
        assert (meter.tokens, meter.estimated, meter.tok_per_s) == (7, False, 6 / (last_s - first_s))


def test_a_whole_response_is_read_with_its_own_usage() -> None:
    usage = {"input_tokens": 11, "output_tokens": 7, "input_tokens_details": {"cached_tokens": 4}}
    body = json.dumps({"object": "response", "error": None, "usage": usage}).encode()
    tap = JsonTap(200, responses_usage)
    assert tap.feed(body, 1.0) is body
    assert tap.finish(1.0) == b""
    assert (tap.whole, tap.meter.failed, tap.meter.usage) == (True, False, Usage(11, 7, 4))


def test_a_reply_too_large_to_parse_is_whole_when_it_was_framed() -> None:
    for framed in (True, False):
        tap = JsonTap(200, responses_usage)
        tap.feed(b"x" * (BUFFER_MAX_BYTES + 1), 1.0)
        tap.finish(1.0, framed=framed)
        assert (tap.whole, tap.meter.usage) == (framed, None)
