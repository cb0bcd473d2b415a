"""Lines of keys in TOML texts, and the errors that name them."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gateway.errors import ConfigError
from gateway.toml_lines import (
    Block,
    KeyPath,
    blocks,
    dotted,
    line_of,
    parse_toml,
    toml_error,
    validation_error,
)

FILE = Path("/etc/moe-appliance/x.toml")

DOCUMENT = '''\
title = 1  # a comment with [brackets] and a = 1
"quoted key".inner = 2

[seats.ana] # first
digest = "[not.a.table]"
text = """
[seats.fake]
fake = 1
"""  # after
previous = { digest = 3, until = 4 }

[seats."ana.lee"]
'lite ral' = 5
many = [
  1, # one
  { deep = 6 },
  [7,
   8],
]

[[plan]]
name = 'a'
[plan.sub]
x = 1
[[plan]]
name = 'b'
[[plan.item]]
[[plan.item]]
y = 2
'''


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("title",), 1),
        (("quoted key", "inner"), 2),
        (("quoted key",), 2),
        (("seats",), 4),
        (("seats", "ana"), 4),
        (("seats", "ana", "digest"), 5),
        (("seats", "ana", "text"), 6),
        (("seats", "ana", "previous"), 10),
        (("seats", "ana", "previous", "until"), 10),
        (("seats", "ana.lee"), 12),
        (("seats", "ana.lee", "lite ral"), 13),
        (("seats", "ana.lee", "many", 0), 15),
        (("seats", "ana.lee", "many", 1, "deep"), 16),
        (("seats", "ana.lee", "many", 2, 1), 18),
        (("plan",), 21),
        (("plan", 0), 21),
        (("plan", 0, "sub", "x"), 24),
        (("plan", 1, "name"), 26),
        (("plan", 1, "item", 1, "y"), 29),
        (("seats", "fake"), None),
        (("fake",), None),
        (("a",), None),
    ],
)
def test_a_key_is_found_where_it_stands(path: KeyPath, line: int | None) -> None:
    assert line_of(DOCUMENT, path) == line


def test_a_header_of_its_own_wins_over_an_earlier_mention() -> None:
    assert line_of("[a.b]\nx = 1\n[a]\ny = 1\n", ("a",)) == 3


def test_a_block_ends_with_its_last_value_not_with_the_comments_after_it() -> None:
    assert blocks("# top\n[a]\nx = [\n1,\n]\n\n# about b\n[b]\n") == (
        Block(("a",), 2, 5),
        Block(("b",), 8, 8),
    )


# A document is made of lines, each with a number that occurs nowhere else; the line of a key is then the
# line that its number is on, which a plain search finds.

_KEYS = st.sampled_from(["a", "b-1", '"c.d"', "'e f'", '"\\u0067"', '"#[x]"'])
_FILLERS = st.sampled_from(["", "# [a] b = 1", "   ", '# """'])
_WRAPS = st.sampled_from(
    [
        "{}",
        "[{}]",
        "[ # ]\n {} , \n]",
        "{{ k = {} }}",
        '[ """q""""", {} ]',
        '"""\n[z]\nq = 1 \\""" ',
        "'''\n[z]''' ",
        '"x]" ',
    ]
)


@st.composite
def documents(draw: st.DrawFn) -> str:
    lines: list[str] = []
    number = 1000
    for _ in range(draw(st.integers(0, 4))):
        for _ in range(draw(st.integers(0, 3))):
            lines += draw(st.lists(_FILLERS, max_size=2))
            key = ".".join([*draw(st.lists(_KEYS, max_size=1)), f"k{number}"])
            lines.append(f"{key} = {draw(_WRAPS).format(number)} # {number}")
            number += 1
        header = ".".join(draw(st.lists(_KEYS, min_size=1, max_size=2)))
        header += draw(st.sampled_from(["", f".t{number}"]))
        lines.append(f"[[{header}]]" if draw(st.booleans()) else f"  [ {header} ]")
    return draw(st.sampled_from(["\n", "\r\n"])).join("\n".join(lines).split("\n"))


def _numbers(value: Any, path: KeyPath = ()) -> list[tuple[KeyPath, int]]:
    if isinstance(value, dict):
        return [found for key, inner in value.items() for found in _numbers(inner, (*path, key))]
    if isinstance(value, list):
        return [found for index, inner in enumerate(value) for found in _numbers(inner, (*path, index))]
    return [(path, value)] if isinstance(value, int) else []


@given(documents())
def test_lines_agree_with_a_search_for_unique_values(text: str) -> None:
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        values = {}  # keys collided; still: no exception
        line_of(text, ("a",))
    for path, number in _numbers(values):
        line = line_of(text, path)
        assert line is not None
        assert str(number) in text.split("\n")[line - 1], path


@given(st.text(alphabet="[]{}\"'=.,#\\\n ab1"))
def test_any_text_is_scanned_without_an_exception(text: str) -> None:
    line_of(text, ("a",))
    blocks(text)


def test_deep_nesting_is_scanned_without_an_exception() -> None:
    assert line_of("a = " + "[" * 5000, ("a",)) == 1


def test_a_path_is_shown_as_an_operator_writes_it() -> None:
    assert dotted(("seats", "ana.lee", "many", 0)) == 'seats."ana.lee".many[0]'


# ------------------------------------------------------------------------------------------ errors


def refused(raw: bytes) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse_toml(FILE, raw)
    return caught.value


@pytest.mark.parametrize(
    ("raw", "start"),
    [
        (b"a = 1\nb = \n", f"{FILE}:2: not valid TOML: "),
        (b"a = 1\n[x\n", f"{FILE}:2: not valid TOML: "),
        (b"a = 1\nb = [1,\n", f"{FILE}:2: not valid TOML: "),
        (b"[seats.ana]\n[seats.ana]\n", f"{FILE}:2: [seats.ana] is there twice"),
        (b"a = 1\nb = '\xff'\n", f"{FILE}:2: is not UTF-8 text"),
        (b"\xef\xbb\xbfa = 1\n", f"{FILE}:1: begins with a byte order mark"),
        (b"a = " + b"[" * 100_000, f"{FILE}: nests"),
        (b"a = " + b"9" * 10_000, f"{FILE}: holds a value"),
    ],
)
def test_a_file_that_is_not_toml_is_named_with_its_line(raw: bytes, start: str) -> None:
    error = refused(raw)
    assert error.message.startswith(start)
    assert f"edit {FILE}" in error.remedy


def test_a_syntax_error_at_the_end_names_the_last_line() -> None:
    text = "a = 1\nb = [1,\n"
    with pytest.raises(tomllib.TOMLDecodeError) as caught:
        tomllib.loads(text)
    assert toml_error(FILE, text, caught.value).message.startswith(f"{FILE}:2: ")


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    streams: Annotated[int, Field(ge=1, le=9)] | None = None
    mode: Literal["fast", "slow"] = "fast"


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    size: float
    inner: dict[str, Inner] = {}
    rows: list[Inner] = []
    either: int | bool = 1


def found(text: str, model: type[BaseModel] | None = Outer) -> list[str]:
    with pytest.raises(ValidationError) as caught:
        Outer.model_validate(tomllib.loads(text))
    message = validation_error(FILE, text, caught.value, model).message
    return [line.removeprefix(f"{FILE}:") for line in message.splitlines()]


def test_all_errors_are_listed_in_the_order_of_the_file() -> None:
    text = 'siz = 1\n[inner.a]\nstreams = 0\nmode = "fsat"\n[inner."b c"]\nstream = 1\n[[rows]]\nstreams = "4"\n'
    assert found(text) == [
        " size is missing",
        "1: siz is not a known key; did you mean size?",
        "3: inner.a.streams must be at least 1, is 0",
        "4: inner.a.mode must be 'fast' or 'slow'; did you mean 'fast'?",
        '6: inner."b c".stream is not a known key; did you mean streams?',
        "8: rows[0].streams must be a whole number, is text",
    ]


def test_a_word_that_is_close_to_none_of_the_known_ones_is_not_repeated() -> None:
    assert found('size = 1.0\n[inner.a]\nmode = "sk-secret"\n') == [
        "3: inner.a.mode must be 'fast' or 'slow', is another text"
    ]


def test_an_unknown_key_that_is_close_to_none_lists_what_is_known() -> None:
    assert found("size = 1.0\n[inner.a]\nqqq = 1\n") == ["3: inner.a.qqq is not a known key; known here: mode, streams"]


def test_without_the_model_an_unknown_key_is_still_named() -> None:
    assert found("size = 1.0\nqqq = 1\n", None) == ["2: qqq is not a known key"]


def test_members_of_a_union_do_not_show_in_the_key() -> None:
    lines = found('size = 1.0\neither = "x"\n')
    assert all(line.startswith("2: either must be ") for line in lines)


def test_a_missing_key_has_the_line_of_its_table() -> None:
    class Table(BaseModel):
        inner: dict[str, Outer]

    with pytest.raises(ValidationError) as caught:
        Table.model_validate(tomllib.loads("\n[inner.a]\n"))
    message = validation_error(FILE, "\n[inner.a]\n", caught.value, Table).message
    assert message == f"{FILE}:2: inner.a.size is missing"


def test_a_text_value_is_never_repeated() -> None:
    assert "hunter2" not in "".join(found('size = "hunter2"\n[inner.a]\nmode = "hunter2"\n'))
