"""The folder of the engine's socket is ours alone, and empty."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from appliance.engine import unix_socket


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_path_is_in_the_url() -> None:
    assert unix_socket.path_of("unix:/run/moe/engine/sock") == Path("/run/moe/engine/sock")
    assert unix_socket.path_of("http://127.0.0.1:1") is None


def test_the_folder_is_made_and_closed_to_others(tmp_path: Path) -> None:
    unix_socket.prepare(tmp_path / "engine/sock")
    assert mode(tmp_path / "engine") == 0o700
    (tmp_path / "engine").chmod(0o755)
    unix_socket.prepare(tmp_path / "engine/sock")
    assert mode(tmp_path / "engine") == 0o700


def test_what_a_former_engine_left_is_removed_before_and_after(tmp_path: Path) -> None:
    path = tmp_path / "engine/sock"
    for end in (unix_socket.prepare, unix_socket.remove):
        unix_socket.prepare(path)
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(str(path))
        end(path)
        assert not path.exists()
    unix_socket.remove(path)


def test_a_link_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/sock").write_text("precious")
    (tmp_path / "engine").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="engine"):
        unix_socket.prepare(tmp_path / "engine/sock")
    assert (tmp_path / "elsewhere/sock").read_text() == "precious"


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unix_socket.os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(PermissionError, match="somebody else"):
        unix_socket.prepare(tmp_path / "engine/sock")


def test_a_path_that_no_socket_can_have_is_refused_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="shorter runtime_dir"):
        unix_socket.prepare(tmp_path / ("x" * 120) / "sock")
