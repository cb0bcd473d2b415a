"""Fixtures and settings of every test."""

from __future__ import annotations

import pytest
from hypothesis import settings

settings.register_profile("here", deadline=None)  # a machine that does other things besides is no fault of the code
settings.load_profile("here")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
