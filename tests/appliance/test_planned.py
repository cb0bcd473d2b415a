"""A plan's profile goes to the gateway, and the operator's own word wins."""

from __future__ import annotations

from appliance.engine.planned import beyond_validated, planned
from appliance.engine.settings import CommandSettings, EmbeddedSettings
from gateway.state import EngineProfile

OWN = EngineProfile(name="vllm", floor_tok_per_s=40.0, cold_tokens=12_000, streams=4)
PLAN = EngineProfile(name="study", floor_tok_per_s=35.0, cold_tokens=8_000, streams=3)


def settings(**said: object) -> CommandSettings:
    return CommandSettings.model_validate({"kind": "command", "command": ["vllm", "{port}"], **said})


def test_without_a_plan_nothing_changes() -> None:
    assert planned(settings(), OWN, None) == OWN


def test_what_the_configuration_leaves_open_is_the_plans() -> None:
    assert planned(settings(), OWN, PLAN) == PLAN


def test_what_the_configuration_says_outright_wins() -> None:
    own = OWN.model_copy(update={"name": "ours", "streams": 6})
    found = planned(settings(name="ours", streams=6), own, PLAN)
    assert (found.name, found.streams, found.floor_tok_per_s, found.cold_tokens) == ("ours", 6, 35.0, 8_000)


def test_saying_the_default_outright_is_saying_it() -> None:
    assert planned(settings(streams=4), OWN, PLAN).streams == 4


def test_the_embedded_engine_has_no_plan() -> None:
    demo = EngineProfile(name="demo", floor_tok_per_s=1.0, cold_tokens=100, streams=2, demo=True)
    assert planned(EmbeddedSettings(), demo, PLAN) == demo


def test_more_streams_than_were_validated_are_told() -> None:
    assert beyond_validated(3, PLAN) is None
    assert beyond_validated(9, None) is None
    found = beyond_validated(4, PLAN)
    assert found is not None
    assert (found.id, found.observed) == ("plan.cap", "4 streams")
    assert "3 at 35 tok/s" in found.required
