"""The engine's cache: whole sessions, the longest unused goes first."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gateway.simulation.agents import STUDY, Agent
from gateway.simulation.kv import SHARED_TOKENS, Kv, Reading

ROOMY = 10_000_000
FIXED = replace(STUDY, context_tokens=100_000, context_spread_tokens=0)


def agents(count: int) -> list[Agent]:
    return [Agent(0, index, f"seat-{index}", FIXED) for index in range(count)]


def turn(kv: Kv, agent: Agent) -> list[int]:
    evicted = kv.pin(agent)
    kv.unpin(agent)
    agent.turn_done()
    return evicted


class TestReading:
    def test_at_first_only_the_shared_head_is_cached_and_then_the_whole_context(self) -> None:
        kv, (ana,) = Kv(ROOMY, host=False), agents(1)
        assert kv.reading(ana) == Reading(100_000 + 3500 - SHARED_TOKENS, 0)
        turn(kv, ana)
        assert kv.reading(ana) == Reading(3500, 0)

    def test_a_context_that_was_cut_is_read_again(self) -> None:
        kv, ana = Kv(ROOMY, host=True), Agent(0, 0, "ana", replace(FIXED, context_tokens=158_000))
        turn(kv, ana)
        assert ana.compacted
        assert kv.reading(ana) == Reading(17_500, 0)

    def test_what_was_evicted_comes_back_from_host_ram_if_there_is_such_a_tier(self) -> None:
        for host in (True, False):
            kv, (ana, ben) = Kv(130_000, host=host), agents(2)
            turn(kv, ana)
            assert turn(kv, ben) == [ana.index]
            context = ana.context_tokens
            wanted = Reading(3500, context - SHARED_TOKENS) if host else Reading(context + 3500 - SHARED_TOKENS, 0)
            assert kv.reading(ana) == wanted


class TestRoom:
    def test_the_session_that_was_used_longest_ago_goes_first(self) -> None:
        kv, (ana, ben, cay) = Kv(270_000, host=False), agents(3)
        turn(kv, ana), turn(kv, ben), turn(kv, ana)
        assert turn(kv, cay) == [ben.index]

    def test_a_turn_has_room_beside_others_or_alone(self) -> None:
        kv, (ana, ben) = Kv(150_000, host=False), agents(2)
        assert kv.fits(ana)
        kv.pin(ana)
        assert not kv.fits(ben)
        kv.unpin(ana)
        assert kv.fits(ben)

    @given(st.lists(st.integers(0, 5), max_size=40), st.integers(50_000, 900_000))
    def test_what_is_idle_never_holds_more_than_there_is(self, turns: list[int], tokens: int) -> None:
        kv, those = Kv(tokens, host=False), agents(6)
        held: dict[int, int] = {}
        for index in turns:
            agent = those[index]
            charge = agent.prompt_tokens + agent.reply_tokens - SHARED_TOKENS
            for gone in turn(kv, agent):
                del held[gone]
            held[index] = charge
            assert sum(held.values()) <= max(tokens - SHARED_TOKENS, charge)
