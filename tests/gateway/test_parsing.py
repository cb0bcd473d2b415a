"""What is taken for JSON, and what would take too long to be."""

from __future__ import annotations

import orjson
import pytest

from gateway.parsing import BRACKETS_MAX, MEMBERS_MAX, parse, too_intricate


@pytest.mark.parametrize("raw", [b'{"a": "\\ud83d"}', b'{"a": "\\udc00 tail"}'])
def test_strings_cut_in_the_middle_of_a_character_are_taken(raw: bytes) -> None:
    assert set(parse(raw)) == {"a"}


@pytest.mark.parametrize("raw", [b"", b"{", b'{"a":1}x', b"\xff", b"[" * 100_000, b'{"a":"\xed\xa0\x80"}'])
def test_what_is_no_json_is_a_value_error(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"line \d+ column \d+|empty|UTF-8|utf-8"):
        parse(raw)


@pytest.mark.parametrize("coding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-8-sig"])
@pytest.mark.parametrize("text", ['{"a": "x"}', '{"a": "\\ud83d"}'])
def test_json_is_utf_8(coding: str, text: str) -> None:
    with pytest.raises(ValueError, match=r"line \d+ column \d+|UTF-8|utf-8"):
        parse(text.encode(coding))


MEMBERS = [b'"%d":0', b'"%d" :0', b'"%d"\n\t:0', b'"\\\\%d\\\\":0', b'"\\"%d\\"":0']


@pytest.mark.parametrize("member", MEMBERS)
def test_many_members_are_too_intricate_however_they_are_spelled(member: bytes) -> None:
    def body(count: int) -> bytes:
        return b'{"a":"' + b"x" * 1_000_000 + b'",' + b",".join(member % number for number in range(count)) + b"}"

    assert set(orjson.loads(body(2))) > {"a"}
    assert too_intricate(body(MEMBERS_MAX))
    assert not too_intricate(body(MEMBERS_MAX - 1))


def test_json_inside_of_a_string_has_no_members() -> None:
    inner = orjson.dumps({str(number): "a\\b" for number in range(400_000)}).decode()
    assert not too_intricate(orjson.dumps({"messages": [{"role": "user", "content": inner}]}))


def test_a_body_of_a_million_lists_is_too_intricate_and_a_long_prompt_of_code_is_not() -> None:
    assert too_intricate(b"[" + b"[]," * BRACKETS_MAX + b"[]]")
    code = "def f(a, b):\n    return {a: [b, (a, b)], 'x': [1, 2, 3]}\n" * 20_000
    assert not too_intricate(orjson.dumps({"messages": [{"role": "user", "content": code}]}))


@pytest.mark.parametrize(
    "raw", [b'{"a":"\\ud83d","b":' + b"[" * 1500 + b"]" * 1500 + b"}", b'{"a":"\\ud83d","b":' + b"1" * 5000 + b"}"]
)
def test_what_the_second_parser_cannot_take_is_a_value_error_too(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"line \d+ column \d+|limit"):
        parse(raw)


def test_a_repeated_key_has_its_last_value_whichever_parser_reads_it() -> None:
    assert parse(b'{"a":1,"\\u0061":2}')["a"] == parse(b'{"a":1,"b":"\\ud83d","a":2}')["a"] == 2
