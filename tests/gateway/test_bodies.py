"""Bodies: the budget, what each seat may hold of it, and large ones one at a time."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.bodies import LINE_PER_SEAT, BodyBudget, LargeBodies


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


def test_a_body_that_comes_in_pieces_may_be_as_large() -> None:
    budget = BodyBudget(100)
    with budget.reserve("ana") as alone, budget.reserve("ana") as second:
        assert all(alone.grow_to(size) for size in range(10, 61, 10))
        assert not second.grow_to(10)
    with budget.reserve("ana") as small, budget.reserve("ana") as large:
        assert small.grow_to(1)
        assert large.grow_to(24)
        assert not large.grow_to(25)


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


class Turns:
    """Bodies that wait for their turn, are in it until told, or leave; `order`: who had it, `inside`: who has."""

    def __init__(self) -> None:
        self.bodies = LargeBodies()
        self.order: list[str] = []
        self.inside: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self._over: dict[str, asyncio.Event] = {}

    def come(self, name: str) -> None:
        """A body of the seat that the name begins with."""
        self._over[name] = asyncio.Event()
        self.tasks[name] = asyncio.ensure_future(self._body(name))

    def over(self, name: str) -> None:
        """It was read."""
        self._over[name].set()

    def leave(self, name: str) -> None:
        """Its client goes away."""
        self.tasks[name].cancel()

    async def _body(self, name: str) -> None:
        async with self.bodies.turn(name[0]):
            self.order.append(name)
            self.inside.append(name)
            assert self.inside == [name], "one at a time"
            self.bodies._free_at_s = 0.0
            try:
                await self._over[name].wait()
            finally:
                self.inside.remove(name)

    async def settle(self, steps: int = 8) -> None:
        """Let the loop go on; the time that a turn leaves to others is none here."""
        for _ in range(steps):
            self.bodies._free_at_s = 0.0
            await asyncio.sleep(0)

    async def usable(self) -> None:
        """Let who is in it end, and all others in turn: each is served, and then it is free."""
        left = [name for name, task in self.tasks.items() if not task.done()]
        for name in left:
            self.over(name)
        async with asyncio.timeout(5):
            while not all(task.done() for task in self.tasks.values()):
                await self.settle(1)
        for name, task in self.tasks.items():
            if not task.cancelled():
                assert task.exception() is None, name
        assert (self.inside, self.bodies._busy, self.bodies._lines) == ([], False, {})
        async with asyncio.timeout(1), self.bodies.turn("z"):
            pass


@pytest.mark.anyio
async def test_seats_take_turns() -> None:
    turns = Turns()
    for name in ("a0", "a1", "a2", "a3", "b1", "c1", "c2"):
        turns.come(name)
        await turns.settle()
    for _ in range(7):
        turns.over(turns.inside[0])
        await turns.settle()
    assert turns.order == ["a0", "a1", "b1", "c1", "a2", "c2", "a3"], "a seat with three in line is no longer the first"
    await turns.usable()


@pytest.mark.anyio
async def test_a_seat_has_so_many_in_line_and_others_are_not_counted() -> None:
    turns = Turns()
    for number in range(LINE_PER_SEAT + 1):
        assert not turns.bodies.crowded("a"), "the one that is read is not in line"
        turns.come(f"a{number}")
        await turns.settle()
    assert turns.bodies.crowded("a")
    assert not turns.bodies.crowded("b")
    turns.over("a0")
    await turns.settle()
    assert not turns.bodies.crowded("a")
    await turns.usable()


NAMES = ("a0", "a1", "b1")


@pytest.mark.anyio
@pytest.mark.parametrize("steps", range(6))
@pytest.mark.parametrize("then", range(4))
@pytest.mark.parametrize("leaves", NAMES[1:])
async def test_who_leaves_at_any_moment_around_the_hand_over_leaves_it_usable(
    leaves: str, steps: int, then: int
) -> None:
    """`steps` of the loop between the end of the first and the leaving, `then` before the next is over."""
    turns = Turns()
    for name in NAMES:
        turns.come(name)
    await turns.settle()
    assert turns.inside == ["a0"]
    turns.over("a0")
    await turns.settle(steps)
    turns.leave(leaves)
    await turns.settle(then)
    await turns.usable()
    other = next(name for name in NAMES[1:] if name != leaves)
    assert other in turns.order


STEP = st.one_of(
    st.tuples(st.just("come"), st.sampled_from("abc")),
    st.tuples(st.sampled_from(["over", "leave"]), st.integers(0, 9)),
    st.tuples(st.just("settle"), st.integers(1, 4)),
)


@given(st.lists(STEP, max_size=30))
def test_no_order_of_coming_and_leaving_wedges_it_or_lets_two_in(steps: list[tuple[str, object]]) -> None:
    async def play() -> None:
        turns = Turns()
        for what, value in steps:
            if what == "come":
                turns.come(f"{value}{len(turns.tasks)}")
            elif what == "settle":
                assert isinstance(value, int)
                await turns.settle(value)
            elif turns.tasks:
                assert isinstance(value, int)
                name = list(turns.tasks)[value % len(turns.tasks)]
                turns.over(name) if what == "over" else turns.leave(name)
        await turns.usable()

    asyncio.run(play())


@pytest.mark.anyio
async def test_bodies_of_clients_that_left_take_no_place_in_line() -> None:
    bodies = LargeBodies()

    async def one() -> None:
        async with bodies.turn("a"):
            await asyncio.sleep(0)

    async with bodies.turn("b"):
        tasks = [asyncio.create_task(one()) for _ in range(LINE_PER_SEAT)]
        await asyncio.sleep(0)
        assert bodies.crowded("a")
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert not bodies.crowded("a")
    async with asyncio.timeout(1):
        await one()
