"""Bodies: the budget, what each seat may hold of it, what is taken for JSON."""

from __future__ import annotations

import orjson
import pytest

from gateway.bodies import BRACKETS_MAX, BodyBudget, parse, too_intricate


def test_a_seat_may_hold_a_quarter_and_others_the_rest() -> None:
    budget = BodyBudget(100)
    with budget.reserve("ana") as first, budget.reserve("ana") as second, budget.reserve("ben") as other:
        assert first.grow_to(20)
        assert not second.grow_to(10)
        assert second.grow_to(5)
        assert other.grow_to(75)
        assert budget.used_bytes == 100
    assert budget.used_bytes == 0


def test_one_body_may_be_larger_than_a_seats_share() -> None:
    with BodyBudget(100).reserve("ana") as alone:
        assert alone.grow_to(60)
        assert not alone.grow_to(101)


def test_a_reservation_is_given_back_once() -> None:
    budget = BodyBudget(100)
    with budget.reserve("ana") as held:
        held.grow_to(10)
        held.release()
        held.release()
        assert budget.used_bytes == 0


@pytest.mark.parametrize("raw", [b'{"a": "\\ud83d"}', b'{"a": "\\udc00 tail"}'])
def test_strings_cut_in_the_middle_of_a_character_are_taken(raw: bytes) -> None:
    assert set(parse(raw)) == {"a"}


@pytest.mark.parametrize("raw", [b"", b"{", b'{"a":1}x', b"\xff", b"[" * 100_000])
def test_what_is_no_json_is_a_value_error(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"line \d+ column \d+|empty|UTF-8|utf-8"):
        parse(raw)


def test_a_body_of_a_million_lists_is_too_intricate_and_a_long_prompt_of_code_is_not() -> None:
    assert too_intricate(b"[" + b"[]," * BRACKETS_MAX + b"[]]")
    code = "def f(a, b):\n    return {a: [b, (a, b)], 'x': [1, 2, 3]}\n" * 20_000
    assert not too_intricate(orjson.dumps({"messages": [{"role": "user", "content": code}]}))
