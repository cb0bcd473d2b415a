"""Fixtures of tests about the appliance."""

from __future__ import annotations

from tests.checkpoint.packs.fixtures import pack_folder
from tests.e2e.conftest import short_folder

__all__ = ["pack_folder", "short_folder"]
