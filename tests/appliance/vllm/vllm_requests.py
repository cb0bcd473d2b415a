"""Requests for the pure part of the vLLM adapter, and the parser of the pinned release."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from appliance.engine.vllm.command import Command, command_of
from appliance.engine.vllm.profiles import PINNED_CUDA
from appliance.engine.vllm.request import Known, Request
from appliance.engine.vllm.settings import VllmSettings

DATA = Path(__file__).parents[2] / "data"
PLANS = Path(__file__).parents[3] / "plans"
TWO_CARDS = "deepseek-v4.1-flash-exl3-2x-rtx-pro-6000"
CARDS = Known(cards=2, numa=(0, 0), nodes=1)


def parser() -> dict[str, dict[str, Any]]:
    """Every flag of vLLM 0.26.0's server, as its parser knows it."""
    found: dict[str, dict[str, Any]] = json.loads((DATA / "vllm-0.26.0-parser.json").read_text())
    return found


def settings(**said: Any) -> VllmSettings:
    """As appliance.toml would say."""
    return VllmSettings.model_validate({"kind": "vllm", **said})


def request(said: VllmSettings | None = None, **more: Any) -> Request:
    """For a model in a folder and four streams."""
    given: dict[str, Any] = {
        "settings": said or settings(),
        "version": PINNED_CUDA,
        "model": "/models/tiny",
        "socket": "/run/x/engine/sock",
        "streams": 4,
        "box": CARDS,
    }
    return Request(**given | more)


def made(said: VllmSettings | None = None, **more: Any) -> Command:
    """The command of such a request."""
    return command_of(request(said, **more))


def flags(command: Command) -> dict[str, tuple[str, ...]]:
    """Flag -> its values."""
    return {flag.name: flag.values for flag in command.flags}


def env(command: Command) -> dict[str, str]:
    """Variable -> its value."""
    return {variable.name: variable.value for variable in command.env}
