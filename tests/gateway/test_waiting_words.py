"""gateway.waiting: why a request waits, in words."""

from __future__ import annotations

import pytest

from gateway.admission_types import Wait, WaitKind
from gateway.waiting import prompt_of, said, told

LONG = 128_300


@pytest.mark.parametrize(
    ("wait", "words"),
    [
        (Wait(WaitKind.HELD), "the operator paused this box"),
        (Wait(WaitKind.SEAT_BUSY), "your seat has as many streams as it may"),
        (Wait(WaitKind.STREAMS_BUSY, 5.6), "all streams are busy, the next is free in about 6 s"),
        (Wait(WaitKind.STREAMS_BUSY), "all streams are busy"),
        (
            Wait(WaitKind.READING, 49.0, LONG, own=True),
            "it is long, and a ~128K prompt of your own seat is being read; the next long one may follow in about 49 s",
        ),
        (
            Wait(WaitKind.SPACING, 22.2),
            "it is long, and the last long prompt was not long ago; the next long one may follow in about 22 s",
        ),
        (Wait(WaitKind.QUIET, 0.2), "it is long and comes next: running answers end first, about 1 s"),
        (Wait(WaitKind.GATE, 14.0, LONG), "a ~128K prompt of another seat is read first, about 14 s"),
        (Wait(WaitKind.GATE, 14.0, LONG, own=True), "a ~128K prompt of your own seat is read first, about 14 s"),
        (Wait(WaitKind.COLD_LINE, None, None), "it is long, and a long prompt of another seat is read first"),
        (Wait(WaitKind.PACE), "a running answer would fall behind its pace"),
        (Wait(WaitKind.ORDER), "others go first"),
    ],
)
def test_the_person_is_told_in_a_clause_and_never_whose_prompt_it_is(wait: Wait, words: str) -> None:
    assert said(wait) == words


def test_the_operator_is_told_whose_prompt_it_is() -> None:
    assert told(Wait(WaitKind.GATE, 14.0, LONG), "ana") == "a ~128K prompt of ana is read first, about 14 s"
    assert told(Wait(WaitKind.GATE, 14.0, LONG, own=True), "ana") == "a ~128K prompt of ana is read first, about 14 s"
    assert told(Wait(WaitKind.SEAT_BUSY), "") == "its seat has as many streams as it may"


@pytest.mark.parametrize("kind", WaitKind)
def test_there_is_a_clause_for_every_kind(kind: WaitKind) -> None:
    for words in (said(Wait(kind, 3.0, LONG)), told(Wait(kind, 3.0, LONG), "ana")):
        assert words[0].islower()
        assert not words.endswith(".")


def test_a_prompt_has_no_fewer_than_a_thousand_tokens() -> None:
    assert prompt_of(12, "ana") == "a ~1K prompt of ana"
