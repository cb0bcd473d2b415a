"""Edits of seats.toml and admins.toml: the verbs, and what they keep."""

from __future__ import annotations

import datetime
import re
import tempfile
import tomllib
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance import keyedit
from gateway.keyfile import load_admins, load_seats
from gateway.keys import digest_of
from gateway.seats import AdminName, Denied, SeatName
from tests.appliance.seatfile import COMMENTED, NOW, who


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "seats.toml"
    path.write_text(COMMENTED)
    return path


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
