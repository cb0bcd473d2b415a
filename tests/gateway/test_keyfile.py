"""seats.toml and admins.toml: what is taken, what is refused and how, and holding a file that changes."""

from __future__ import annotations

import datetime
import os
from pathlib import Path

import pytest

from gateway.errors import ConfigError
from gateway.keyfile import (
    Broken,
    Changed,
    HeldFile,
    Unchanged,
    load_admins,
    load_seats,
    parse_admins,
    parse_seats,
)
from gateway.keys import digest_of
from gateway.seats import AdminName, Previous, SeatBook, SeatName

FILE = Path("/etc/moe-appliance/seats.toml")
A, B, C = (digest_of(key) for key in "abc")
ANA = SeatName("ana")


def seats(text: str) -> SeatBook:
    return parse_seats(FILE, text.encode())


def refused(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        seats(text)
    return [line.removeprefix(f"{FILE}:") for line in caught.value.message.splitlines()]


def at(*args: int) -> float:
    return datetime.datetime(*args, tzinfo=datetime.UTC).timestamp()  # type: ignore[misc,arg-type]


def test_a_full_seat_is_taken_as_written() -> None:
    book = seats(
        f'[seats.ana]\ndigest = "{A}"\nmax_streams = 3\nexpires = 2027-01-31T18:00:00+01:00\ndisabled = true\n'
        f'previous = {{ digest = "{B}", until = 2026-11-30T12:00:00Z }}\n'
    )
    ana = book.accounts[ANA]
    assert (ana.name, ana.digest, ana.max_streams, ana.disabled) == ("ana", A, 3, True)
    assert ana.expires_s == at(2027, 1, 31, 17)
    assert ana.previous == Previous(B, at(2026, 11, 30, 12))


def test_a_seat_needs_a_digest_only() -> None:
    ana = seats(f'[seats.ana]\ndigest = "{A}"\n').accounts[ANA]
    assert (ana.max_streams, ana.expires_s, ana.disabled, ana.previous) == (None, None, False, None)


def test_a_date_means_the_end_of_that_day_in_utc() -> None:
    expires_s = seats(f'[seats.ana]\ndigest = "{A}"\nexpires = 2027-01-31\n').accounts[ANA].expires_s
    assert expires_s == pytest.approx(at(2027, 2, 1), abs=0.001)


def test_a_file_of_errors_names_twenty_and_counts_the_rest() -> None:
    unknown = refused(f'[seats.a]\ndigest = "{A}"\n' + "".join(f"x{n} = 1\n" for n in range(5000)))
    assert [line.split(" ")[0] for line in unknown[:3]] == ["3:", "4:", "5:"]
    assert (len(unknown), unknown[-1]) == (21, " and 4980 more")
    twice = refused("".join(f'[seats.s{n}]\ndigest = "{A}"\n' for n in range(5000)))
    assert twice[0] == "4: seats.s1.digest is the same key as seats.s0.digest (line 2); each needs one of its own"
    assert (len(twice), twice[-1]) == (21, " and 4979 more")


def test_a_file_too_large_to_be_one_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "seats.toml"
    path.write_bytes(b"# " + b"x" * 1024 * 1024)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", None)
        patch.setattr(Path, "read_bytes", None)
        with pytest.raises(ConfigError, match=r"seats\.toml has 1048578 bytes; it may have 1048576"):
            load_seats(path)
    held = HeldFile(path, parse_seats, SeatBook({}))
    assert isinstance(held.refresh(1.0), Broken)
    assert isinstance(held.refresh(2.0), Unchanged)
    path.write_text(f'[seats.ana]\ndigest = "{A}"\n')
    assert isinstance(held.refresh(3.0), Changed)


def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "seats.toml")
    for path in (tmp_path / "seats.toml", tmp_path, Path("/dev/zero")):
        with pytest.raises(ConfigError, match="is not a file"):
            load_seats(path)


@pytest.mark.parametrize("value", ["9999-12-31", "0001-01-01", "9999-12-31T23:59:59-12:00"])
def test_dates_at_the_ends_of_the_calendar_are_taken(value: str) -> None:
    assert seats(f'[seats.ana]\ndigest = "{A}"\nexpires = {value}\n').accounts[ANA].expires_s is not None


def test_a_time_without_an_offset_is_utc() -> None:
    expires_s = seats(f'[seats.ana]\ndigest = "{A}"\nexpires = 2027-01-31T10:00:00\n').accounts[ANA].expires_s
    assert expires_s == at(2027, 1, 31, 10)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("", "1: seats.ana.digest is missing"),
        ('digest = "abc"', "2: seats.ana.digest must be sha256: and 64 hex digits"),
        (f'digest = "{A}"\nmax_stream = 3', "3: seats.ana.max_stream is not a known key; did you mean max_streams?"),
        (f'digest = "{A}"\nmax_streams = 0', "3: seats.ana.max_streams must be at least 1, is 0"),
        (f'digest = "{A}"\nmax_streams = "3"', "3: seats.ana.max_streams must be a whole number, is text"),
        (f'digest = "{A}"\ndisabled = "no"', "3: seats.ana.disabled must be true or false, is text"),
        (
            f'digest = "{A}"\nexpires = "2027-01-31"',
            "3: seats.ana.expires must be a date such as 2027-01-31 or a time such as 2027-01-31T18:00:00Z, "
            "without quotes",
        ),
        (f'digest = "{A}"\nprevious = {{ digest = "{B}" }}', "3: seats.ana.previous.until is missing"),
        (
            f'[seats.ana.lee]\ndigest = "{A}"',
            '1: seats.ana holds a table lee; a name with a dot is written in quotes: "NAME.lee"',
        ),
    ],
)
def test_what_is_wrong_is_said_with_line_and_key(body: str, said: str) -> None:
    assert refused(f"[seats.ana]\n{body}\n") == [said]


@pytest.mark.parametrize("name", ["Ana", "-ana", '""', "a" * 33, '"a b"', '"ana\\n"'])
def test_a_bad_name_is_refused(name: str) -> None:
    (said,) = refused(f'[seats.{name}]\ndigest = "{A}"\n')
    assert said.startswith("1: seats.")
    assert "is not a name: it must be " in said


@pytest.mark.parametrize("name", ["a", "0", "a" * 32, '"a.b"', "a_b-c"])
def test_a_good_name_is_taken(name: str) -> None:
    assert len(seats(f'[seats.{name}]\ndigest = "{A}"\n').accounts) == 1


def test_everything_that_is_wrong_is_listed() -> None:
    assert len(refused('[seats.ana]\n[seats.ben]\ndigest = "x"\n[seat.cy]\n')) == 3


def test_two_seats_with_one_key_are_both_named() -> None:
    (said,) = refused(f'[seats.ana]\ndigest = "{A}"\n[seats.ben]\ndigest = "{A.upper().replace("SHA", "sha")}"\n')
    assert said == "4: seats.ben.digest is the same key as seats.ana.digest (line 2); each needs one of its own"


def test_an_old_key_of_one_seat_cannot_be_the_key_of_another() -> None:
    (said,) = refused(
        f'[seats.ana]\ndigest = "{A}"\nprevious = {{ digest = "{B}", until = 2027-01-01 }}\n'
        f'[seats.ben]\ndigest = "{B}"\n'
    )
    assert "seats.ben.digest is the same key as seats.ana.previous.digest (line 3)" in said


def test_admins_have_no_streams() -> None:
    path = Path("admins.toml")
    book = parse_admins(path, f'[admins.eve]\ndigest = "{A}"\nexpires = 2027-01-31\n'.encode())
    assert book.accounts[AdminName("eve")].digest == A
    with pytest.raises(ConfigError, match="max_streams is not a known key"):
        parse_admins(path, f'[admins.eve]\ndigest = "{A}"\nmax_streams = 1\n'.encode())


# ---------------------------------------------------------------------------------------- loading


def test_a_missing_file_holds_nobody_and_says_so(tmp_path: Path) -> None:
    assert load_seats(tmp_path / "seats.toml") == SeatBook({}, file_missing=True)
    assert load_admins(tmp_path / "admins.toml").file_missing


def test_an_empty_file_holds_nobody(tmp_path: Path) -> None:
    (tmp_path / "seats.toml").touch()
    assert load_seats(tmp_path / "seats.toml") == SeatBook({})


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_what_is_not_a_file_is_refused_at_once(tmp_path: Path, make: object) -> None:
    make(tmp_path / "seats.toml")  # type: ignore[operator]
    with pytest.raises(ConfigError, match="is not a file"):
        load_seats(tmp_path / "seats.toml")


# ---------------------------------------------------------------------------------------- holding


def seat(name: str, digest: str) -> str:
    return f'[seats.{name}]\ndigest = "{digest}"\n'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "seats.toml"
    path.write_text(seat("ana", A))
    return path


@pytest.fixture
def held(path: Path) -> HeldFile[SeatBook]:
    held = HeldFile(path, parse_seats, SeatBook({}))
    assert isinstance(held.refresh(0.0), Changed)
    return held


def names(held: HeldFile[SeatBook]) -> set[str]:
    return set(held.value.accounts)


def test_a_file_that_stays_the_same_is_not_read_again(held: HeldFile[SeatBook], path: Path) -> None:
    path.chmod(0o640)
    assert held.refresh(1.0) == Unchanged()
    assert names(held) == {"ana"}


def test_a_new_version_is_taken_and_the_old_one_is_told(held: HeldFile[SeatBook], path: Path) -> None:
    path.write_text(seat("ana", A) + seat("ben", B))
    changed = held.refresh(1.0)
    assert isinstance(changed, Changed)
    assert set(changed.old.accounts) == {"ana"}
    assert set(changed.new.accounts) == names(held) == {"ana", "ben"}


def test_a_file_renamed_into_place_is_seen_even_with_the_same_size_and_time(
    held: HeldFile[SeatBook], path: Path
) -> None:
    times = path.stat()
    other = path.with_name("other")
    other.write_text(seat("bob", B))
    os.utime(other, ns=(times.st_atime_ns, times.st_mtime_ns))
    other.rename(path)
    assert isinstance(held.refresh(1.0), Changed)
    assert names(held) == {"bob"}


def test_a_broken_version_keeps_the_old_value_and_its_error_until_it_is_mended(
    held: HeldFile[SeatBook], path: Path
) -> None:
    path.write_text("[seats.ana\n")
    broken = held.refresh(5.0)
    assert isinstance(broken, Broken)
    assert (broken.since_s, held.broken, names(held)) == (5.0, broken, {"ana"})
    assert f"{path}:1: " in broken.error
    assert held.refresh(6.0) == Unchanged()
    assert held.refresh(7.0, force=True) == Unchanged()
    assert held.broken == broken

    path.write_text("[seats.ana]\n")
    still = held.refresh(8.0)
    assert isinstance(still, Broken)
    assert still.since_s == 5.0

    path.write_text(seat("ben", B))
    mended = held.refresh(9.0)
    assert isinstance(mended, Changed)
    assert mended.mended
    assert held.broken is None
    assert names(held) == {"ben"}


@pytest.mark.parametrize("vanish", [lambda p: p.unlink(), lambda p: p.write_text("")])
def test_a_file_that_vanishes_is_believed_at_the_second_look(
    held: HeldFile[SeatBook], path: Path, vanish: object
) -> None:
    vanish(path)  # type: ignore[operator]
    assert held.refresh(1.0) == Unchanged()
    assert names(held) == {"ana"}
    assert isinstance(held.refresh(2.0), Changed)
    assert names(held) == set()
    assert held.refresh(3.0) == Unchanged()


def test_a_file_that_is_back_at_the_second_look_never_lost_a_seat(held: HeldFile[SeatBook], path: Path) -> None:
    path.unlink()
    assert held.refresh(1.0) == Unchanged()
    path.write_text(seat("ana", A) + seat("ben", B))
    assert isinstance(held.refresh(2.0), Changed)
    assert names(held) == {"ana", "ben"}


def test_a_forced_look_believes_at_once(held: HeldFile[SeatBook], path: Path) -> None:
    path.unlink()
    assert isinstance(held.refresh(1.0, force=True), Changed)
    assert held.value.file_missing


def test_a_file_missing_from_the_start_is_picked_up_when_it_appears(tmp_path: Path) -> None:
    held = HeldFile(tmp_path / "seats.toml", parse_seats, SeatBook({}))
    first = held.refresh(0.0)
    assert isinstance(first, Changed)
    assert first.new.file_missing
    assert held.refresh(1.0) == Unchanged()
    held.path.write_text(seat("ana", A))
    assert isinstance(held.refresh(2.0), Changed)


def test_a_file_that_cannot_be_looked_at_is_broken_until_it_can(held: HeldFile[SeatBook], path: Path) -> None:
    good = path.with_name("good")
    path.rename(good)
    path.mkdir()
    assert isinstance(held.refresh(1.0), Broken)
    assert held.refresh(2.0) == Unchanged()
    path.rmdir()
    good.rename(path)
    mended = held.refresh(3.0)
    assert isinstance(mended, Changed)
    assert mended.mended
    assert names(held) == {"ana"}
