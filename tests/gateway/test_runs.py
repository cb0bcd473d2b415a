"""Runs: who belongs together, for how long, and which calls are helpers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.traits import Traits
from gateway.runs import HELPER_MAX_BYTES, IDLE_S, RUNS_MAX, Call, Runs

Headers = list[tuple[bytes, bytes]]
CLAUDE, CODEX, OPENCODE = (b"x-claude-code-session-id", b"1"), (b"session-id", b"2"), (b"x-session-id", b"3")
TURN = Traits(first_text="fix it", tools=True)
PLAIN = Traits(first_text="fix it")


class Desk:
    """Requests of one clock."""

    def __init__(self) -> None:
        self.runs = Runs()
        self.now_s = 1000.0

    def begin(
        self, seat: str = "ana", headers: Headers | None = None, traits: Traits = TURN, size: int = 40_000
    ) -> Call:
        return self.runs.begin(seat, headers or [], traits, size, self.now_s)

    def whole(
        self, seat: str = "ana", headers: Headers | None = None, traits: Traits = TURN, size: int = 40_000
    ) -> Call:
        call = self.begin(seat, headers, traits, size)
        self.runs.end(call, self.now_s)
        return call


def test_turns_of_a_run_are_counted() -> None:
    desk = Desk()
    assert [desk.whole(headers=[CLAUDE]).turn for _ in range(3)] == [1, 2, 3]
    assert desk.whole(headers=[(CLAUDE[0], b"other")]).turn == 1


def test_ninety_quiet_seconds_end_a_run_and_an_open_request_keeps_it() -> None:
    desk = Desk()
    first = desk.whole(headers=[CLAUDE])
    desk.now_s += IDLE_S - 1
    second = desk.begin(headers=[CLAUDE])
    assert (second.run, second.turn) == (first.run, 2)
    desk.now_s += 10 * IDLE_S
    assert desk.begin(headers=[CLAUDE]).turn == 3, "the second still runs"
    assert desk.runs.active(desk.now_s) == 1
    for _ in range(2):
        desk.runs.end(second, desk.now_s)
    desk.now_s += IDLE_S
    assert desk.runs.active(desk.now_s) == 0
    again = desk.begin(headers=[CLAUDE])
    assert (again.turn, again.run.key) == (1, first.run.key)
    assert again.run is not first.run


@pytest.mark.parametrize(("quiet_s", "same"), [(89.9, True), (90.0, False), (90.1, False)])
def test_a_run_is_over_after_ninety_seconds_in_numbers(quiet_s: float, same: bool) -> None:
    desk = Desk()
    first = desk.whole(headers=[CLAUDE])
    desk.now_s += quiet_s
    assert desk.runs.active(desk.now_s) == same
    second = desk.begin(headers=[CLAUDE])
    assert (second.run is first.run) is same
    assert second.turn == (2 if same else 1)


def test_seats_never_share_a_run() -> None:
    desk = Desk()
    assert desk.whole("ana", [CLAUDE]).run.key != desk.whole("ben", [CLAUDE]).run.key
    assert desk.whole("ana").run.key != desk.whole("ben").run.key
    assert desk.whole("a", traits=Traits("bc")).run.key != desk.whole("ab", traits=Traits("c")).run.key


@pytest.mark.parametrize(
    ("headers", "traits", "same_as"),
    [
        ([CLAUDE, CODEX, OPENCODE], TURN, [CLAUDE]),
        ([OPENCODE, CODEX], TURN, [CODEX]),
        ([(b"session_id", b"2"), OPENCODE], TURN, [CODEX]),
        ([OPENCODE], Traits("a", prompt_key="k"), [OPENCODE]),
        ([(b"session-id", b""), OPENCODE], TURN, [OPENCODE]),
        ([], Traits("a", prompt_key="2"), [CODEX]),
        ([(b"x-other", b"9")], Traits("a", prompt_key="3"), [OPENCODE]),
    ],
)
def test_what_an_agent_says_of_itself_names_the_run(headers: Headers, traits: Traits, same_as: Headers) -> None:
    desk = Desk()
    assert desk.whole(headers=headers, traits=traits).run.key == desk.whole(headers=same_as).run.key


def test_without_that_the_first_text_does() -> None:
    desk = Desk()
    first = desk.whole(traits=Traits("fix \ud83d", tools=True))
    assert desk.whole(traits=Traits("fix \ud83d", tools=True)).run is first.run
    assert desk.whole(traits=Traits("fix it", tools=True)).run is not first.run
    assert desk.whole(traits=Traits(prompt_key="\ud83d")).run is not first.run
    assert len(first.run.key) == 16
    assert set(first.run.key) <= set("0123456789abcdef"), "a digest, no text"


@pytest.mark.parametrize(
    ("headers", "traits", "size", "helper"),
    [
        ([CLAUDE], PLAIN, 4000, True),
        ([OPENCODE], PLAIN, 2500, True),
        ([CLAUDE], Traits("t", json_output=True), 4000, True),
        ([CLAUDE], TURN, 4000, False),
        ([CLAUDE], PLAIN, HELPER_MAX_BYTES, True),
        ([CLAUDE], PLAIN, HELPER_MAX_BYTES + 1, False),
        ([], PLAIN, 2500, False),
        ([], Traits("t", json_output=True), 2500, False),
        ([], Traits("t", prompt_key="k"), 2500, False),
    ],
)
def test_a_helper_is_small_without_tools_and_of_an_agent(
    headers: Headers, traits: Traits, size: int, helper: bool
) -> None:
    call = Desk().begin(headers=headers, traits=traits, size=size)
    assert (call.helper, call.turn) == (helper, 0 if helper else 1)


def test_a_run_whose_turns_had_tools_is_an_agents() -> None:
    desk = Desk()
    desk.whole(traits=TURN)
    helper = desk.whole(traits=PLAIN, size=2500)
    assert (helper.helper, helper.turn) == (True, 1)
    assert desk.whole(traits=TURN).turn == 2, "helpers are no turns"


def test_the_number_of_runs_is_bounded_and_the_quietest_goes_first() -> None:
    desk = Desk()
    kept = desk.begin(headers=[CLAUDE])
    for number in range(RUNS_MAX - 1):
        desk.whole(headers=[(b"session-id", b"n%d" % number)])
    assert desk.begin(headers=[CLAUDE]).run is kept.run
    desk.whole(headers=[(b"session-id", b"more")])
    assert desk.runs.active(desk.now_s) == RUNS_MAX
    assert desk.begin(headers=[CLAUDE]).turn == 3, "it was asked for again: it is not the quietest"
    assert desk.begin(headers=[(b"session-id", b"n0")]).turn == 1, "it was"
    assert len(desk.runs._runs) == RUNS_MAX


def test_runs_that_are_over_are_forgotten() -> None:
    desk = Desk()
    for number in range(100):
        desk.whole(headers=[(b"session-id", b"n%d" % number)])
    desk.now_s += IDLE_S
    desk.whole()
    assert len(desk.runs._runs) == 1


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.sampled_from([0.0, 1.0, 89.0, 90.0])), max_size=40))
def test_no_order_of_requests_makes_a_count_negative(events: list[tuple[str, bool, float]]) -> None:
    desk = Desk()
    under_way: list[Call] = []
    for name, begins, gap_s in events:
        desk.now_s += gap_s
        if begins or not under_way:
            under_way.append(desk.begin(headers=[(b"session-id", name.encode())]))
        else:
            desk.runs.end(under_way.pop(0), desk.now_s)
        counted: dict[int, int] = {}
        for call in under_way:
            counted[id(call.run)] = counted.get(id(call.run), 0) + 1
        assert all(call.run.open == counted[id(call.run)] for call in under_way)
        assert all(run.open >= 0 for run in desk.runs._runs.values())
        assert desk.runs.active(desk.now_s) >= len({call.run.key for call in under_way})


def test_another_process_goes_on_with_the_runs_of_the_last_one() -> None:
    desk, next_one = Desk(), Desk()
    desk.whole(headers=[CLAUDE])
    desk.begin(headers=[CLAUDE])
    next_one.runs.load(desk.runs.dump(), desk.now_s + 10)
    next_one.now_s += 20
    title = next_one.begin(headers=[CLAUDE], traits=PLAIN, size=3_000)
    assert (title.run.started_s, title.turn, title.helper) == (1000.0, 2, True), "its turns had tools"
    next_one.runs.end(title, next_one.now_s)
    next_one.now_s += IDLE_S
    assert next_one.runs.active(next_one.now_s) == 0, "what was open there is over"


@pytest.mark.parametrize(
    "kept", [None, {}, [5], [["k", 2.0, 1.0, 1, 1, True]], [["k", 1.0, 1001.0, 1, 1, True]], [["k", 1.0, 1.0, 1, 1, 1]]]
)
def test_runs_that_cannot_be_are_not_taken(kept: object) -> None:
    desk = Desk()
    desk.runs.load(kept, desk.now_s)
    assert desk.runs.dump() == []
