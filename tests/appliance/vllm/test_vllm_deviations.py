"""The profile for two cards against the public recipe, item by item, both ways."""

from __future__ import annotations

import json

from appliance.engine.vllm.deviations import DEVIATIONS
from tests.appliance.vllm.vllm_requests import DATA, TWO_CARDS, env, flags, made, settings

MODEL = "/models/deepseek-v4.1-flash"


def recipe() -> dict[str, tuple[str, ...]]:
    found = json.loads((DATA / "recipe-2x-rtx-pro-6000.json").read_text())
    variables = {name: (value,) for name, value in found["env"].items()}
    return {name: tuple(values) for name, values in found["flags"].items()} | variables


def ours() -> dict[str, tuple[str, ...]]:
    command = made(settings(profile=TWO_CARDS), model=MODEL, socket="{socket}", cache="{cache}")
    found = flags(command) | {name: (value,) for name, value in env(command).items()}
    return found | {"--model": ("{model}",)}


def test_the_profile_is_the_recipe_but_for_the_table() -> None:
    theirs, made_by_us = recipe(), ours()
    differing = {
        item: (theirs.get(item), made_by_us.get(item))
        for item in theirs.keys() | made_by_us.keys()
        if theirs.get(item) != made_by_us.get(item)
    }
    assert differing == {one.item: (one.recipe, one.ours) for one in DEVIATIONS}


def test_each_deviation_has_a_reason_and_stands_once() -> None:
    assert all(one.reason for one in DEVIATIONS)
    assert len({one.item for one in DEVIATIONS}) == len(DEVIATIONS)
