"""appliance/files.py: the lock of a folder, what a folder that cannot be used is called, files that must be regular."""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from appliance.errors import AlreadyRunning, ConfigError
from appliance.files import FolderLock, NotRegularError, make_folder, open_regular, read_regular, usable


def full(*_: object) -> int:
    raise OSError(28, "No space left on device")


def test_a_second_lock_names_the_first_ones_pid(tmp_path: Path) -> None:
    with closing(FolderLock(tmp_path)):
        with pytest.raises(AlreadyRunning) as caught:
            FolderLock(tmp_path)
        assert caught.value.pid == os.getpid()
        assert f"kill {os.getpid()}" in caught.value.remedy
    FolderLock(tmp_path).close()


def test_the_lock_holds_on_a_full_disk_without_its_pid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        lock = FolderLock(tmp_path)
    with closing(lock), pytest.raises(AlreadyRunning) as caught:
        FolderLock(tmp_path)
    assert caught.value.pid is None
    assert "pid unknown" in caught.value.message
    assert "kill" not in caught.value.remedy


def test_a_folder_that_was_removed_is_made_and_locked_again(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    with closing(FolderLock(folder)) as lock:
        assert not lock.renew()
        shutil.rmtree(folder)
        assert lock.renew()
        assert not lock.renew()
        assert folder.stat().st_mode & 0o777 == 0o750
        with pytest.raises(AlreadyRunning):
            FolderLock(folder)


def test_a_folder_that_somebody_else_holds_by_now_is_left_to_them(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    with closing(FolderLock(folder)) as lock:
        shutil.rmtree(folder)
        folder.mkdir()
        with closing(FolderLock(folder)), pytest.raises(AlreadyRunning):
            lock.renew()
        assert lock.renew()


def test_a_folder_that_cannot_be_used_is_named_with_its_setting(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught, usable(tmp_path, "state_dir"):
        full()
    assert caught.value.message == f"state_dir: the folder {tmp_path} cannot be used: No space left on device"
    assert f"df -h {tmp_path}" in caught.value.remedy
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"runtime_dir: the folder .*/file cannot be used"):
        make_folder(tmp_path / "file", "runtime_dir")


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
