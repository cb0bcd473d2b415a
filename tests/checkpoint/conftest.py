"""Fixtures of tests about checkpoints."""

from __future__ import annotations

from tests.checkpoint.packs.fixtures import pack_folder

__all__ = ["pack_folder"]
