"""gateway/prewarm/heads.py: what is kept, for how long, and within which bound."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.prewarm.heads import ACTIVE_S, BODY_MAX_BYTES, SHARED_OF, Heads

PATH = "/v1/chat/completions"


def runs(heads: Heads, now_s: float) -> list[str]:
    return [head.run for head in heads.active(now_s)]


def test_the_latest_body_of_a_run_replaces_the_one_before() -> None:
    heads = Heads(100)
    heads.keep("r", "a", PATH, b"one", 1.0)
    heads.keep("r", "a", PATH, b"three", 2.0)
    (head,) = heads.active(2.0)
    assert (head.body, head.at_s, heads.held_bytes) == (b"three", 2.0, 5)


def test_the_run_that_was_active_last_comes_first() -> None:
    heads = Heads(100)
    for at_s, run in enumerate(("one", "two", "three", "one")):
        heads.keep(run, "a", PATH, b"x", float(at_s))
    assert runs(heads, 3.0) == ["one", "three", "two"]


def test_ten_minutes_without_a_turn_end_it() -> None:
    heads = Heads(100)
    heads.keep("r", "a", PATH, b"x", 0.0)
    heads.forget(ACTIVE_S)
    assert runs(heads, ACTIVE_S) == ["r"]
    assert runs(heads, ACTIVE_S + 1) == []
    heads.forget(ACTIVE_S + 1)
    assert (heads.held_bytes, heads.get("r")) == (0, None)


def test_time_without_an_engine_does_not_count() -> None:
    heads = Heads(100)
    heads.keep("r", "a", PATH, b"x", 0.0)
    heads.stood_still(900.0)
    assert runs(heads, 900.0 + ACTIVE_S) == ["r"]


def test_a_body_that_would_push_out_many_others_is_not_kept() -> None:
    heads = Heads(20 * BODY_MAX_BYTES)
    heads.keep("r", "a", PATH, b"x", 0.0)
    heads.keep("large", "b", PATH, bytes(BODY_MAX_BYTES + 1), 0.0)
    heads.keep("r", "a", PATH, bytes(BODY_MAX_BYTES + 1), 1.0)
    assert (runs(heads, 1.0), heads.held_bytes) == ([], 0)


def test_the_oldest_run_goes_first_when_the_bound_is_reached() -> None:
    heads = Heads(10)
    for at_s, run in enumerate(("one", "two", "three")):
        heads.keep(run, "a", PATH, b"xxxx", float(at_s))
    assert runs(heads, 2.0) == ["three", "two"]


def test_a_body_above_the_bound_is_not_kept_and_takes_its_old_one_with_it() -> None:
    heads = Heads(4)
    heads.keep("r", "a", PATH, b"xx", 0.0)
    heads.keep("r", "a", PATH, b"xxxxx", 1.0)
    assert runs(heads, 1.0) == []


def test_with_0_bytes_nothing_is_kept() -> None:
    heads = Heads(0)
    heads.keep("r", "a", PATH, b"x", 0.0)
    assert runs(heads, 0.0) == []


def test_seats_that_are_gone_lose_theirs() -> None:
    heads = Heads(100, shared=("a",))
    heads.keep("one", "a", PATH, b"x", 0.0)
    heads.keep("two", "b", PATH, b"x", 0.0)
    heads.seats_gone({"a"})
    assert runs(heads, 0.0) == ["two"]
    assert heads.of_seat("a") == ()


def test_the_latest_bodies_of_a_shared_seat_stay() -> None:
    heads = Heads(100, shared=("a",))
    for number in range(SHARED_OF + 2):
        heads.keep(f"a{number}", "a", PATH, b"x", float(number))
    heads.keep("b", "b", PATH, b"x", 0.0)
    heads.forget(10_000.0)
    assert [head.run for head in heads.of_seat("a")] == ["a4", "a3", "a2"]
    assert heads.held_bytes == SHARED_OF
    assert heads.active(10_000.0) == ()


def test_a_body_does_not_show_in_what_is_printed() -> None:
    heads = Heads(100)
    heads.keep("r", "a", PATH, b"secret", 0.0)
    assert "secret" not in repr(heads.active(0.0))


@given(st.lists(st.tuples(st.integers(0, 5), st.binary(max_size=30), st.booleans()), max_size=40), st.integers(0, 60))
def test_the_bound_holds_whatever_is_kept(kept: list[tuple[int, bytes, bool]], capacity: int) -> None:
    heads = Heads(capacity, shared=("a",))
    for at_s, (run, body, gone) in enumerate(kept):
        heads.keep(str(run), "a" if run % 2 else "b", PATH, body, at_s * 100.0)
        if gone:
            heads.forget(at_s * 100.0)
        held = [heads.get(str(number)) for number in range(6)]
        assert sum(len(head.body) for head in held if head) == heads.held_bytes <= capacity
