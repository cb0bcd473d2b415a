"""What the settings and the engine's profile come to for admission."""

from __future__ import annotations

from dataclasses import asdict, fields

from gateway.admission_types import Limits
from gateway.limits import limits_of
from gateway.settings import AdmissionSettings
from gateway.state import EngineProfile

PROFILE = EngineProfile(name="p", floor_tok_per_s=33.0, cold_tokens=444, streams=5)


def test_every_setting_of_admission_is_the_limit_of_its_name() -> None:
    names = [field.name for field in fields(Limits) if field.name in AdmissionSettings.model_fields]
    settings = AdmissionSettings.model_validate({name: 11 + place for place, name in enumerate(names)})
    limits = asdict(limits_of(settings, PROFILE, streams=3))
    of_profile = {"streams": 3, "floor_tok_per_s": 33.0, "cold_tokens": 444}
    assert limits == settings.model_dump(include=set(names)) | of_profile


def test_the_policy_s_own_limits_are_the_settings_defaults() -> None:
    profile = EngineProfile(name="p", floor_tok_per_s=Limits().floor_tok_per_s, cold_tokens=12_000, streams=4)
    assert limits_of(AdmissionSettings(), profile, streams=4) == Limits()


def test_the_demo_refuses_nobody_for_several_long_prompts_of_one_seat() -> None:
    profile = EngineProfile(name="demo", floor_tok_per_s=10.0, cold_tokens=512, streams=4, demo=True)
    assert limits_of(AdmissionSettings(), profile, 4).queue_cold_per_seat == 0
