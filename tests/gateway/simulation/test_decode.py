"""Replies that are written beside each other."""

from __future__ import annotations

from math import inf

import pytest

from gateway.simulation.agents import Agent
from gateway.simulation.decode import Decode
from gateway.simulation.pace import STUDY
from gateway.simulation.request import Request


def request(id: int, tokens: int) -> Request:
    return Request(id, Agent(0, id, f"seat-{id}"), 0.0, 0.0, 0.0, tokens)


def test_one_reply_alone_has_the_pace_of_one_stream() -> None:
    decode, one = Decode(STUDY), request(1, 101)
    assert decode.next_end_s == inf
    decode.begin(one)
    decode.set_pace(reading=False)
    assert decode.sent(one) == 1
    assert decode.next_end_s == pytest.approx(100 * 0.0079)


def test_two_share_it_and_a_prompt_that_is_read_leaves_a_twentieth() -> None:
    decode, long, short = Decode(STUDY), request(1, 1001), request(2, 101)
    decode.begin(long)
    decode.begin(short)
    decode.set_pace(reading=True)
    decode.advance(1.0)
    written = 1000 / 11 * 0.05
    assert decode.sent(short) == pytest.approx(1 + written)
    decode.set_pace(reading=False)
    assert decode.next_end_s == pytest.approx(1.0 + (100 - written) * 0.011)
    decode.advance(decode.next_end_s)
    assert decode.finish() is short
    assert decode.sent(long) == pytest.approx(101)
