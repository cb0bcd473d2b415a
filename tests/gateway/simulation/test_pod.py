"""One day of the pod, small enough to be counted by hand, and what must hold on any day."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.simulation import agents
from gateway.simulation.agents import Agent
from gateway.simulation.baselines import Line
from gateway.simulation.kv import SHARED_TOKENS, Kv
from gateway.simulation.pace import READY_S, STUDY, Pace
from gateway.simulation.pod import Ended, Parts, Pod
from gateway.simulation.request import Admit, Move, Policy, Refuse, Request

FIXED = replace(agents.STUDY, context_tokens=100_000, context_spread_tokens=0, reply_sigma=0.0, gap_sigma=0.0)


class Punctual(Agent):
    """One with replies of 400 tokens that first comes at a time that is given."""

    def __init__(self, index: int, first_s: float) -> None:
        super().__init__(0, index, f"seat-{index}", FIXED)
        self.first_s = first_s

    def first_pause_s(self) -> float:
        return self.first_s


def pod(those: Sequence[Agent], policy: Callable[[Parts], Policy], tokens: int = 10**7, pace: Pace = STUDY) -> Pod:
    return Pod(those, Kv(tokens, host=False), pace, policy)


def first_come(cap: int | None = None, deadline_s: float | None = None) -> Callable[[Parts], Policy]:
    return lambda parts: Line(parts, cap, deadline_s)


FRESH_S = STUDY.prefill_s(103_500, 103_500 - SHARED_TOKENS)
ALONE_S = 399 * 0.0079


class TestOneTurn:
    def test_it_waits_for_the_engine_then_is_read_then_is_written(self) -> None:
        day = pod([Punctual(0, 10.0)], first_come())
        day.run(60.0)
        (first, second, *_) = day.ended
        assert first.first_token_s == pytest.approx(READY_S + FRESH_S)
        assert first.wait_s == pytest.approx(READY_S)
        assert first.pace_tok_per_s == pytest.approx(1000 / 7.9)
        assert (first.uncached_tokens, second.uncached_tokens) == (103_500 - SHARED_TOKENS, 3500)

    def test_what_is_unfinished_at_the_end_of_the_day_is_dropped(self) -> None:
        day = pod([Punctual(0, 10.0)], first_come())
        day.run(10.0 + READY_S + FRESH_S + ALONE_S - 0.01)
        assert day.ended == []


class TestTwoTurns:
    def test_the_engine_reads_one_prompt_after_the_other(self) -> None:
        day = pod([Punctual(0, 10.0), Punctual(1, 10.0)], first_come())
        day.run(70.0)
        waits = sorted(one.wait_s for one in day.ended[:2])
        assert waits == [pytest.approx(READY_S), pytest.approx(READY_S + FRESH_S)]

    def test_a_reply_keeps_little_of_its_pace_while_a_prompt_is_read(self) -> None:
        begun_s = 10.0 + READY_S + FRESH_S
        day = pod([Punctual(0, 10.0), Punctual(1, begun_s - READY_S)], first_come())
        day.run(70.0)
        assert day.ended[0].pace_tok_per_s < 1000 / 7.9 / 2

    def test_one_ticket_makes_the_second_wait_for_the_whole_first(self) -> None:
        day = pod([Punctual(0, 10.0), Punctual(1, 10.0)], first_come(cap=1))
        day.run(80.0)
        second = next(one for one in day.ended if one.seat == "seat-1")
        assert second.queue_s == pytest.approx(READY_S + FRESH_S + ALONE_S)

    def test_one_without_room_in_the_cache_waits_for_the_other(self) -> None:
        day = pod([Punctual(0, 10.0), Punctual(1, 10.0)], first_come(), tokens=150_000)
        day.run(80.0)
        second = next(one for one in day.ended if one.seat == "seat-1")
        assert second.queue_s == pytest.approx(READY_S + FRESH_S + ALONE_S)

    def test_a_policy_that_does_not_look_at_the_cache_holds_a_ticket_meanwhile(self) -> None:
        day = pod([Punctual(0, 10.0), Punctual(1, 10.0)], Heedless, tokens=150_000)
        day.run(80.0)
        second = next(one for one in day.ended if one.seat == "seat-1")
        assert second.queue_s == 0
        assert second.wait_s == pytest.approx(READY_S + FRESH_S + ALONE_S + READY_S)

    def test_a_policy_hears_of_who_waits_when_the_cache_loses_what_it_had(self) -> None:
        heard: list[tuple[str, int]] = []

        class Listening(Line):
            def recosted(self, request: Request, now_s: float) -> None:
                heard.append((request.agent.seat, self._kv.reading(request.agent).uncached_tokens))

        three = [Punctual(0, 10.0), Punctual(1, 24.0), Punctual(2, 25.0)]
        day = pod(three, lambda parts: Listening(parts, 1, None), tokens=250_000)
        day.run(35.0)
        assert heard == []
        day.run(60.0)
        assert heard[0][0] == "seat-0"
        assert all(uncached > 80_000 for _, uncached in heard)

    def test_what_comes_back_from_host_ram_takes_its_time(self) -> None:
        slow = replace(STUDY, reload_tok_per_s=10_000.0)
        day = Pod([Punctual(0, 10.0), Punctual(1, 40.0)], Kv(150_000, host=True), slow, first_come(cap=1))
        day.run(200.0)
        back = [one for one in day.ended if one.uncached_tokens == 3500]
        assert max(one.first_token_s - one.wait_s for one in back) > 85_000 / 10_000
        assert min(one.first_token_s - one.wait_s for one in back) < 2.0


class TestDeadline:
    def test_a_turn_that_waited_so_long_fails_and_comes_back_as_a_new_one(self) -> None:
        day = pod([Punctual(0, 10.0), Punctual(1, 11.0)], first_come(cap=1, deadline_s=1.0))
        day.run(80.0)
        of_second = [one for one in day.ended if one.seat == "seat-1"]
        assert of_second[0].failed
        assert of_second[0].tokens == 400
        assert of_second[1].wait_s < 1.0 + READY_S

    def test_who_is_refused_comes_back_and_waits_on(self) -> None:
        day = pod([Punctual(0, 10.0)], Unwilling)
        day.run(60.0)
        assert day.refused == 1
        assert not day.ended[0].failed
        assert day.ended[0].wait_s == pytest.approx(12.0 + READY_S)


class TestTies:
    def test_a_policys_timer_comes_before_a_reply_that_ends_then(self) -> None:
        made: list[Waking] = []

        def policy(parts: Parts) -> Policy:
            made.append(Waking(parts))
            return made[0]

        pod([Punctual(0, 10.0)], policy).run(10.0 + READY_S + FRESH_S + ALONE_S + 0.1)
        assert made[0].told == ["timer", "left"]


class Heedless:
    """Everybody gets a ticket at once."""

    def __init__(self, parts: Parts) -> None:
        self.moves: list[Move] = []
        self.wake_at_s = inf

    def arrived(self, request: Request, now_s: float) -> None:
        self.moves.append(Admit(request))

    def recosted(self, request: Request, now_s: float) -> None:
        raise AssertionError("nobody waits")

    def read(self, request: Request, now_s: float) -> None:
        assert request.first_token_s == now_s

    def left(self, request: Request, now_s: float) -> None:
        pass

    def move(self, now_s: float) -> Move | None:
        return self.moves.pop(0) if self.moves else None


class Unwilling(Heedless):
    """The first request is sent away for 12 s."""

    asked = 0

    def arrived(self, request: Request, now_s: float) -> None:
        self.asked += 1
        self.moves.append(Refuse(request, 12.0, failed=False) if self.asked == 1 else Admit(request))


class Waking(Heedless):
    """Wants to be asked at the very time at which the reply ends."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self.decode = parts.decode
        self.told: list[str] = []

    def read(self, request: Request, now_s: float) -> None:
        self.wake_at_s = now_s + 1.0

    def left(self, request: Request, now_s: float) -> None:
        self.told.append("left")

    def move(self, now_s: float) -> Move | None:
        ends_s = self.decode.next_end_s if now_s >= self.wake_at_s else inf
        if now_s < ends_s < inf:
            self.wake_at_s = ends_s
        elif now_s == ends_s:
            self.told.append("timer")
            self.wake_at_s = inf
        return super().move(now_s)


class Watched(Line):
    """Counts tickets, and checks that time only goes on."""

    def __init__(self, parts: Parts, cap: int) -> None:
        super().__init__(parts, cap, 180.0)
        self.out = self.most = 0
        self.now_s = 0.0

    def move(self, now_s: float) -> Move | None:
        assert now_s >= self.now_s
        self.now_s = now_s
        made = super().move(now_s)
        self.out += isinstance(made, Admit)
        self.most = max(self.most, self.out)
        return made

    def left(self, request: Request, now_s: float) -> None:
        super().left(request, now_s)
        self.out -= 1


class TestAnyDay:
    @settings(max_examples=15, deadline=None)
    @given(
        seed=st.integers(0, 999),
        seats=st.integers(1, 30),
        cap=st.integers(1, 5),
        tokens=st.integers(200_000, 2_000_000),
    )
    def test_tickets_and_times_stay_within_their_bounds(self, seed: int, seats: int, cap: int, tokens: int) -> None:
        made: list[Watched] = []

        def policy(parts: Parts) -> Policy:
            made.append(Watched(parts, cap))
            return made[0]

        day = pod([Agent(seed, index, f"seat-{index}") for index in range(seats)], policy, tokens)
        day.run(3600.0)
        assert made[0].most <= cap
        assert all(_sound(one) for one in day.ended)


def _sound(one: Ended) -> Any:
    if one.failed:
        return one.tokens >= 2
    fastest = 1000 / 7.9
    return (
        0 <= one.queue_s <= 180
        and READY_S <= one.wait_s + 1e-6 < one.first_token_s + 1e-6
        and (0 < one.pace_tok_per_s <= fastest * (1 + 1e-6))
    )
