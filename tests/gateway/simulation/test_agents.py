"""Developers' sessions: the same numbers for the same seed, whatever a policy does with them."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.random import default_rng

from gateway.simulation.agents import STUDY, Agent


class TestNumbers:
    def test_they_are_those_of_the_model(self) -> None:
        agent = Agent(7, 3, "ana")
        assert agent.first_pause_s() == pytest.approx(1320 * default_rng([7, 3, 2]).standard_exponential(1600)[0])
        assert agent.context_tokens == 20_000 + int(140_000 * default_rng([7, 3, 4]).random())
        assert agent.prompt_tokens == agent.context_tokens + 3500

    def test_two_agents_of_a_seed_differ_and_the_same_one_does_not(self) -> None:
        assert Agent(1, 0, "a").context_tokens == Agent(1, 0, "b").context_tokens
        assert Agent(1, 0, "a").context_tokens != Agent(1, 1, "a").context_tokens

    def test_a_long_day_draws_more_blocks_of_the_same_streams(self) -> None:
        agent = Agent(5, 0, "ana", replace(STUDY, think_s=0.0))
        replies = []
        for _ in range(1700):
            replies.append(agent.reply_tokens)
            agent.turn_done()
        assert min(replies) >= 2
        assert fmean(replies) == pytest.approx(400, rel=0.1)


class TestTurns:
    @settings(max_examples=20)
    @given(seed=st.integers(0, 10_000))
    def test_a_context_grows_by_prompt_and_reply_and_is_cut_when_it_is_full(self, seed: int) -> None:
        agent = Agent(seed, 0, "ana")
        for _ in range(100):
            grown = agent.prompt_tokens + agent.reply_tokens
            after_s, _ = agent.turn_done()
            assert after_s >= 0
            assert agent.compacted == (grown >= 160_000)
            assert agent.context_tokens == (30_000 if agent.compacted else grown)

    def test_a_run_has_ten_turns_on_average_and_a_hog_never_thinks(self) -> None:
        agent = Agent(2, 0, "ana")
        begins = [agent.turn_done()[1] for _ in range(1500)]
        assert sum(begins) == pytest.approx(150, rel=0.25)
        hog = Agent(2, 0, "hog", replace(STUDY, think_s=0.0))
        assert fmean(hog.turn_done()[0] for _ in range(1500)) == pytest.approx(STUDY.mean_gap_s, rel=0.15)
