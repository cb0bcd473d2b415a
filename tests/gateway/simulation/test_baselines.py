"""The policies that the shipped one is compared with, one decision at a time."""

from __future__ import annotations

from dataclasses import replace

from gateway.simulation import agents
from gateway.simulation.agents import Agent
from gateway.simulation.baselines import Line, Recommended, RoundRobin, Vtc
from gateway.simulation.decode import Decode
from gateway.simulation.kv import Kv
from gateway.simulation.pace import STUDY
from gateway.simulation.pod import Parts
from gateway.simulation.request import RETRY_S, Admit, Refuse, Request

LONG = replace(agents.STUDY, context_tokens=100_000, context_spread_tokens=0)
SHORT = replace(agents.STUDY, context_tokens=20_000, context_spread_tokens=0)
LONG_F = STUDY.prefill_s(103_500, 87_500)


class Scene:
    """A policy and requests for it."""

    def __init__(self, kind: type[Line], cap: int | None = 1, deadline_s: float | None = None) -> None:
        self.kv = Kv(10**7, host=False)
        self.policy = kind(Parts(self.kv, STUDY, Decode(STUDY)), cap, deadline_s)
        self.count = 0

    def asks(self, seat: str, at_s: float = 0.0, *, run_s: float | None = None, cold: bool = False) -> Request:
        self.count += 1
        agent = Agent(0, self.count, seat, LONG if cold else SHORT)
        request = Request(self.count, agent, at_s if run_s is None else run_s, at_s, at_s, 400)
        self.policy.arrived(request, at_s)
        return request

    def admits(self, at_s: float = 0.0) -> list[Request]:
        made = []
        while isinstance(move := self.policy.move(at_s), Admit):
            made.append(move.request)
            self.kv.pin(move.request.agent)
        assert move is None
        return made

    def leaves(self, request: Request, at_s: float) -> None:
        self.kv.unpin(request.agent)
        self.policy.left(request, at_s)


class TestLine:
    def test_first_come_is_first_served_while_a_ticket_is_free(self) -> None:
        scene = Scene(Line, cap=2)
        first, second, third = (scene.asks(seat) for seat in ("ana", "ben", "cay"))
        assert scene.admits() == [first, second]
        scene.leaves(first, 5.0)
        assert scene.admits(5.0) == [third]

    def test_without_a_cap_all_go(self) -> None:
        scene = Scene(Line, cap=None)
        assert scene.admits() == [] == [scene.asks(f"seat-{at}") for at in range(9)][9:]
        assert len(scene.admits()) == 9

    def test_at_its_deadline_a_turn_fails(self) -> None:
        scene = Scene(Line, cap=1, deadline_s=180.0)
        scene.asks("ana")
        scene.admits()
        late = scene.asks("ben", 10.0)
        assert scene.policy.wake_at_s == 190.0
        assert scene.policy.move(190.0) == Refuse(late, RETRY_S, failed=True)


class TestRoundRobin:
    def test_the_seat_that_was_served_longest_ago_goes_first(self) -> None:
        scene = Scene(RoundRobin)
        running = scene.asks("ana")
        scene.admits()
        again, other = scene.asks("ana", 1.0), scene.asks("ben", 2.0)
        scene.leaves(running, 9.0)
        assert scene.admits(9.0) == [other]
        scene.leaves(other, 12.0)
        assert scene.admits(12.0) == [again]


class TestVtc:
    def test_the_seat_that_used_least_goes_first_and_cached_tokens_are_free(self) -> None:
        scene = Scene(Vtc)
        heavy = scene.asks("ana", cold=True)
        scene.admits()
        again, other = scene.asks("ana", 1.0), scene.asks("ben", 2.0)
        scene.leaves(heavy, 20.0)
        assert scene.admits(20.0) == [other]
        scene.leaves(other, 30.0)
        assert scene.admits(30.0) == [again]

    def test_a_seat_that_comes_back_has_saved_nothing_up(self) -> None:
        scene = Scene(Vtc)
        first = scene.asks("ana", cold=True)
        scene.admits()
        queued = scene.asks("ana", 1.0)
        newcomer = scene.asks("ben", 2.0)
        scene.leaves(first, 20.0)
        assert scene.admits(20.0) == [newcomer]
        scene.leaves(newcomer, 25.0)
        scene.asks("ben", 26.0)
        assert scene.admits(26.0) == [queued]


class TestRecommended:
    def test_the_oldest_run_goes_first(self) -> None:
        scene = Scene(Recommended)
        running = scene.asks("ana")
        scene.admits()
        new, old = scene.asks("ben", 1.0), scene.asks("cay", 2.0, run_s=-500.0)
        scene.leaves(running, 3.0)
        assert scene.admits(3.0) == [old]
        scene.leaves(old, 4.0)
        assert scene.admits(4.0) == [new]

    def test_one_that_waited_two_minutes_goes_before_it(self) -> None:
        scene = Scene(Recommended)
        running = scene.asks("ana")
        scene.admits()
        aged = scene.asks("ben", 1.0)
        scene.asks("cay", 100.0, run_s=-500.0)
        scene.leaves(running, 121.0)
        assert scene.admits(121.0) == [aged]

    def test_one_cold_prompt_at_a_time_with_spacing_and_warm_ones_pass(self) -> None:
        scene = Scene(Recommended, cap=3)
        first, second = scene.asks("ana", cold=True), scene.asks("ben", cold=True)
        warm = scene.asks("cay")
        assert scene.admits() == [first, warm]
        scene.policy.read(first, LONG_F)
        assert scene.admits(LONG_F) == []
        assert scene.policy.wake_at_s == 3 * LONG_F
        assert scene.admits(3 * LONG_F) == [second]

    def test_the_spacing_does_not_hold_an_idle_pod(self) -> None:
        scene = Scene(Recommended)
        first, second = scene.asks("ana", cold=True), scene.asks("ben", cold=True)
        scene.admits()
        scene.policy.read(first, LONG_F)
        scene.leaves(first, LONG_F + 5)
        assert scene.admits(LONG_F + 5) == [second]
