"""The shipped admission in the simulated pod."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.admission_types import Limits
from gateway.simulation import agents
from gateway.simulation.agents import Agent
from gateway.simulation.kv import Kv
from gateway.simulation.pace import STUDY
from gateway.simulation.pod import Parts, Pod
from gateway.simulation.request import RETRY_S, Move, Policy, Refuse
from gateway.simulation.shipped import Shipped

LIMITS = Limits()
NONSTOP = replace(agents.STUDY, think_s=0.0)


class Watched(Shipped):
    """Counts tickets and remembers refusals."""

    def __init__(self, parts: Parts, limits: Limits = LIMITS) -> None:
        super().__init__(parts, limits)
        self.most = 0
        self.refusals: list[Refuse] = []

    def move(self, now_s: float) -> Move | None:
        made = super().move(now_s)
        if isinstance(made, Refuse):
            self.refusals.append(made)
        self.most = max(self.most, len(self.admission.view().running))
        return made


def a_day(those: list[Agent], hours: float, limits: Limits = LIMITS, tokens: int = 1_360_000) -> tuple[Pod, Watched]:
    made: list[Watched] = []

    def policy(parts: Parts) -> Policy:
        made.append(Watched(parts, limits))
        return made[0]

    pod = Pod(those, Kv(tokens, host=False), STUDY, policy)
    pod.run(hours * 3600)
    return pod, made[0]


def busy(seats: int, seed: int = 0) -> list[Agent]:
    return [Agent(seed, index, f"seat-{index}", NONSTOP) for index in range(seats)]


def test_it_is_gateways_own_admission_with_the_limits_given() -> None:
    limits = replace(LIMITS, streams=2)
    _, policy = a_day(busy(6), 0.2, limits)
    assert type(policy.admission).__module__ == "gateway.admission"
    assert policy.admission.limits == limits
    assert policy.most == 2


def test_a_turn_that_fails_at_its_deadline_counts_as_failed() -> None:
    pod, policy = a_day(busy(24), 1.0, replace(LIMITS, queue_deadline_s=20.0))
    failed = [move for move in policy.refusals if move.failed]
    assert failed
    assert len(failed) == sum(one.failed for one in pod.ended)
    assert all(move.retry_s == 30 for move in failed)


def test_a_second_cold_request_of_a_seat_is_refused_and_comes_back() -> None:
    hog = [Agent(0, index, "hog", NONSTOP) for index in range(6)]
    pod, policy = a_day(hog, 0.5)
    refused = [move for move in policy.refusals if not move.failed]
    assert pod.refused == len(refused) > 0
    assert all(10 <= move.retry_s <= 59 for move in refused)
    assert any(move.retry_s != RETRY_S for move in refused), "as the box says, not as after a deadline"
    assert all(move.request.asked_s <= move.request.arrived_s for move in refused)
    assert max(move.request.arrived_s - move.request.asked_s for move in refused) >= 10


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 999), seats=st.integers(1, 30), streams=st.integers(1, 6))
def test_no_more_streams_than_it_has_and_nobody_beyond_the_deadline(seed: int, seats: int, streams: int) -> None:
    pod, policy = a_day(busy(seats, seed), 0.3, replace(LIMITS, streams=streams))
    assert policy.most <= streams
    assert all(one.failed or one.queue_s <= 180.0 for one in pod.ended)


def test_the_same_seed_gives_the_same_day() -> None:
    first, _ = a_day(busy(12, seed=4), 0.5)
    second, _ = a_day(busy(12, seed=4), 0.5)
    assert first.ended == second.ended
