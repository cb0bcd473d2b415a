"""Tries to break the index: a Hypothesis state machine of requests that run at once, fail, lose and come back."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from gateway.meter import Usage
from gateway.prefix.index import PrefixIndex, Reading
from tests.fake_engine.cache import BLOCK_TOKENS
from tests.gateway.prefix.chains import chain, dumped

PATHS = st.lists(st.integers(0, 2), min_size=0, max_size=12)


class Machine(RuleBasedStateMachine):
    """`running` are requests in the engine; `seen` are all paths there ever were."""

    @initialize(capacity=st.none() | st.integers(1, 30))
    def start(self, capacity: int | None) -> None:
        self.index = PrefixIndex(capacity and capacity * BLOCK_TOKENS)
        self.running: list[Reading] = []
        self.seen: list[list[int]] = []
        self.now_s = 0.0

    @rule(path=PATHS, written=st.sets(st.integers(0, 11)))
    def begins(self, path: list[int], written: set[int]) -> None:
        self.now_s += 1
        self.seen.append(path)
        print_ = chain(path, written=sorted(written))
        expected = self.index.estimate(print_, "ana")
        reading = self.index.begin(print_, "ana", self.now_s)
        assert reading.expected == expected
        self.running.append(reading)

    @precondition(lambda self: self.running)
    @rule(
        at=st.integers(0, 9),
        cached=st.none() | st.integers(0, 2000),
        reply=st.integers(0, 300),
        length=st.integers(0, 2000),
    )
    def ends(self, at: int, cached: int | None, reply: int, length: int) -> None:
        reading = self.running.pop(at % len(self.running))
        self.index.end(reading, Usage(length, reply, cached), read=True, now_s=self.now_s)

    @precondition(lambda self: self.running)
    @rule(at=st.integers(0, 9), read=st.booleans())
    def fails(self, at: int, read: bool) -> None:
        self.index.end(self.running.pop(at % len(self.running)), None, read=read, now_s=self.now_s)

    @rule()
    def engine_restarts(self) -> None:
        self.index.clear()
        for reading in self.running:
            self.index.end(reading, None, read=True, now_s=self.now_s)
        self.running.clear()

    @rule()
    def gateway_restarts(self) -> None:
        self.index = PrefixIndex.load(dumped(self.index))
        self.running.clear()

    @invariant()
    def what_runs_is_held_and_stays(self) -> None:
        for reading in self.running:
            if reading.print_.names:
                estimate = self.index.estimate(reading.print_, "ana")
                assert estimate.cached_tokens == estimate.prompt_tokens - 1

    @invariant()
    def with_a_block_all_before_it_are_held(self) -> None:
        blocks = self.index._blocks
        for path in self.seen:
            held = [blocks.held(name) is not None for name in chain(path).names]
            assert held == sorted(held, reverse=True)
            assert blocks.depth(chain(path).names) == sum(held)

    @invariant()
    def nothing_is_held_beyond_the_capacity_but_what_runs(self) -> None:
        blocks = self.index._blocks
        both = [*blocks._free.values(), *blocks._pinned.values()]
        assert self.index.held_tokens == sum(block.tokens for block in both)
        capacity = self.index.capacity_tokens
        if capacity is not None:
            assert self.index.held_tokens <= max(capacity, sum(block.tokens for block in blocks._pinned.values()))

    @invariant()
    def an_estimate_is_within_the_prompt(self) -> None:
        for path in self.seen[-3:]:
            estimate = self.index.estimate(chain([*path, 2]), "ben")
            assert 0 <= estimate.cached_tokens < estimate.prompt_tokens

    @invariant()
    def a_dump_can_be_read(self) -> None:
        PrefixIndex.load(dumped(self.index))


def test_the_index_holds_together_whatever_comes() -> None:
    run_state_machine_as_test(Machine, settings=settings(max_examples=100, stateful_step_count=30, deadline=None))
