"""The mark that keeps the package from removing an environment that runs."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from gateway.environment import MARK, hold_environment


def test_an_environment_that_is_held_cannot_be_locked_by_who_would_remove_it(tmp_path: Path) -> None:
    (tmp_path / MARK).touch()
    first, second = hold_environment(str(tmp_path)), hold_environment(str(tmp_path))
    assert first is not None
    assert second is not None, "many processes may use one"
    with (tmp_path / MARK).open() as file:
        with pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(first)
        os.close(second)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_an_environment_without_a_mark_is_nobodys_to_remove(tmp_path: Path) -> None:
    assert hold_environment(str(tmp_path)) is None
