"""Edits of seats.toml and admins.toml: what they keep, what they refuse, and what a crash leaves."""

from __future__ import annotations

import datetime
import fcntl
import os
import re
import signal
import stat
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable
from datetime import UTC, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance import keyedit, lockedfile
from appliance.errors import EXIT_CONFIG, ConfigError, MoeError
from gateway.keyfile import load_admins, load_seats
from gateway.keys import digest_of
from gateway.seats import AdminName, Denied, Seat, SeatBook, SeatName

ROOT = Path(__file__).parents[2]
NOW = datetime.datetime(2026, 11, 29, 12, tzinfo=UTC)

COMMENTED = f"""\
# seats of the team
# second line

# Ana leads
[seats.ana]   # until spring
max_streams =  3 # agents
digest = "{digest_of("ana")}"   # made by hand
# inside ana

# Ben is from ops
[seats.ben]
digest = '{digest_of("ben")}'

# the end
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "seats.toml"
    path.write_text(COMMENTED)
    return path


def who(path: Path, key: str, at: datetime.datetime = NOW) -> str | int:
    found = load_seats(path).authenticate([(b"x-api-key", key.encode())], at.timestamp())
    return found.name if isinstance(found, Seat) else found.status


def lines_without(text: str, *parts: str) -> list[str]:
    return [line for line in text.splitlines() if not any(part in line for part in parts)]


# ------------------------------------------------------------------------------------------ verbs


def test_the_first_seat_makes_the_file(tmp_path: Path) -> None:
    path = tmp_path / "seats.toml"
    made = keyedit.add_seat(path, "ana")
    assert re.fullmatch(r"moe-[A-Za-z0-9_-]{43}", made.key)
    assert made.key not in path.read_text()
    assert path.read_text() == f'[seats.ana]\ndigest = "{digest_of(made.key)}"\n'
    assert who(path, made.key) == "ana"


def test_an_added_seat_comes_last_and_everything_before_it_stays(path: Path) -> None:
    made = keyedit.add_seat(path, "c.d", max_streams=2, expires=datetime.date(2027, 1, 31))
    assert path.read_text() == COMMENTED + (
        f'\n[seats."c.d"]\ndigest = "{digest_of(made.key)}"\nmax_streams = 2\nexpires = 2027-01-31\n'
    )


def test_two_keys_are_never_the_same(path: Path) -> None:
    assert keyedit.add_seat(path, "c").key != keyedit.add_seat(path, "d").key


def test_a_rotated_seat_has_two_keys_for_a_day_and_its_table_keeps_its_comments(path: Path) -> None:
    made = keyedit.rotate_seat(path, "ana", now=NOW)
    assert made.old_until == NOW + timedelta(hours=24)
    assert who(path, made.key) == who(path, "ana") == "ana"
    assert who(path, "ana", NOW + timedelta(hours=24)) == 401
    before, after = lines_without(COMMENTED, digest_of("ana")), path.read_text()
    assert lines_without(after, digest_of(made.key), digest_of("ana")) == before
    assert f'digest = "{digest_of(made.key)}"   # made by hand\nprevious = {{' in after
    assert "until = 2026-11-30T12:00:00Z}\n# inside ana\n" in after


def test_a_second_rotation_keeps_one_old_key(path: Path) -> None:
    first = keyedit.rotate_seat(path, "ana", now=NOW)
    second = keyedit.rotate_seat(path, "ana", now=NOW)
    assert (who(path, "ana"), who(path, first.key), who(path, second.key)) == (401, "ana", "ana")
    assert path.read_text().count("previous") == 1


def test_a_rotation_without_grace_stops_all_old_keys_at_once(path: Path) -> None:
    first = keyedit.rotate_seat(path, "ana", now=NOW)
    made = keyedit.rotate_seat(path, "ana", grace=timedelta(0))
    assert made.old_until is None
    assert (who(path, "ana"), who(path, first.key), who(path, made.key)) == (401, 401, "ana")


def test_a_disabled_seat_is_enabled_again_with_the_key_it_had(path: Path) -> None:
    assert keyedit.disable_seat(path, "ana") is True
    assert who(path, "ana") == 403
    assert keyedit.disable_seat(path, "ana") is False
    assert keyedit.enable_seat(path, "ana") is True
    assert who(path, "ana") == "ana"
    assert keyedit.enable_seat(path, "ana") is False
    assert lines_without(path.read_text(), "disabled") == COMMENTED.splitlines()


def test_what_changes_nothing_writes_nothing(path: Path) -> None:
    before = path.stat()
    keyedit.enable_seat(path, "ana")
    assert path.stat().st_ino == before.st_ino


def test_a_removed_seat_leaves_the_comments_around_it(path: Path) -> None:
    keyedit.remove_seat(path, "ana")
    text = path.read_text()
    for comment in ("# seats of the team", "# Ana leads", "# inside ana", "# Ben is from ops", "# the end"):
        assert comment in text
    assert set(load_seats(path).accounts) == {"ben"}


def test_adding_and_removing_leaves_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "seats.toml"
    keyedit.add_seat(path, "ana")
    before = path.read_text()
    for _ in range(3):
        keyedit.add_seat(path, "ben")
        keyedit.remove_seat(path, "ben")
    assert path.read_text() == before
    keyedit.remove_seat(path, "ana")
    assert path.read_text() == ""


def test_the_list_says_what_state_each_seat_is_in(path: Path) -> None:
    keyedit.rotate_seat(path, "ana", now=NOW)
    keyedit.disable_seat(path, "ben")
    keyedit.add_seat(path, "old", expires=datetime.date(2026, 1, 1))
    listed = {row.name: row for row in keyedit.list_seats(path, now=NOW)}
    assert list(listed) == ["ana", "ben", "old"]
    assert [str(row.state) for row in listed.values()] == ["active", "disabled", "expired"]
    assert listed["ana"].max_streams == 3
    assert listed["ana"].old_until == NOW + timedelta(hours=24)
    late = keyedit.list_seats(path, now=NOW + timedelta(hours=25))
    assert late[0].old_until is None


def test_no_file_lists_nobody(tmp_path: Path) -> None:
    assert keyedit.list_seats(tmp_path / "seats.toml") == ()


def test_admins_are_added_rotated_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "admins.toml"
    first = keyedit.add_admin(path, "eve", expires=NOW + timedelta(days=1))
    assert first.key.startswith("moe-admin-")
    second = keyedit.rotate_admin(path, "eve")
    book = load_admins(path)
    assert isinstance(book.check(first.key, NOW.timestamp()), Denied)
    assert not isinstance(book.check(second.key, NOW.timestamp()), Denied)
    assert [row.name for row in keyedit.list_admins(path, now=NOW)] == ["eve"]
    assert AdminName("eve") in book.accounts
    keyedit.remove_admin(path, "eve")
    assert keyedit.list_admins(path) == ()


# ---------------------------------------------------------------------------------- forms of files

DIGEST = digest_of("ana")


@pytest.mark.parametrize(
    "text",
    [
        f'seats = {{ ana = {{ digest = "{DIGEST}" }} }}\n',
        f'[seats]\nana = {{ digest = "{DIGEST}" }} # keep\n',
        f'[seats]\nana.digest = "{DIGEST}"\n',
        f'seats.ana.digest = "{DIGEST}" # keep',
        f'[seats.ana]\r\ndigest = "{DIGEST}"\r\n# keep\r\n',
        f'[seats."ana"]\ndigest = """{DIGEST}"""',
        f'[seats.ana]\ndigest = "{DIGEST}"\n\n[seats.ana.previous]\ndigest = "{digest_of("x")}"\nuntil = 2020-01-01\n',
        f'[seats.ana]\ndigest = "{DIGEST}"\n[seats.zoe]\ndigest = "{digest_of("z")}"\n'
        f'[seats.ana.previous]\ndigest = "{digest_of("x")}"\nuntil = 2020-01-01\n',
    ],
)
def test_every_form_of_toml_can_be_edited(tmp_path: Path, text: str) -> None:
    path = tmp_path / "seats.toml"
    path.write_bytes(text.encode())
    ben = keyedit.add_seat(path, "ben")
    ana = keyedit.rotate_seat(path, "ana", now=NOW)
    assert (who(path, "ana"), who(path, ana.key), who(path, ben.key)) == ("ana", "ana", "ben")
    keyedit.disable_seat(path, "ana")
    assert who(path, ana.key) == 403
    assert ("keep" in text) == ("keep" in path.read_text())
    assert path.read_bytes().count(b"\r\n") in (0, path.read_bytes().count(b"\n"))
    keyedit.remove_seat(path, "ana")
    assert (who(path, ana.key), who(path, ben.key)) == (401, "ben")


_NAMES = st.sampled_from(["ana", "ben", "c.d", "e_f"])
_TRIVIA = st.lists(st.sampled_from(["# note [seats.x]", "", "  # indented"]), max_size=3)


@st.composite
def files(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A commented file and the names in it."""
    names = draw(st.lists(_NAMES, unique=True, min_size=1))
    lines = draw(_TRIVIA)
    for name in names:
        lines += [f'[seats."{name}"]  # head {name}', *draw(_TRIVIA), f'digest = "{digest_of(name)}" # digest {name}']
        lines += draw(st.sampled_from([[], ["max_streams=4"], ["disabled = false # off"]])) + draw(_TRIVIA)
    return "\n".join(lines) + draw(st.sampled_from(["", "\n"])), names


_VERBS: dict[str, Callable[[Path, str], Any]] = {
    "rotate": keyedit.rotate_seat,
    "disable": keyedit.disable_seat,
    "enable": keyedit.enable_seat,
    "remove": keyedit.remove_seat,
}


@settings(max_examples=60, deadline=None)
@given(files(), st.lists(st.tuples(st.sampled_from(list(_VERBS)), st.integers(0, 3)), min_size=1, max_size=4))
def test_edits_keep_the_comments_and_tables_of_all_others(
    file: tuple[str, list[str]], edits: list[tuple[str, int]]
) -> None:
    text, names = file
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "seats.toml")
        path.write_text(text)
        touched = {names[index % len(names)] for _, index in edits}
        for verb, index in edits:
            name = names[index % len(names)]
            if name in load_seats(path).accounts:
                _VERBS[verb](path, name)
        after = path.read_text()
        tomllib.loads(after)
        # every table that was not named is there with its comments, and in the order it was
        kept = [name for name in names if name not in touched]
        assert [n for n in re.findall(r"# head (\S+)", after) if n in kept] == kept
        for name in kept:
            own = text[text.index(f'[seats."{name}"]') : text.index(f"# digest {name}")]
            assert own in after
            assert load_seats(path).accounts[SeatName(name)].digest == digest_of(name)
        removed = any(verb == "remove" for verb, _ in edits)
        assert removed or after.count("# ") == text.count("# ")


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


@pytest.mark.parametrize("verb", _VERBS.values())
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
