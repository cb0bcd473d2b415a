"""Bodies: the budget, what each seat may hold of it, what is taken for JSON."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import orjson
import pytest

from gateway.bodies import BRACKETS_MAX, MEMBERS_MAX, BodyBudget, LargeBodies, parse, too_intricate


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


@pytest.mark.anyio
async def test_between_two_large_bodies_the_loop_has_as_long_for_everything_else() -> None:
    def work_until(end_s: float) -> None:
        while loop.time() < end_s:
            pass

    bodies, loop, times = LargeBodies(), asyncio.get_running_loop(), []

    async def parse_one() -> None:
        async with bodies.turn():
            began_s = loop.time()
            work_until(loop.time() + 0.05)
            times.append((began_s, loop.time()))

    gone = asyncio.create_task(parse_one())
    tasks = [asyncio.create_task(parse_one()) for _ in range(2)]
    await asyncio.sleep(0)
    tasks.append(asyncio.create_task(parse_one()))
    await asyncio.sleep(0.01)
    tasks[0].cancel()
    await asyncio.wait([gone, *tasks])
    assert len(times) == 3, "who goes away while it waits leaves the turn to the next"
    for (began_s, ended_s), (next_s, _) in pairwise(times):
        assert next_s - ended_s >= 0.9 * (ended_s - began_s)


def test_a_body_of_a_million_lists_is_too_intricate_and_a_long_prompt_of_code_is_not() -> None:
    assert too_intricate(b"[" + b"[]," * BRACKETS_MAX + b"[]]")
    code = "def f(a, b):\n    return {a: [b, (a, b)], 'x': [1, 2, 3]}\n" * 20_000
    assert not too_intricate(orjson.dumps({"messages": [{"role": "user", "content": code}]}))
