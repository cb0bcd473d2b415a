"""Files that must be regular ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from appliance.checkpoint.regular import NotRegularError, open_regular, read_regular


def test_a_file_and_a_link_to_it_are_read_no_further_than_a_byte_over_the_limit(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    (tmp_path / "b").symlink_to("a")

    assert read_regular(tmp_path / "a", 5) == b"12345"
    assert read_regular(tmp_path / "b", 3) == b"1234"


def test_pipes_and_folders_are_refused_at_once_and_nothing_stays_open(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    before = len(os.listdir("/proc/self/fd"))

    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(NotRegularError, match="not a regular file"):
            open_regular(path)

    assert len(os.listdir("/proc/self/fd")) == before
