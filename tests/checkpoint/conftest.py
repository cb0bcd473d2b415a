"""Fixtures of tests about checkpoints."""

from __future__ import annotations

import os

import pytest

from tests.checkpoint.packs.fixtures import pack_folder

__all__ = ["pack_folder", "synced"]


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes each synced file had; nothing waits for a disk that other tests keep busy."""
    sizes: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda fd: sizes.append(os.fstat(fd).st_size))
    return sizes
