"""Fixtures of tests about plans."""

from __future__ import annotations

import pytest

from appliance.box.gpu import GpuReport, Outcome
from appliance.cli import plan_inputs
from tests.checkpoint.packs.fixtures import pack_folder

__all__ = ["no_cards", "pack_folder"]


@pytest.fixture
def no_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    """A box without NVIDIA's driver."""
    monkeypatch.setattr(plan_inputs, "gather", lambda environ: GpuReport(Outcome.NO_DRIVER))
