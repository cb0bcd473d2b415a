"""gateway.learning.watch: what broken prefixes cost each seat, and what is said of it."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.learning.divergence import Relation
from gateway.learning.prompt import CanonicalPrompt
from gateway.learning.watch import KEPT_BYTES, KEPT_S, TURNS, PrefixWatch, Turn
from gateway.learning.watch_findings import REPEATED, watch_findings
from tests.gateway.learning.conversations import SYSTEM, TOOLS, message, prompt, turns

BYTES_PER_TOKEN = 4


def seconds(prompt_tokens: int, cached_tokens: int) -> float:
    return (prompt_tokens - cached_tokens) / 1000


def tokens(found: CanonicalPrompt) -> int:
    return len(found.data) // BYTES_PER_TOKEN


class Agent:
    """Sends prompts one after the other; the engine caches what it has read unless told otherwise."""

    def __init__(self, watch: PrefixWatch, run: str = "run", seat: str = "ana", client: str = "claude-cli") -> None:
        self.watch, self.run, self.seat, self.client = watch, run, seat, client
        self.now_s = 0.0

    def send(self, own: CanonicalPrompt, hit_share: float | None = None, *, refused: bool = False) -> Turn:
        self.now_s += 10
        turn = self.watch.came(self.run, self.seat, self.client, own, self.now_s)
        if not refused:
            share = turn.common_share if hit_share is None else hit_share
            self.lost_s = self.watch.ended(turn, tokens(own), int(share * tokens(own)), seconds, self.now_s)
        return turn


def big(count: int, **more: Any) -> CanonicalPrompt:
    """A conversation whose tools and system prompt have some 10,000 tokens."""
    clock = more.pop("clock", "")
    return prompt(turns(count), system=f"{clock}{SYSTEM * 40}", **more)


def test_turns_that_continue_each_other_are_no_finding() -> None:
    watch = PrefixWatch()
    agent = Agent(watch)
    for count in range(1, 30):
        agent.send(big(count))
    [row] = watch.rows(agent.now_s)
    assert (row.seat, row.client, row.turns, row.of, row.changed, row.missed) == ("ana", "claude-cli", 28, TURNS, 0, 0)
    assert row.expected_share is not None
    assert row.expected_share > 0.9
    assert row.real_share == pytest.approx(row.expected_share, abs=0.01)
    assert watch_findings(watch.rows(agent.now_s)) == ()


def test_a_clock_in_the_system_prompt_costs_seconds_and_becomes_a_finding() -> None:
    watch = PrefixWatch()
    agent = Agent(watch)
    for count in range(1, 6):
        agent.send(big(count, clock=f"Time: 10:0{count} "))
    [row] = watch.rows(agent.now_s)
    assert (row.changed, row.of) == (4, 4)
    assert row.lost_s == pytest.approx(4 * tokens(big(1)) / 1000, rel=0.2)
    assert row.expected_share is not None
    assert row.real_share is not None
    assert row.expected_share > 0.9 > 0.2 > row.real_share
    [finding] = watch_findings(watch.rows(agent.now_s))
    assert finding.id == "prefix.unstable"
    assert "claude-cli of ana: 4 of 4 turns, last at byte" in finding.observed
    assert "9+:9+" in finding.observed
    assert finding.remedy.startswith("take the clock or the date out of the client's system prompt")
    assert "Time" not in finding.observed


def test_a_change_now_and_then_is_no_finding() -> None:
    watch = PrefixWatch()
    agent = Agent(watch)
    for count in range(1, 11):
        agent.send(big(count, clock=f"Time: 10:0{count // 4} "))
    [row] = watch.rows(agent.now_s)
    assert row.changed == REPEATED - 1
    assert watch_findings([row]) == ()


def test_each_cause_has_its_remedy() -> None:
    watch = PrefixWatch()
    tools, billing = Agent(watch, "one", "ana", "codex"), Agent(watch, "two", "bob", "claude-cli")
    for count in range(1, 6):
        tools.send(big(count, tools=TOOLS[count % 4 :] + TOOLS[: count % 4]))
        billing.send(big(count, clock=f"\nx-anthropic-billing-header: cch={count:04}; "))
    [finding] = watch_findings(watch.rows(50.0))
    assert "CLAUDE_CODE_ATTRIBUTION_HEADER=0" in finding.remedy
    assert "same order" in finding.remedy


def test_sub_agents_of_one_run_are_conversations_of_their_own() -> None:
    watch = PrefixWatch()
    agent = Agent(watch)
    for count in range(1, 8):
        for name in ("a", "b", "c"):
            agent.send(prompt(turns(count, name), system=f"{name} {SYSTEM}"))
    [row] = watch.rows(agent.now_s)
    assert (row.turns, row.changed) == (18, 0)


def test_a_call_of_another_kind_in_between_changes_nothing() -> None:
    watch = PrefixWatch()
    agent = Agent(watch)
    for count in range(1, 8):
        agent.send(big(count))
        assert agent.send(prompt(turns(count), system="Extract what to remember. " * 40, tools=[])).relation in (
            Relation.NEW,
            Relation.CONTINUES,
        )
    assert watch.rows(agent.now_s)[0].changed == 0


def test_a_turn_that_was_refused_and_comes_again_was_never_read() -> None:
    watch = PrefixWatch()
    agent = Agent(watch)
    agent.send(big(1), refused=True)
    for count in range(1, 6):
        agent.send(big(count), refused=True)
        agent.send(big(count))
    [row] = watch.rows(agent.now_s)
    assert (row.changed, row.missed) == (0, 0)


def test_an_engine_that_reads_again_what_it_has_read_is_a_finding() -> None:
    watch = PrefixWatch()
    agent = Agent(watch)
    for count in range(1, 6):
        agent.send(big(count), hit_share=0.05)
    [row] = watch.rows(agent.now_s)
    assert (row.changed, row.missed) == (0, 4)
    [finding] = watch_findings([row])
    assert finding.id == "prefix.missed"
    assert finding.observed.startswith("4 of the last 4 turns of ana found less than half")


def test_nothing_is_missed_after_a_long_pause_or_another_start_or_when_the_engine_does_not_say() -> None:
    watch = PrefixWatch()
    agent = Agent(watch)
    for count in range(1, 6):
        agent.now_s += 700
        agent.send(big(count), hit_share=0.0)
    for count in range(6, 10):
        watch.engine_started()
        agent.send(big(count), hit_share=0.0)
    for count in range(10, 14):
        turn = watch.came("run", "ana", "claude-cli", big(count), agent.now_s)
        watch.ended(turn, 10_000, None, seconds, agent.now_s)
    assert watch.rows(agent.now_s)[0].missed == 0


def test_what_was_lost_is_of_the_last_hour() -> None:
    watch = PrefixWatch()
    agent = Agent(watch)
    agent.send(big(1, clock="10:05 "))
    agent.send(big(2, clock="10:06 "))
    assert agent.lost_s > 1
    assert watch.rows(agent.now_s + 3599)[0].lost_s == pytest.approx(agent.lost_s)
    assert watch.rows(agent.now_s + 3601)[0].lost_s == 0


def test_a_change_of_a_few_tokens_is_none() -> None:
    watch = PrefixWatch()
    agent = Agent(watch)
    for count in range(1, 8):
        small = [message("user", f"It is 10:0{count}, do it at once if you can"), *turns(count)[1:]]
        agent.send(prompt(small[:1], system="short", tools=[]))
    assert all(row.changed == 0 for row in watch.rows(agent.now_s))


def test_prompts_are_forgotten_after_an_hour_though_nobody_sends_and_the_oldest_run_first() -> None:
    size = KEPT_BYTES + len(big(1).data)
    watch = PrefixWatch(3 * size + 100)
    for at, run in enumerate("abcde"):
        watch.came(run, "ana", "pi", big(1), float(at))
    assert watch.held_bytes == 3 * size
    assert watch.came("a", "ana", "pi", big(1), 6.0).relation is Relation.NEW
    assert watch.came("e", "ana", "pi", big(1), 6.0).relation is Relation.CONTINUES
    watch.forget(5.0 + KEPT_S)
    assert watch.held_bytes == 2 * size
    watch.forget(6.0 + KEPT_S)
    assert watch.held_bytes == 0


def test_many_small_prompts_are_within_the_bound_too() -> None:
    watch = PrefixWatch(100 * KEPT_BYTES)
    for number in range(1000):
        watch.came(str(number), "ana", "pi", prompt([message("user", str(number))]), 0.0)
    assert len(watch._runs) < 100


def test_a_prompt_of_one_part_keeps_no_more_than_its_bytes() -> None:
    body = {"messages": [message("user", "x")]}
    tracemalloc.start()
    try:
        kept = [CanonicalPrompt.of(body) for _ in range(100)]
        assert tracemalloc.get_traced_memory()[0] < 100 * KEPT_BYTES
    finally:
        tracemalloc.stop()
    assert len(kept[0].ends) == 1


def test_one_prompt_that_is_too_long_is_not_watched() -> None:
    watch = PrefixWatch(1000)
    assert watch.came("a", "ana", "pi", big(1), 0.0).relation is Relation.NEW
    assert watch.held_bytes == 0


def test_nothing_of_a_prompt_is_printable() -> None:
    watch = PrefixWatch()
    turn = watch.came("a", "ana", "pi", prompt([message("user", "my secret")]), 0.0)
    assert "secret" not in f"{turn!r} {turn.kept!r} {watch.__dict__!r}"


STEPS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 6), st.sampled_from(["", "10:05 ", "x"]), st.floats(0, 2000)),
    max_size=40,
)


@given(STEPS, st.integers(1000, 60_000))
def test_memory_stays_within_its_bound_and_shares_are_shares(
    steps: list[tuple[str, int, str, float]], memory_bytes: int
) -> None:
    watch, now_s = PrefixWatch(memory_bytes), 0.0
    for run, count, clock, pause_s in steps:
        now_s += pause_s
        own = prompt(turns(count + 1, run), system=clock + SYSTEM)
        turn = watch.came(run, run, "pi", own, now_s)
        assert watch.held_bytes <= memory_bytes
        assert 0 <= turn.common_share <= turn.expected_share <= 1
        assert watch.ended(turn, tokens(own), None, seconds, now_s) >= 0
    for row in watch.rows(now_s):
        assert row.changed <= row.of <= TURNS


def test_of_a_seat_that_is_gone_no_prompt_is_kept() -> None:
    watch = PrefixWatch()
    Agent(watch, "one", "ana").send(big(2))
    Agent(watch, "two", "ben").send(big(3))
    watch.seats_gone({"ana"})
    assert watch.held_bytes == KEPT_BYTES + len(big(3).data)
    assert Agent(watch, "one", "ana").send(big(3)).relation is Relation.NEW
    assert Agent(watch, "two", "ben").send(big(4)).relation is Relation.CONTINUES
