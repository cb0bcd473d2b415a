"""Fixtures of tests about the appliance."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.appliance.backups import made, run
from tests.checkpoint.packs.fixtures import pack_folder
from tests.e2e.conftest import short_folder

__all__ = ["archive", "pack_folder", "short_folder"]


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """A backup of a whole box."""
    home = tmp_path / "old"
    home.mkdir()
    assert run(made(home), "backup", str(tmp_path / "b.tar.gz")).exit_code == 0
    return tmp_path / "b.tar.gz"
