"""The shell around admission, in virtual time: answers, timers, hand-over, leaving exactly once."""

from __future__ import annotations

import asyncio
import contextlib
import random
import selectors
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from gateway.admission import Admission
from gateway.admission_types import Cost, Granted, Limits, Reason, Rejected
from gateway.limiter import Limiter, Place, Request

T = TypeVar("T")


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose clock jumps to the next timer instead of waiting."""

    def __init__(self) -> None:
        super().__init__(selectors.SelectSelector())
        self.now_s = 0.0
        select = self._selector.select  # type: ignore[attr-defined]

        def jump(timeout: float | None) -> list[Any]:
            if timeout:
                self.now_s += timeout
            found: list[Any] = select(0)
            return found

        self._selector.select = jump  # type: ignore[attr-defined]

    def time(self) -> float:
        return self.now_s


def virtual(main: Callable[[Limiter], Awaitable[T]], **limits: Any) -> T:
    """Run `main` with a limiter on a virtual loop."""
    loop = VirtualLoop()
    try:
        limiter = Limiter(Admission(Limits(**limits)), loop)
        return loop.run_until_complete(main(limiter))
    finally:
        loop.close()


def ignore(reason: Reason) -> None: ...


def enter(limiter: Limiter, stack: contextlib.ExitStack, seat: str = "ana") -> Place:
    return stack.enter_context(limiter.enter(Request(seat, None, 1, ignore)))


def test_a_ticket_passes_to_the_next_in_the_same_call_that_frees_it() -> None:
    async def main(limiter: Limiter) -> None:
        with contextlib.ExitStack() as stack:
            first, second = enter(limiter, stack), enter(limiter, stack)
            assert isinstance(await first.wait(0), Granted)
            assert await second.wait(0) is None
            first.leave()
            assert second.answer.done()
            assert second.granted_at_s == limiter.loop.time()
            assert limiter.running == 1

    virtual(main, streams=1)


def test_the_deadline_answers_without_any_other_event() -> None:
    async def main(limiter: Limiter) -> None:
        with contextlib.ExitStack() as stack:
            enter(limiter, stack)
            waiting = enter(limiter, stack, "ben")
            answer = await waiting.wait(None)
            assert isinstance(answer, Rejected)
            assert answer.reason is Reason.DEADLINE
            assert limiter.loop.time() == pytest.approx(180.0, abs=0.01)

    virtual(main, streams=1)


def test_a_long_stream_is_told_to_end_and_keeps_its_ticket_until_it_leaves() -> None:
    async def main(limiter: Limiter) -> None:
        told: list[Reason] = []
        with limiter.enter(Request("ana", None, 1, told.append)) as place:
            assert isinstance(await place.wait(0), Granted)
            await asyncio.sleep(1799)
            assert told == []
            await asyncio.sleep(2)
            assert told == [Reason.MAX_STREAM]
            assert limiter.running == 1
        assert limiter.running == 0

    virtual(main, streams=1)


def test_leaving_inside_the_callback_does_not_confuse_the_timer() -> None:
    async def main(limiter: Limiter) -> None:
        places: list[Place] = []
        with contextlib.ExitStack() as stack:
            places.append(stack.enter_context(limiter.enter(Request("ana", None, 1, lambda _: places[0].leave()))))
            later = enter(limiter, stack, "ben")
            await asyncio.sleep(1)
            limiter.seats_gone(frozenset({"ana"}))
            assert isinstance(await later.wait(60), Granted)
            assert limiter.loop.time() == pytest.approx(31.0, abs=0.01)

    virtual(main, streams=1)


def test_closing_answers_every_waiter_at_once_and_leaves_streams_alone() -> None:
    async def main(limiter: Limiter) -> None:
        with contextlib.ExitStack() as stack:
            running = enter(limiter, stack)
            waiting = [enter(limiter, stack, seat) for seat in ("ben", "cleo")]
            limiter.close(Reason.ENGINE_LOST, 10)
            assert all(isinstance(place.answer.result(), Rejected) for place in waiting)
            assert isinstance(running.answer.result(), Granted)
            refused = enter(limiter, stack, "dan")
            assert isinstance(refused.answer.result(), Rejected)
            limiter.open()
            running.leave()
            assert isinstance(enter(limiter, stack, "eve").answer.result(), Granted)

    virtual(main, streams=1)


def test_a_place_left_twice_frees_one_ticket() -> None:
    async def main(limiter: Limiter) -> None:
        with contextlib.ExitStack() as stack:
            first = enter(limiter, stack)
            others = [enter(limiter, stack, seat) for seat in ("ben", "cleo")]
            first.leave()
            first.leave()
            assert [place.answer.done() for place in others] == [True, False]

    virtual(main, streams=1)


@pytest.mark.parametrize("seed", range(5))
def test_cancelled_tasks_lose_no_ticket_and_hold_none(seed: int) -> None:
    """200 tasks that wait and stream for random times; a third are cancelled at a random moment."""

    async def main(limiter: Limiter) -> None:
        rng = random.Random(seed)
        peak = 0

        async def one(seat: str) -> None:
            nonlocal peak
            with limiter.enter(Request(seat, None, 1, ignore)) as place:
                if isinstance(await place.wait(None), Granted):
                    peak = max(peak, limiter.running)
                    await asyncio.sleep(rng.expovariate(0.2))

        async with asyncio.TaskGroup() as group:
            for number in range(200):
                task = group.create_task(one(f"seat{number % 7}"))
                if rng.random() < 0.33:
                    limiter.loop.call_later(rng.expovariate(0.05), task.cancel)
                await asyncio.sleep(rng.expovariate(1.0))
        assert peak == 4
        assert limiter.running == 0
        assert limiter.view().waiting == ()
        assert limiter._places == {}

    virtual(main, streams=4)


def test_a_helper_stands_behind_a_turn_that_came_later() -> None:
    async def main(limiter: Limiter) -> None:
        with contextlib.ExitStack() as stack:
            running = enter(limiter, stack)
            helper = stack.enter_context(limiter.enter(Request("ben", None, 1, ignore, helper=True)))
            turn = enter(limiter, stack, "cleo")
            assert (helper.position(), turn.position()) == ((2, 2), (1, 2))
            running.leave()
            assert isinstance(await turn.wait(0), Granted)
            assert await helper.wait(0) is None
            turn.leave()
            assert isinstance(await helper.wait(0), Granted)

    virtual(main, streams=1)


def test_what_waits_is_priced_anew_when_a_ticket_goes_and_before_it_comes_back() -> None:
    async def main(limiter: Limiter) -> None:
        asked: list[int] = []

        def price() -> Cost:
            asked.append(limiter.running)
            return Cost()

        with contextlib.ExitStack() as stack:
            first = enter(limiter, stack)
            second, third = (
                stack.enter_context(limiter.enter(Request(seat, None, 1, ignore, price=price))) for seat in "bc"
            )
            asked.clear()
            first.leave()
            assert second.answer.done()
            assert not third.answer.done()
            assert asked == [1, 1, 1], "both of them while the ticket is still out, and the last one again when it is"
            third.leave()
            asked.clear()
            second.leave()
            assert asked == []

    virtual(main, streams=1)


def test_the_tokens_of_a_reply_count_for_its_seat() -> None:
    async def main(limiter: Limiter) -> None:
        with contextlib.ExitStack() as stack:
            enter(limiter, stack, "ana").leave(1e6)
            enter(limiter, stack, "ben")
            enter(limiter, stack, "ana")
            assert limiter.view().over_share == {"ana"}

    virtual(main, streams=1)
