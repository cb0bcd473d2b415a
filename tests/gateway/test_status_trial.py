"""What is on trial is told, on the page and by `status`."""

from __future__ import annotations

from gateway.state import EngineState, Pair, Phase
from gateway.status.trial import trial_findings

PAIR = Pair(plan_file="/state/plans/mine-0123.json", environment="vllm-0123456789ab")


def test_without_a_trial_nothing_is_said() -> None:
    assert trial_findings(EngineState(phase=Phase.READY)) == ()


def test_a_trial_says_what_is_tried_and_what_happens_else() -> None:
    (found,) = trial_findings(EngineState(phase=Phase.READY, trial=PAIR))
    assert found.observed == "plan mine-0123, environment vllm-0123456789ab"
    assert "returns by itself" in found.required


def test_while_streams_end_it_is_said_why_nothing_new_is_sent() -> None:
    (found,) = trial_findings(EngineState(phase=Phase.READY, trial=PAIR, leaving=True))
    assert "nothing new is sent" in found.title


def test_a_pair_without_halves_is_what_the_file_says() -> None:
    assert Pair().shown == "what appliance.toml says"
