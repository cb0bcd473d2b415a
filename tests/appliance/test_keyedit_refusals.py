"""Edits of seats.toml and admins.toml: what they refuse, and what a crash leaves."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance import keyedit, lockedfile
from appliance.errors import EXIT_CONFIG, ConfigError, MoeError
from gateway.keyfile import load_seats
from gateway.seats import SeatBook
from tests.appliance.seatfile import COMMENTED, who

ROOT = Path(__file__).parents[2]
_CHANGES: dict[str, Callable[[Path, str], Any]] = {
    "rotate": keyedit.rotate_seat,
    "disable": keyedit.disable_seat,
    "enable": keyedit.enable_seat,
    "remove": keyedit.remove_seat,
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "seats.toml"
    path.write_text(COMMENTED)
    return path


# ----------------------------------------------------------------------------------------- refusals


def refused(path: Path, act: Callable[[], Any]) -> MoeError:
    before = path.read_bytes() if path.exists() else None
    with pytest.raises(MoeError) as caught:
        act()
    assert (path.read_bytes() if path.exists() else None) == before
    assert caught.value.remedy
    return caught.value


def test_a_taken_name_is_refused(path: Path) -> None:
    error = refused(path, lambda: keyedit.add_seat(path, "ana"))
    assert error.message == "seat ana exists already"
    assert "moe-appliance seats rotate ana" in error.remedy


def test_a_name_in_capitals_is_refused_with_the_command_that_works(tmp_path: Path) -> None:
    path = tmp_path / "seats.toml"
    error = refused(path, lambda: keyedit.add_seat(path, "ANA"))
    assert "lower case: ana" in error.message
    assert error.remedy == "moe-appliance seats add ana"


@pytest.mark.parametrize("verb", _CHANGES.values())
def test_a_seat_that_is_not_there_is_refused_with_the_closest_name(path: Path, verb: Callable[..., Any]) -> None:
    assert refused(path, lambda: verb(path, "anna")).message == "there is no seat anna; did you mean ana?"


def test_zero_streams_are_refused(path: Path) -> None:
    assert "max_streams" in refused(path, lambda: keyedit.add_seat(path, "new", max_streams=0)).message


@pytest.mark.parametrize("text", ["[seats.ana\n", "[seats.ana]\n", "[seats.ana]\ndigest = 'x'\n"])
def test_a_broken_file_is_left_as_it_is(path: Path, text: str) -> None:
    path.write_text(text)
    for act in (lambda: keyedit.add_seat(path, "new"), lambda: keyedit.remove_seat(path, "ana")):
        error = refused(path, act)
        assert isinstance(error, ConfigError)
        assert error.exit_code == EXIT_CONFIG
        assert f"{path}:" in error.message


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = tmp_path / "no" / "seats.toml"
    assert f"{path.parent} does not exist" in refused(path, lambda: keyedit.add_seat(path, "ana")).message


@pytest.mark.parametrize("folder", [".", "no"])
@pytest.mark.parametrize("verb", _CHANGES.values())
def test_without_a_file_there_is_no_such_seat(tmp_path: Path, verb: Callable[..., Any], folder: str) -> None:
    path = tmp_path / folder / "seats.toml"
    error = refused(path, lambda: verb(path, "ana"))
    assert error.message == f"there is no seat ana: there is no file {path} yet"
    assert error.remedy == "moe-appliance seats add ana"
    assert keyedit.list_seats(path) == ()
    assert list(tmp_path.iterdir()) == []


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.fixture
def in_time() -> Iterator[None]:
    """Ends a read that would never end."""

    def late(*_: object) -> None:
        raise AssertionError("it hangs")

    old = signal.signal(signal.SIGALRM, late)
    signal.alarm(5)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, old)


@pytest.mark.usefixtures("in_time")
@pytest.mark.parametrize("make", [make_pipe, make_device, Path.mkdir])
def test_what_is_no_file_is_refused_and_not_read(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / "seats.toml"
    make(path)
    verbs = [keyedit.add_seat, *_CHANGES.values(), lambda path, _: keyedit.list_seats(path)]
    for verb in verbs:
        with pytest.raises(ConfigError, match=f"{path} is not a file"):
            verb(path, "ana")
    assert not Path("/dev/zero.lock").exists()


def test_a_file_that_may_not_be_written_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "replace", denied)
    error = refused(path, lambda: keyedit.add_seat(path, "new"))
    assert error.message == f"you may not change {path}: permission denied"
    assert "sudo moe-appliance seats" in error.remedy


def test_a_loop_of_links_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "seats.toml"
    path.symlink_to(path)
    with pytest.raises(MoeError, match="cannot change"):
        keyedit.add_seat(path, "ana")
    for act in (lambda: keyedit.list_seats(path), lambda: keyedit.disable_seat(path, "ana")):
        with pytest.raises(MoeError, match=r"cannot read.*symbolic links"):
            act()


def test_a_lock_that_is_never_released_is_refused_in_the_end(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lockedfile, "_LOCK_WAIT_S", 0.05)
    with path.with_name("seats.toml.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "another command" in refused(path, lambda: keyedit.add_seat(path, "new")).message
    keyedit.add_seat(path, "new")


# -------------------------------------------------------------------------------------- file system


def test_the_file_is_readable_by_owner_and_group_only(path: Path) -> None:
    path.chmod(0o644)
    keyedit.add_seat(path, "new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
@pytest.mark.parametrize("exists", [True, False])
def test_owner_and_group_are_those_of_the_old_file_or_of_the_folder(path: Path, exists: bool) -> None:
    if not exists:
        path.unlink()
    os.chown(path if exists else path.parent, 12345, 54321)
    keyedit.add_seat(path, "new")
    assert (path.stat().st_uid, path.stat().st_gid) == (12345, 54321)


def test_a_link_is_followed_and_stays(path: Path, tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    link = tmp_path / "etc" / "seats.toml"
    link.symlink_to(path)
    keyedit.add_seat(link, "new")
    assert link.is_symlink()
    assert "new" in load_seats(path).accounts


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert "No space left" in refused(path, lambda: keyedit.add_seat(path, "new")).message
    assert sorted(p.name for p in path.parent.iterdir()) == ["seats.toml", "seats.toml.lock"]


_KILLED = """
import os, signal, sys
from pathlib import Path
from appliance import keyedit, lockedfile
setattr(lockedfile.os, sys.argv[2], lambda *_: os.kill(os.getpid(), signal.SIGKILL))
keyedit.add_seat(Path(sys.argv[1]), "new")
"""


@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_a_kill_in_the_middle_of_a_write_leaves_the_old_file_and_the_next_edit_works(path: Path, moment: str) -> None:
    killed = subprocess.run([sys.executable, "-c", _KILLED, str(path), moment], cwd=ROOT, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert path.read_text() == COMMENTED
    keyedit.add_seat(path, "new")
    assert set(load_seats(path).accounts) == {"ana", "ben", "new"}
    assert sorted(p.name for p in path.parent.iterdir()) == ["seats.toml", "seats.toml.lock"]


_ADDS = """
import sys
from pathlib import Path
from appliance import keyedit
for number in range(4):
    print(keyedit.add_seat(Path(sys.argv[1]), f"p{sys.argv[2]}-{number}").key)
"""


def test_adds_from_eight_processes_at_once_lose_nothing(path: Path) -> None:
    running = [
        subprocess.Popen([sys.executable, "-c", _ADDS, str(path), str(n)], cwd=ROOT, stdout=subprocess.PIPE)
        for n in range(8)
    ]
    keys = [key for process in running for key in process.communicate()[0].decode().split()]
    assert [process.returncode for process in running] == [0] * 8
    book: SeatBook = load_seats(path)
    assert len(book.accounts) == 2 + 32
    assert len({who(path, key) for key in keys}) == 32
