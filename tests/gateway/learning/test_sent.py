"""gateway.learning.sent: tokens of a reply that is not over."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission_types import Sent
from gateway.learning.sent import PER_EVENT_MAX, PER_EVENT_MIN, SentEstimate
from gateway.meter import Meter, Usage
from gateway.taps import ChatTap, MessagesTap, ResponsesTap

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"


def meter(events: int, tokens: int | None = None, last_s: float | None = 5.0) -> Meter:
    usage = None if tokens is None else Usage(100, tokens, None)
    return Meter(first_token_s=1.0 if last_s else None, last_token_s=last_s, events=events, usage=usage)


def test_an_event_is_a_token_until_something_is_learned() -> None:
    assert SentEstimate().of(CHAT, meter(40)) == Sent(40.0, 5.0)


def test_several_tokens_an_event_are_learned_for_each_path() -> None:
    sent = SentEstimate()
    for _ in range(20):
        sent.learn(CHAT, meter(100, 300))
    assert sent.per_event(CHAT) == pytest.approx(3.0, rel=0.02)
    assert sent.per_event(MESSAGES) == 1.0
    found = sent.of(CHAT, meter(50))
    assert found is not None
    assert found.tokens == pytest.approx(150, rel=0.02)


def test_another_start_of_the_engine_begins_anew() -> None:
    sent = SentEstimate()
    sent.engine_started("one")
    sent.learn(CHAT, meter(1000, 3000))
    sent.engine_started("one")
    assert sent.per_event(CHAT) > 2
    sent.engine_started("two")
    assert sent.per_event(CHAT) == 1.0


def test_usage_in_between_is_exact_and_one_from_the_beginning_is_not() -> None:
    sent = SentEstimate()
    assert sent.of(CHAT, meter(40, 131)) == Sent(131.0, 5.0)
    assert sent.of(CHAT, meter(400, 0)) == Sent(400.0, 5.0)
    assert sent.of(CHAT, meter(400, 1)) == Sent(400.0, 5.0)


def test_nothing_is_known_before_the_first_token_nor_of_a_reply_in_one_piece() -> None:
    assert SentEstimate().of(CHAT, meter(0, None, None)) is None
    assert SentEstimate().of(CHAT, Meter(first_token_s=1.0)) is None


def test_a_reply_without_usage_or_events_teaches_nothing() -> None:
    sent = SentEstimate()
    for nothing in (meter(100), meter(0, 50), meter(100, 0)):
        sent.learn(CHAT, nothing)
    assert sent.per_event(CHAT) == 1.0


@given(st.lists(st.tuples(st.integers(-5, 10**6), st.integers(-5, 10**9)), max_size=30))
def test_tokens_an_event_stay_within_bounds(replies: list[tuple[int, int]]) -> None:
    sent = SentEstimate()
    for events, tokens in replies:
        sent.learn(CHAT, meter(events, tokens))
    assert PER_EVENT_MIN <= sent.per_event(CHAT) <= PER_EVENT_MAX


def test_the_latest_replies_count_most() -> None:
    sent = SentEstimate()
    for _ in range(100):
        sent.learn(CHAT, meter(400, 400))
    for _ in range(30):
        sent.learn(CHAT, meter(400, 1600))
    assert sent.per_event(CHAT) == pytest.approx(4.0, rel=0.1)


def test_reasoning_and_tool_calls_are_events_of_every_tap() -> None:
    chat = ChatTap(strip_usage=False)
    for delta in (b'{"reasoning_content":"a"}', b'{"tool_calls":[{"index":0}]}', b'{"content":"b"}'):
        chat.feed(b'data: {"choices":[{"delta":%b,"finish_reason":null}]}\n\n' % delta, 1.0)
    messages = MessagesTap()
    for kind in (b"thinking_delta", b"input_json_delta", b"text_delta"):
        messages.feed(b'data: {"type":"content_block_delta","delta":{"type":"%b"}}\n\n' % kind, 1.0)
    responses = ResponsesTap()
    for kind in (b"response.reasoning_text", b"response.function_call_arguments", b"response.output_text"):
        responses.feed(b'data: {"type":"%b.delta","delta":"x"}\n\n' % kind, 1.0)
    assert [tap.meter.events for tap in (chat, messages, responses)] == [3, 3, 3]
