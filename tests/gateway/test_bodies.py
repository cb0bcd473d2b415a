"""Bodies: the budget, what each seat may hold of it, and large ones one at a time."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from gateway.bodies import BodyBudget, LargeBodies


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


@pytest.mark.anyio
async def test_between_two_large_bodies_the_loop_has_as_long_for_everything_else() -> None:
    def work_until(end_s: float) -> None:
        while loop.time() < end_s:
            pass

    bodies, loop, times = LargeBodies(), asyncio.get_running_loop(), []

    async def parse_one() -> None:
        async with bodies.turn("a"):
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
