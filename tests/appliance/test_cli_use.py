"""`plan use`, `engine use`: what is told while the daemon does it, and when it is over."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
import typer
from typer.testing import CliRunner

from appliance.cli import use
from appliance.cli.box import Box
from appliance.errors import MoeError
from gateway.state import BoxState, Cause, EngineState, Pair, Phase, Reverted

PAIR = Pair(environment="vllm-1")
OOM = Cause(id="engine.gpu_memory", title="Out of \x1b[31mmemory.", remedy="move more experts")
BEFORE = Reverted(tried=PAIR, cause=OOM, at_s=1.0)


@dataclass
class ScriptedBox(Box):
    """A box whose daemon takes the wish and then tells `states`, one a look."""

    states: list[EngineState] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)

    def daemon(self, method: str, path: str) -> httpx.Response:
        self.waits_s.append(self.answer_s)
        if method == "POST":
            return httpx.Response(202, json={"said": "tried now", "pair": PAIR.model_dump()})
        assert self.states, "it looks on after it was over"
        return httpx.Response(
            200, text=BoxState(engine=self.states.pop(0), revision=len(self.states)).model_dump_json()
        )


def engine(phase: Phase, **more: Any) -> EngineState:
    return EngineState(phase=phase, **{"trial": PAIR, **more})


def follow(*states: EngineState) -> None:
    use._use(ScriptedBox(states=list(states)), False, False, environment="vllm")


def test_a_former_failure_of_the_same_pair_is_not_taken_for_this_one(capsys: pytest.CaptureFixture[str]) -> None:
    # given a pair that failed before, and is asked for again: streams end, then it is tried, and serves
    follow(
        engine(Phase.READY, leaving=True, reverted=BEFORE),
        engine(Phase.STOPPING),
        engine(Phase.WARMING),
        engine(Phase.READY),
    )
    assert "it serves" in capsys.readouterr().out


def test_a_failure_of_this_one_is_told_without_its_control_characters() -> None:
    with pytest.raises(MoeError, match="did not come to serve") as told:
        follow(engine(Phase.STARTING), engine(Phase.BACKOFF, trial=None, reverted=BEFORE))
    assert "\x1b" not in told.value.message
    assert told.value.remedy == OOM.remedy


@pytest.mark.parametrize("phase", [Phase.NEEDS_REBOOT, Phase.FAILED, Phase.OFF, Phase.REFUSED])
def test_it_does_not_wait_for_an_engine_that_stays_off(phase: Phase) -> None:
    with pytest.raises(MoeError, match="not started"):
        follow(engine(Phase.STOPPING), engine(phase, cause=OOM))


def test_another_wish_ends_the_telling() -> None:
    with pytest.raises(MoeError, match="something else"):
        follow(engine(Phase.READY, leaving=True), engine(Phase.READY, trial=Pair(environment="vllm-2")))


def test_the_look_at_the_box_and_a_silent_start_have_their_time() -> None:
    waits_s: list[float] = []
    use._use(ScriptedBox(states=[engine(Phase.READY)], waits_s=waits_s), False, False, environment="vllm")
    assert min(waits_s) > max(60, use.POLL_S)


def test_who_stops_looking_is_told_that_it_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    class Interrupted(ScriptedBox):
        def daemon(self, method: str, path: str) -> httpx.Response:
            if method == "GET":
                raise KeyboardInterrupt
            return super().daemon(method, path)

    with pytest.raises(KeyboardInterrupt):
        use._use(Interrupted(), False, False, environment="vllm")
    assert "it goes on without you: moe-appliance status" in "".join(capsys.readouterr())


def test_no_name_is_no_wish() -> None:
    app = typer.Typer()
    use.register_engine(app)
    with pytest.raises(MoeError, match="empty"):
        CliRunner().invoke(app, ["use", ""], obj=ScriptedBox(), catch_exceptions=False)
