"""How long a start still takes, by the last one; and how that is kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.engine import boot_times_kept
from appliance.engine.adapter import Launch
from appliance.engine.boot_times import STEPS_MAX, Boot, Course, began, estimate, stepped, whole

LAST: Boot = (("", 20.0), ("loading", 300.0), ("compiling", 100.0), ("warming up", 30.0))
NAMES = st.sampled_from(["", "loading", "compiling", "capturing", "warming up"])
SECONDS = st.floats(0, 1e5)


def at(*steps: tuple[str, float], first: float = 0.0) -> Course:
    """A course that came to each step at that time."""
    course = began(first)
    for name, now_s in steps:
        course = stepped(course, name, None, now_s)
    return course


def left(course: Course, now_s: float, last: Boot = LAST) -> float:
    found = estimate(last, course, now_s)
    assert found is not None
    return found.left_s


def test_what_is_left_is_what_is_left_of_the_last_boot() -> None:
    assert left(at(), 5.0) == 445.0
    assert left(at(("loading", 20.0)), 120.0) == 200.0 + 100.0 + 30.0


def test_a_start_that_is_slower_so_far_is_expected_to_stay_so() -> None:
    assert left(at(("loading", 40.0)), 40.0) == 2 * 430.0


def test_the_share_is_of_the_whole_start() -> None:
    found = estimate(LAST, at(("loading", 20.0)), 120.0)
    assert found is not None
    assert found.share == pytest.approx(120 / 450)


def test_a_step_that_says_how_far_it_is_is_believed_once_it_has_moved() -> None:
    course = stepped(at(("loading", 20.0)), "loading", 0.0, 20.0)
    assert left(course, 80.0) == 240.0 + 130.0
    course = stepped(course, "loading", 0.5, 120.0)
    assert left(course, 120.0) == pytest.approx(100.0 + 130.0)


def test_a_step_that_takes_longer_than_the_last_time_has_nothing_left_but_the_others() -> None:
    assert left(at(("loading", 20.0)), 1000.0) == 130.0


def test_nobody_knows_without_a_last_boot_or_at_an_unknown_step() -> None:
    assert estimate((), at(), 5.0) is None
    assert estimate(LAST, at(("something new", 20.0)), 25.0) is None


def test_a_step_that_is_new_does_not_hide_those_behind_it() -> None:
    assert left(at(("new", 20.0), ("loading", 25.0)), 25.0) == 430.0


def test_the_second_time_a_step_comes_is_another_step() -> None:
    last: Boot = (("", 1.0), ("loading", 10.0), ("compiling", 5.0), ("loading", 4.0))
    assert left(at(("loading", 1.0), ("compiling", 11.0), ("loading", 16.0)), 16.0, last) == 4.0


@given(st.lists(st.tuples(NAMES, SECONDS), max_size=STEPS_MAX), st.lists(st.tuples(NAMES, st.floats(0, 100))))
def test_an_estimate_is_never_negative_and_a_share_is_one(
    last: list[tuple[str, float]], steps: list[tuple[str, float]]
) -> None:
    course, now_s = began(0.0), 0.0
    for name, later_s in steps:
        now_s += later_s
        course = stepped(course, name, None, now_s)
        found = estimate(tuple(last), course, now_s)
        assert found is None or (found.left_s >= 0 and 0 <= found.share <= 1)
    boot = whole(course, now_s)
    assert len(boot) <= STEPS_MAX
    assert sum(seconds for _, seconds in boot) == pytest.approx(now_s)


@given(st.lists(st.tuples(NAMES, st.floats(0.001, 1e4)), min_size=1, max_size=8))
def test_a_boot_that_goes_as_the_last_one_is_foretold_to_the_second(boot: list[tuple[str, float]]) -> None:
    last = tuple((f"{index} {name}", seconds) for index, (name, seconds) in enumerate(boot))
    total_s, now_s = sum(seconds for _, seconds in last), 0.0
    course = stepped(began(0.0), last[0][0], None, 0.0)
    last = (("", 0.0), *last)
    for name, seconds in last[1:]:
        course = stepped(course, name, None, now_s)
        assert left(course, now_s, last) == pytest.approx(total_s - now_s, abs=1e-3)
        now_s += seconds


def launch(*argv: str, key: str = "/run/engine-1.key") -> Launch:
    return Launch((*argv, key), {"KEY": key}, "http://h", Path(key), "/health", 10.0, 1.0)


def test_a_boot_is_kept_by_what_was_started(tmp_path: Path) -> None:
    key = Path("/run/engine-1.key")
    mark = boot_times_kept.mark_of(launch("vllm"), (), key)
    other = Path("/run/engine-2.key")
    assert boot_times_kept.mark_of(launch("vllm", key=str(other)), (), other) == mark
    assert boot_times_kept.mark_of(launch("vllm", "-v"), (), key) != mark
    assert boot_times_kept.mark_of(launch("vllm"), ("--tier",), key) != mark
    boot_times_kept.save(tmp_path, mark, LAST)
    assert boot_times_kept.load(tmp_path, mark) == LAST
    assert boot_times_kept.load(tmp_path, "another") == ()


def test_only_the_latest_boots_are_kept(tmp_path: Path) -> None:
    for number in range(boot_times_kept.BOOTS_MAX + 2):
        boot_times_kept.save(tmp_path, f"m{number}", LAST)
    assert boot_times_kept.load(tmp_path, "m1") == ()
    assert boot_times_kept.load(tmp_path, "m2") == LAST


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"version":1}', '{"version":2,"boots":{"m":[["a",1]]}}', '{"version":1,"boots":{"m":[["a",-1]]}}'],
)
def test_what_cannot_be_read_costs_an_estimate_and_nothing_else(tmp_path: Path, text: str) -> None:
    (tmp_path / boot_times_kept.NAME).write_text(text)
    assert boot_times_kept.load(tmp_path, "m") == ()
    boot_times_kept.save(tmp_path, "m", LAST)
    assert boot_times_kept.load(tmp_path, "m") == LAST
