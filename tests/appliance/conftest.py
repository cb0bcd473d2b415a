"""Fixtures of tests about the appliance."""

from __future__ import annotations

from tests.checkpoint.packs.fixtures import pack_folder

__all__ = ["pack_folder"]
