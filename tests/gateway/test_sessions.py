"""gateway.pages.sessions: cookies that cannot be made up, and the brake on failed logins."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.keys import digest_of
from gateway.pages.sessions import (
    FAILURES_MAX,
    LIFETIME_S,
    Ended,
    FailureBrake,
    csrf,
    csrf_good,
    issue,
    issue_seat,
    read,
    read_seat,
)
from gateway.seats import Account, AdminBook, AdminName, SeatBook, SeatName

SECRET = bytes(range(32))
NOW_S = 1_800_000_000.0
ANA = AdminName("ana")


def book(**changes: object) -> AdminBook:
    account = Account(name="ana", digest=digest_of("moe-admin-ana"))
    other = Account(name="ben", digest=digest_of("moe-admin-ben"))
    return AdminBook({ANA: replace(account, **changes), AdminName("ben"): other})  # type: ignore[arg-type]


COOKIE = issue(SECRET, ANA, book(), NOW_S)


def test_a_cookie_is_good_until_its_time_is_over() -> None:
    assert read(SECRET, COOKIE, book(), NOW_S) == "ana"
    assert read(SECRET, COOKIE, book(), NOW_S + LIFETIME_S - 1) == "ana"
    assert read(SECRET, COOKIE, book(), NOW_S + LIFETIME_S) is None


def test_a_session_ends_with_the_token_the_admin_and_the_secret() -> None:
    assert read(SECRET, COOKIE, book(digest=digest_of("moe-admin-new")), NOW_S) is None
    assert read(SECRET, COOKIE, book(disabled=True), NOW_S) is None
    assert read(SECRET, COOKIE, book(expires_s=NOW_S), NOW_S) is None
    assert read(SECRET, COOKIE, AdminBook({}), NOW_S) is None
    assert read(SECRET[::-1], COOKIE, book(), NOW_S) is None


def test_a_cookie_holds_neither_token_nor_digest() -> None:
    assert "moe-admin" not in COOKIE
    assert digest_of("moe-admin-ana").removeprefix("sha256:") not in COOKIE


def test_a_short_secret_is_refused() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        issue(b"short", ANA, book(), NOW_S)


@given(st.integers(0, len(COOKIE) - 1), st.characters(max_codepoint=0x2FF))
def test_one_changed_character_ends_it(at: int, character: str) -> None:
    changed = COOKIE[:at] + character + COOKIE[at + 1 :]
    assert (read(SECRET, changed, book(), NOW_S) is not None) == (changed == COOKIE)


@given(st.text() | st.lists(st.sampled_from(["v1", "YW5h", "9999999999", "", "=", "é"]), max_size=5).map(".".join))
def test_nothing_made_up_is_taken_and_nothing_is_raised(cookie: str) -> None:
    assert read(SECRET, cookie, book(), NOW_S) is None


@given(st.integers(-(10**9), 10**9), st.sampled_from(["YW5h", "YmVu", "cm9vdA"]))
def test_name_and_time_cannot_be_swapped(later_s: int, name: str) -> None:
    version, _, expires, mac = COOKIE.split(".")
    changed = ".".join((version, name, str(int(expires) + later_s), mac))
    assert (read(SECRET, changed, book(), NOW_S) is not None) == (changed == COOKIE)


def test_five_failures_in_a_minute_stop_everybody_until_the_first_is_a_minute_old() -> None:
    brake = FailureBrake()
    for second in range(FAILURES_MAX):
        assert brake.wait_s(second) == 0
        brake.failed(second)
    assert brake.wait_s(10.5) == 50
    assert brake.wait_s(60) == 0
    brake.failed(60)
    assert brake.wait_s(60.5) == 1


# Forms


@given(st.binary(min_size=32, max_size=40), st.text(max_size=40), st.text(max_size=10), st.text(max_size=10))
def test_a_forms_value_is_good_for_its_session_action_and_target_alone(
    secret: bytes, cookie: str, action: str, target: str
) -> None:
    value = csrf(secret, cookie, action, target)
    assert csrf_good(secret, cookie, action, target, value)
    assert not csrf_good(secret, cookie, action, target, value[:-1])
    assert not csrf_good(secret, cookie, action, target, "")
    assert not csrf_good(secret, cookie, action, target + "x", value)
    assert not csrf_good(secret, cookie, action + "x", target, value)
    assert not csrf_good(secret, cookie + "x", action, target, value)
    assert not csrf_good(secret + b"x", cookie, action, target, value)


def test_a_forms_value_is_no_cookie_and_needs_a_secret() -> None:
    assert csrf(b"s" * 32, "v1.x", "drain") != csrf(b"s" * 32, "v1.x", "drain", "drain")
    with pytest.raises(ValueError, match="32 bytes"):
        csrf(b"short", "v1.x", "drain")


# Seats


def test_a_seats_cookie_is_good_for_its_seat_and_its_key_and_is_no_admins() -> None:
    ana = SeatName("ana")
    account = Account(name="ana", digest=digest_of("moe-admin-ana"))
    seats = SeatBook({ana: account})
    cookie = issue_seat(SECRET, ana, seats, NOW_S)
    assert read_seat(SECRET, cookie, seats, NOW_S) == "ana"
    assert read_seat(SECRET, cookie, seats, NOW_S + LIFETIME_S) is None
    assert read_seat(SECRET, cookie, SeatBook({ana: replace(account, off_by="root")}), NOW_S) is None
    assert read_seat(SECRET, cookie, SeatBook({ana: replace(account, digest=digest_of("moe-new"))}), NOW_S) is None
    assert read(SECRET, cookie, book(), NOW_S) is None, "of the same name and key, and yet no admin"
    assert read_seat(SECRET, COOKIE, seats, NOW_S) is None


def test_an_ended_session_is_kept_no_longer_than_its_cookie_could_be_good() -> None:
    ended = Ended()
    ended.end("one", NOW_S)
    ended.end("two", NOW_S + LIFETIME_S - 1)
    assert "one" in ended
    ended.end("three", NOW_S + LIFETIME_S)
    assert [cookie in ended for cookie in ("one", "two", "three")] == [False, True, True]
