"""Events come out whole and unchanged, however the stream was cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.sse import HELD_MAX_BYTES, Framer, at_boundary, data_of, events, is_comment, names_error
from tests.gateway.recording import crlf, cut, recorded

RECORDED = recorded()
FORMS = pytest.mark.parametrize("form", [RECORDED, crlf(RECORDED)], ids=["lf", "crlf"])


def boundaries(form: list[bytes]) -> set[int]:
    places, at = {0}, 0
    for event in form:
        at += len(event)
        places.add(at)
    return places


@FORMS
def test_a_stream_cut_anywhere_gives_whole_events_as_soon_as_they_are_there(form: list[bytes]) -> None:
    stream, whole = b"".join(form), boundaries(form)
    for place in range(len(stream) + 1):
        framer = Framer()
        first = framer.feed(stream[:place])
        assert len(first) == max(at for at in whole if at <= place)
        assert first + framer.feed(stream[place:]) == stream
        assert framer.rest() == b""


@FORMS
def test_byte_by_byte_each_event_leaves_with_its_last_byte(form: list[bytes]) -> None:
    framer = Framer()
    out = [framer.feed(bytes([byte])) for byte in b"".join(form)]
    assert [block for block in out if block] == form


@given(st.booleans(), st.lists(st.integers(0, 4000), max_size=40))
def test_many_cuts_change_nothing(with_cr: bool, places: list[int]) -> None:
    form = crlf(RECORDED) if with_cr else RECORDED
    framer, whole, at = Framer(), boundaries(form), 0
    for piece in cut(b"".join(form), places):
        at += len(framer.feed(piece))
        assert at in whole
    assert at == len(b"".join(form))


@FORMS
def test_a_block_is_taken_apart_into_its_events(form: list[bytes]) -> None:
    assert list(events(b"".join(form))) == form
    assert list(events(b"")) == []


def test_both_line_ends_in_one_stream() -> None:
    mixed = [b"data: 1\r\n\r\n", b"data: 2\n\n", b"data: 3\r\n\r\n"]
    assert Framer().feed(b"".join(mixed)) == b"".join(mixed)
    assert list(events(b"".join(mixed))) == mixed


def test_what_has_no_ending_is_held_and_given_back_once() -> None:
    framer = Framer()
    assert framer.feed(b"data: 1\n\ndata: 2\n") == b"data: 1\n\n"
    assert framer.rest() == b"data: 2\n"
    assert framer.rest() == b""
    assert list(events(b"data: 1\n\ndata: 2")) == [b"data: 1\n\n", b"data: 2"]


def test_an_event_above_the_limit_passes_in_pieces() -> None:
    framer = Framer()
    piece = b"data: " + b"x" * (HELD_MAX_BYTES // 2)
    assert framer.feed(piece) == b""
    assert framer.feed(piece) == piece * 2
    assert framer.feed(b"end") == b""
    assert framer.feed(b"\n\ndata: 1\n\ndata") == b"end\n\ndata: 1\n\n"


def test_an_event_up_to_the_limit_is_held() -> None:
    framer = Framer()
    event = b"data: ".ljust(HELD_MAX_BYTES - 2, b"x") + b"\n\n"
    assert framer.feed(event[:-1]) == b""
    assert framer.feed(event[-1:]) == event


@pytest.mark.parametrize(
    ("event", "data"),
    [
        (b"data: x\n\n", b"x"),
        (b"data:x\r\n\r\n", b"x"),
        (b"data:  x \n\n", b" x "),
        (b"data: a\ndata:b\n\n", b"a\nb"),
        (b"event: e\nid: 1\ndata: a\n\n", b"a"),
        (b": data: x\n\n", b""),
        (b"data:\n\n", b""),
        (b"database: x\n\n", b""),
        (b"data: a\xe2\x80\xa8\x0b\x0cdata: b\n\n", b"a\xe2\x80\xa8\x0b\x0cdata: b"),
        (b"\n\n", b""),
    ],
)
def test_data_of_an_event(event: bytes, data: bytes) -> None:
    assert data_of(event) == data


@pytest.mark.parametrize(
    ("event", "comment"),
    [
        (b": ping\n\n", True),
        (b":\r\n\r\n", True),
        (b": a\n:b\n\n", True),
        (b"\n\n", True),
        (b": a\ndata: x\n\n", False),
        (b"event: ping\n\n", False),
        (b" : a\n\n", False),
    ],
)
def test_a_comment_has_nothing_else(event: bytes, comment: bool) -> None:
    assert is_comment(event) is comment


@pytest.mark.parametrize(
    ("event", "error"),
    [
        (b"event: error\ndata: x\n\n", True),
        (b"event:error\r\n\r\n", True),
        (b"error: {}\n\n", True),
        (b"error\n\n", True),
        (b"event: errors\n\n", False),
        (b"event: message\ndata: event: error\n\n", False),
        (b"data: error: {}\n\n", False),
        (b": error: {}\n\n", False),
        (b"events: error\n\n", False),
    ],
)
def test_an_error_by_its_name(event: bytes, error: bool) -> None:
    assert names_error(event) is error


@pytest.mark.parametrize(
    ("data", "whole"), [(b"x\n\n", True), (b"x\r\n\r\n", True), (b"x\n", False), (b"x\r\n", False), (b"", False)]
)
def test_a_heartbeat_fits_behind_a_whole_event_only(data: bytes, whole: bool) -> None:
    assert at_boundary(data) is whole
