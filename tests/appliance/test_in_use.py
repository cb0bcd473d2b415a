"""The pair in use on disk: what a wish is made of, who a trial's end belongs to, what is gone back to."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from appliance.engine import pairs_kept
from appliance.engine.embedded import EmbeddedEngine
from appliance.engine.environments import folders
from appliance.engine.examined import Examined
from appliance.engine.in_use import Composed, InUse
from appliance.engine.settings import EmbeddedSettings
from gateway import logs
from gateway.state import Cause, Pair
from tests.appliance.installations import environment_in

OOM = Cause(id="engine.gpu_memory", title="Out of memory.", remedy="move more experts", retry=False)
PLAN = Pair(plan_file="/plans/new.json")


class InNamed(EmbeddedEngine):
    """An engine that runs in the environment of its pair."""

    def __init__(self, name: str, state_dir: Path) -> None:
        super().__init__(EmbeddedSettings(), state_dir=state_dir)
        self.name = name

    @property
    def environment(self) -> str:
        return self.name


def in_use(state_dir: Path) -> InUse:
    def compose(pair: Pair) -> Composed:
        return Composed(InNamed(pair.environment or "vllm", state_dir), Examined)

    return InUse(state_dir, Pair(), compose, logs.configure("daemon", io.StringIO()))


def installed(state_dir: Path, identity: str) -> str:
    """An environment that `vllm` means from now on; its id."""
    return environment_in(state_dir, identity).name


def started(here: InUse) -> str:
    """What a start runs in."""
    return here.composed().adapter.environment


def test_a_wish_during_a_trial_keeps_the_half_that_is_on_trial(tmp_path: Path) -> None:
    # given a plan on trial
    here = in_use(tmp_path)
    here.try_(PLAN, prove=False)

    # when an environment is chosen, or what is in use is to be proven
    # then the plan stays: nobody asked for another
    assert here.with_(None, "other") == Pair(plan_file=PLAN.plan_file, environment="other")
    assert here.with_(None, None) == PLAN


def test_the_end_of_a_start_from_before_the_trial_says_nothing_of_the_trial(tmp_path: Path) -> None:
    # given an engine of the pair before, and a trial that nothing was started of yet
    here = in_use(tmp_path)
    here.composed()
    here.try_(PLAN, prove=False)

    # when that engine's end, or its 5 good minutes, are told now
    assert not here.ended(OOM)
    here.settled()

    # then the trial goes on
    assert here.pairs.trial == PLAN
    here.composed()
    assert here.ended(OOM)
    assert here.pairs.trial is None


def test_what_could_not_be_proven_serves_again_unproven(tmp_path: Path) -> None:
    # given what is in use, to be proven
    here = in_use(tmp_path)
    here.try_(here.with_(None, None), prove=True)
    here.composed()
    here.began()

    # when it cannot be, for a cause that stays the same
    # then it is to be started again, without proof: it served before
    assert here.ended(OOM)
    assert not here.pairs.prove
    assert here.pairs.reverted is not None


def test_the_way_back_of_a_plan_leads_to_the_environment_that_served(tmp_path: Path) -> None:
    # given an engine that serves in an environment, and a newer one of that name
    served = installed(tmp_path, "0" * 12)
    newer = installed(tmp_path, "1" * 12)
    here = in_use(tmp_path)

    # when a plan is tried, which starts in the newer one, and fails
    here.try_(PLAN, prove=False, serves_in=served)
    here.composed()
    assert here.ended(OOM)

    # then what served returns, and not its name
    assert here.pairs.current == Pair(environment=served)
    assert newer != served


def test_a_way_back_by_name_stays_a_name_where_it_means_what_served(tmp_path: Path) -> None:
    served = installed(tmp_path, "0" * 12)
    here = in_use(tmp_path)
    here.try_(PLAN, prove=False, serves_in=served)
    assert here.pairs.before == Pair()


def test_an_edited_file_that_wins_over_a_choice_is_told(tmp_path: Path) -> None:
    # given a choice from when appliance.toml said something else
    said = io.StringIO()
    chosen = in_use(tmp_path)
    chosen.try_(PLAN, prove=False)
    kept = pairs_kept.load(tmp_path)
    assert kept is not None

    # when the file names another plan
    toml = Pair(plan_file="/plans/third.json")
    now = InUse(tmp_path, toml, chosen.compose, logs.configure("daemon", said))

    # then that one holds, and the log says what was dropped
    assert now.pairs.current == Pair()
    assert "engine.pair_unkept" in said.getvalue()
    assert "plan new" in said.getvalue()


def test_a_disk_that_takes_nothing_does_not_stop_a_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pairs_kept, "save", full)
    here = in_use(tmp_path)
    here.try_(PLAN, prove=False)
    assert here.pairs.trial == PLAN


# A newer installation of the same name


def test_a_restart_stays_in_the_installation_that_served(tmp_path: Path) -> None:
    # given an engine that runs in what `vllm` means, and served
    old = installed(tmp_path, "1" * 12)
    here = in_use(tmp_path)
    assert started(here) == "vllm"
    here.served(old)

    # when a newer one is installed, and the engine or the daemon is restarted
    installed(tmp_path, "2" * 12)

    # then it runs in the one that served
    assert started(here) == old
    assert started(in_use(tmp_path)) == old
    assert here.pairs.current == Pair(), "and nothing else was chosen"


def test_before_anything_served_a_newer_installation_is_taken(tmp_path: Path) -> None:
    # given a first installation whose engine never served
    installed(tmp_path, "1" * 12)
    here = in_use(tmp_path)
    here.composed()
    here.began()

    # then the one that mends it needs no more than a restart
    installed(tmp_path, "2" * 12)
    assert started(here) == "vllm"
    assert here.findings() == ()


def test_a_plan_is_tried_in_the_installation_that_served(tmp_path: Path) -> None:
    old = installed(tmp_path, "1" * 12)
    here = in_use(tmp_path)
    here.served(old)
    installed(tmp_path, "2" * 12)
    here.try_(here.with_("/plans/new.json", None), prove=False, serves_in=old)
    assert started(here) == old
    assert here.pairs.before == Pair(), "the way back needs no name for what is in use anyhow"


def test_a_newer_installation_is_told_with_the_command_that_tries_it(tmp_path: Path) -> None:
    # given
    old = installed(tmp_path, "1" * 12)
    here = in_use(tmp_path)
    here.served(old)
    assert here.findings() == ()

    # when
    newer = installed(tmp_path, "2" * 12)

    # then
    (told,) = here.findings()
    assert (told.id, str(told.severity)) == ("engine.newer", "info")
    assert old in told.observed
    assert newer in told.observed
    assert told.remedy.startswith("moe-appliance engine use vllm ")

    # and once it was tried there is nothing to tell, or why it did not come to serve
    here.try_(here.with_(None, newer), prove=False, serves_in=old)
    assert started(here) == newer
    here.served(newer)
    assert here.findings() == ()
    assert here.ended(OOM)
    assert started(here) == old
    assert [told.id for told in here.findings()] == ["engine.reverted"]


def test_a_trial_that_settled_is_what_served_last_whatever_the_file_says_later(tmp_path: Path) -> None:
    # given a newer installation that was tried and stayed
    old, newer = installed(tmp_path, "1" * 12), installed(tmp_path, "2" * 12)
    here = in_use(tmp_path)
    here.served(old)
    here.try_(here.with_(None, newer), prove=False, serves_in=old)
    here.composed()
    here.served(newer)
    assert here.pairs.served == old, "nobody knows yet whether it is good"
    here.settled()

    # when a third one is there, and [plan] file is edited
    installed(tmp_path, "3" * 12)
    log = logs.configure("daemon", io.StringIO())
    edited = InUse(tmp_path, Pair(plan_file="/plans/third.json"), here.compose, log)

    # then the environment stays
    assert started(edited) == newer
    edited.forget()
    assert started(edited) == newer


def test_an_installation_that_is_gone_is_not_quietly_replaced(tmp_path: Path) -> None:
    # given that what served was removed, and another of its name is there
    old = installed(tmp_path, "1" * 12)
    here = in_use(tmp_path)
    here.served(old)
    installed(tmp_path, "2" * 12)
    folders.remove(tmp_path / "engines" / old)

    # then a start asks for it, which its look refuses, and the other one is told
    assert started(here) == old
    assert [told.remedy.split("   ")[0] for told in here.findings()] == ["moe-appliance engine use vllm"]


@pytest.mark.parametrize("environment", ["", "vllm-222222222222"], ids=["none of ours", "a link to elsewhere"])
def test_what_no_id_of_ours_leads_to_is_not_what_served_last(tmp_path: Path, environment: str) -> None:
    here = in_use(tmp_path)
    here.served(environment)
    assert here.pairs.served == ""
