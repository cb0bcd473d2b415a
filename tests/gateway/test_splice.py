"""A splice changes one value and nothing else; json is the oracle."""

from __future__ import annotations

import json
import time
import tracemalloc
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.splice import VALUE_MAX_BYTES, drop_members, replace_value, value_span, value_start
from tests.gateway.spelling import BLANKS, spelled

KEY = "stream_options"
TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=8) | st.sampled_from(
    [KEY, f'"{KEY}":', "\\", '"', "}{][,:", "\\u0073", "été", "\U0001f600"]
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@st.composite
def keys(draw: st.DrawFn) -> str:
    """KEY as a client may spell it."""
    return '"' + "".join(f"\\u{ord(c):04x}" if draw(st.integers(0, 9)) == 0 else c for c in KEY) + '"'


@st.composite
def objects(draw: st.DrawFn) -> tuple[str, str | None, str]:
    """An object in three pieces: before the last value of KEY, that value (None when absent), behind it."""
    members = draw(st.lists(st.tuples(TEXTS.filter(lambda t: t != KEY), VALUES), max_size=4))
    texts = [f"{draw(spelled(k))}:{draw(spelled(v))}" for k, v in members]
    count = draw(st.integers(0, 2))
    for _ in range(count):
        texts.insert(draw(st.integers(0, len(texts))), "")
    last = max((i for i, text in enumerate(texts) if not text), default=-1)
    head, value, tail = draw(BLANKS) + "{", None, ""
    for index, text in enumerate(texts):
        comma = "," if index else ""
        if text:
            piece = comma + text
        else:
            name = f"{comma}{draw(BLANKS)}{draw(keys())}{draw(BLANKS)}:{draw(BLANKS)}"
            own = draw(spelled(draw(VALUES))).strip(" \t\r\n")
            if index == last:
                head, value, tail = head + name, own, draw(BLANKS)
                continue
            piece = name + own + draw(BLANKS)
        head, tail = (head + piece, tail) if value is None else (head, tail + piece)
    end = draw(BLANKS) + "}" + draw(BLANKS)
    return (head + end, None, "") if value is None else (head, value, tail + end)


@given(objects(), VALUES)
def test_only_the_last_value_of_the_key_changes(pieces: tuple[str, str | None, str], value: Any) -> None:
    head, old, tail = pieces
    body, new = (head + (old or "") + tail).encode(), json.dumps(value).encode()
    before = json.loads(body)

    after = replace_value(body, KEY, new)

    assert json.loads(after) == before | {KEY: value}
    if old is None:
        assert value_span(body, KEY) is None
        brace = body.index(b"{") + 1
        assert after.startswith(body[:brace])
        assert after.endswith(body[brace:])
    else:
        assert value_span(body, KEY) == (len(head.encode()), len((head + old).encode()))
        assert after == head.encode() + new + tail.encode()
    assert replace_value(after, KEY, new) == after


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"{}", b'{"k":1}'),
        (b" { } ", b' {"k":1 } '),
        (b'{"a":1.0}', b'{"k":1,"a":1.0}'),
        (b'{"k":null,"a":1e2}', b'{"k":1,"a":1e2}'),
        (b'{"k":2,"k":{"k":3}}', b'{"k":2,"k":1}'),
        (b'{"a":{"k":2},"b":[{"k":3}]}', b'{"k":1,"a":{"k":2},"b":[{"k":3}]}'),
        (b'{"a":"\\"k\\":2","k" :\n"x\\\\" }', b'{"a":"\\"k\\":2","k" :\n1 }'),
        (b'{"a":"k","b":["k"],"k":[]}', b'{"a":"k","b":["k"],"k":1}'),
        (b'{"\\u006b":2}', b'{"\\u006b":1}'),
        (b'{"\\u006B":2,"\\u004b":3}', b'{"\\u006B":1,"\\u004b":3}'),
        (b'{"\\\\u006b":2}', b'{"k":1,"\\\\u006b":2}'),
        (b'{"k":-0.0}', b'{"k":1}'),
        (b'{"k":[[[["]"]]],{"}":"{"}] , "a":true}', b'{"k":1 , "a":true}'),
    ],
)
def test_examples(body: bytes, expected: bytes) -> None:
    assert replace_value(body, "k", b"1") == expected


@pytest.mark.parametrize(
    "body",
    [
        b'{"m":"' + b'\\"' * 4_000_000 + b'","k":{}}',
        b'{"m":[' + b'"",' * 2_000_000 + b'""],"k":{}}',
        b'{"m":[' + b'{"k":0},' * 500_000 + b'0],"k":{}}',
    ],
    ids=["quotes", "strings", "keys further down"],
)
def test_a_body_of_many_pieces_takes_no_longer_than_a_few_parses(body: bytes) -> None:
    began_s = time.process_time()
    orjson.loads(body)
    parsed_s = time.process_time()
    assert value_span(body, "k") == (len(body) - 3, len(body) - 1)
    assert time.process_time() - parsed_s < max(0.1, 12 * (parsed_s - began_s))


def test_a_value_longer_than_any_is_a_value_error() -> None:
    for value in (b'"%s"' % (b"x" * 70_000), b"[" + b"0," * 70_000 + b"0]", b"1" * 70_000):
        with pytest.raises(ValueError, match="longer"):
            value_span(b'{"k":' + value + b"}", "k")


LONG = b"x" * VALUE_MAX_BYTES


@pytest.mark.parametrize(
    "value",
    [
        b'"[]' + LONG + b'"',
        b'"{}' + LONG + b'"',
        b'{"a":"}' + LONG + b'"}',
        b'["]' + LONG + b'"]',
        b'["\\"]' + LONG + b'"]',
    ],
    ids=["list in a text", "object in a text", "text in an object", "text in a list", "quote in a text"],
)
def test_brackets_in_a_text_that_is_too_long_are_no_end(value: bytes) -> None:
    body = b'{"a":1,"k":' + value + b',"b":2}'
    assert value_start(body, "k") == 11
    edits = (lambda: value_span(body, "k"), lambda: drop_members(body, ("k",)), lambda: replace_value(body, "k", b"1"))
    for edit in edits:
        with pytest.raises(ValueError, match="longer"):
            edit()


@given(objects())
def test_a_member_is_dropped_each_time_that_it_is_there(pieces: tuple[str, str | None, str]) -> None:
    head, old, tail = pieces
    body = (head + (old or "") + tail).encode()
    before = json.loads(body)
    after = drop_members(body, (KEY,))
    assert json.loads(after) == {name: value for name, value in before.items() if name != KEY}
    assert value_span(after, KEY) is None
    assert value_start(after, KEY) is None
    if old is None:
        assert after == body
    else:
        assert value_start(body, KEY) == len(head.encode())
    assert drop_members(after, (KEY,)) == after


@pytest.mark.parametrize("piece", [b"x\\n", b"[", b'\\"'])
def test_a_long_string_takes_no_memory_of_its_own(piece: bytes) -> None:
    body = b'{"m":"' + piece * 500_000 + b'","k":2}'
    tracemalloc.start()
    try:
        assert value_span(body, "k") == (len(body) - 2, len(body) - 1)
        assert tracemalloc.get_traced_memory()[1] < 3 * len(body)
    finally:
        tracemalloc.stop()
