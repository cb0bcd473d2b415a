"""Pairs: a trial has one start, is good once it settled, and leads back otherwise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.engine import pairs, pairs_kept
from appliance.engine.pairs import NOT_THE_PAIRS, Pairs
from appliance.plan import planfile
from gateway.state import Cause, Pair

OLD = Pair(plan_file="/plans/old.json", environment="vllm")
NEW = Pair(plan_file="/plans/new.json", environment="vllm")
OOM = Cause(id="engine.gpu_memory", title="Out of memory.", remedy="move more experts")
SHIPPED = Path(__file__).parents[2] / "plans" / "deepseek-v4.1-flash-2x-rtx-pro-6000.json"


def test_a_trial_that_settled_is_what_is_gone_back_to_later() -> None:
    # given a pair that was tried and came to stay
    good = pairs.settled(pairs.began(pairs.tried(Pairs(), OLD)))
    assert (good.current, good.trial) == (OLD, None)

    # when another one fails
    back = pairs.ended(pairs.began(pairs.tried(good, NEW)), OOM, 5.0)

    # then the first is in use again, and what was tried is told with its cause
    assert (back.current, back.trial) == (OLD, None)
    assert back.reverted is not None
    assert (back.reverted.tried, back.reverted.cause, back.reverted.at_s) == (NEW, OOM, 5.0)


def test_the_first_trial_goes_back_to_what_the_file_says() -> None:
    assert pairs.ended(pairs.began(pairs.tried(Pairs(), NEW)), OOM, 0.0).current == Pair()


def test_a_second_use_during_a_trial_goes_back_to_what_was_good() -> None:
    twice = pairs.tried(pairs.began(pairs.tried(Pairs(current=OLD), NEW)), Pair(environment="other"))
    assert pairs.ended(twice, OOM, 0.0).current == OLD


def test_a_pair_that_was_gone_back_to_fails_like_any_engine() -> None:
    back = pairs.ended(pairs.began(pairs.tried(Pairs(current=OLD), NEW)), OOM, 0.0)
    assert pairs.ended(back, OOM, 9.0) == back


@pytest.mark.parametrize("id_", sorted(NOT_THE_PAIRS))
def test_ends_that_say_nothing_of_the_pair_leave_it_on_trial(id_: str) -> None:
    trial = pairs.began(pairs.tried(Pairs(current=OLD), NEW))
    assert pairs.ended(trial, OOM.model_copy(update={"id": id_}), 0.0) == trial


def test_an_edited_file_wins_over_what_was_chosen() -> None:
    chosen = replace(pairs.settled(pairs.began(pairs.tried(Pairs(toml=OLD), NEW))), toml=OLD)
    assert pairs.found(chosen, OLD, 0.0).current == NEW
    edited = Pair(plan_file="/plans/third.json")
    assert pairs.found(chosen, edited, 0.0) == Pairs(toml=edited)


def test_a_trial_that_nobody_saw_the_end_of_goes_back() -> None:
    trial = pairs.began(pairs.tried(Pairs(current=OLD), NEW))
    after = pairs.found(trial, Pair(), 3.0)
    assert after.current == OLD
    assert after.reverted is not None
    assert after.reverted.cause.id == "engine.trial_interrupted"


def test_a_trial_that_had_not_begun_is_begun_by_the_next_daemon() -> None:
    trial = pairs.tried(Pairs(current=OLD), NEW)
    assert pairs.found(trial, Pair(), 3.0) == trial


STEPS = st.lists(
    st.sampled_from(["use new", "use old", "began", "settled", "ended", "interrupted", "stopped"]), max_size=30
)


@given(STEPS)
def test_what_is_gone_back_to_has_never_been_on_trial_without_settling(steps: list[str]) -> None:
    state, good = Pairs(), {Pair().model_dump_json()}
    for step in steps:
        if step.startswith("use"):
            state = pairs.tried(state, NEW if step == "use new" else OLD)
        elif step == "began":
            state = pairs.began(state)
        elif step == "settled" and state.begun:
            state = pairs.settled(state)
            good.add(state.current.model_dump_json())
        elif step == "ended":
            state = pairs.ended(state, OOM, 0.0)
        elif step == "stopped":
            state = pairs.ended(state, OOM.model_copy(update={"id": "engine.stopped"}), 0.0)
        elif step == "interrupted":
            state = pairs.found(state, Pair(), 0.0)
        back = state.before if state.before is not None else state.current
        assert back.model_dump_json() in good


def test_pairs_outlive_the_daemon(tmp_path: Path) -> None:
    trial = pairs.began(pairs.tried(Pairs(toml=OLD, current=OLD), NEW, prove=True))
    pairs_kept.save(tmp_path, trial)
    assert pairs_kept.load(tmp_path) == trial
    back = pairs.ended(trial, OOM, 1.0)
    pairs_kept.save(tmp_path, back)
    assert pairs_kept.load(tmp_path) == back


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"current": 3}', b"\xff"])
def test_a_file_that_makes_no_sense_is_none(tmp_path: Path, text: bytes) -> None:
    (tmp_path / pairs_kept.NAME).write_bytes(text)
    assert pairs_kept.load(tmp_path) is None


def test_a_chosen_plan_is_kept_as_it_was(tmp_path: Path) -> None:
    # given a plan that was chosen
    plan = planfile.load(SHIPPED)
    named = tmp_path / "my plan.json"
    planfile.save(plan, named)
    copy = pairs_kept.keep_plan(tmp_path / "state", planfile.load(named), named)

    # when its file is gone
    named.unlink()

    # then the copy decides the same
    assert copy.name.startswith("my-plan-")
    assert planfile.load(copy).identity == plan.identity


def test_the_oldest_copies_go_but_those_in_use(tmp_path: Path) -> None:
    plan = planfile.load(SHIPPED)
    state = tmp_path / "state"
    first = pairs_kept.keep_plan(state, plan, Path("first.json"))
    pairs_kept.save(state, pairs.tried(Pairs(), Pair(plan_file=str(first))))
    for number in range(12):
        pairs_kept.keep_plan(state, plan, Path(f"later-{number}.json"))
    left = sorted(path.name for path in (state / pairs_kept.FOLDER).glob("*.json"))
    assert first.name in left
    assert len(left) == pairs_kept.PLANS_KEPT + 1


def test_a_copy_is_found_where_the_state_folder_is_now(tmp_path: Path) -> None:
    # given a chosen plan, and a state folder that was brought back to another place
    old, new = tmp_path / "old", tmp_path / "new"
    copy = pairs_kept.keep_plan(old, planfile.load(SHIPPED), SHIPPED)
    pairs_kept.save(old, pairs.tried(Pairs(), Pair(plan_file=str(copy))))
    old.rename(new)

    # then the pair names the copy that there is
    kept = pairs_kept.load(new)
    assert kept is not None
    assert kept.current.plan_file == str(new / "plans" / copy.name)
