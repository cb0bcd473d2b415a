"""Who a request comes from, and what changes between two versions of the seats."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.keys import ADMIN_PREFIX, SEAT_PREFIX, digest_of, new_key
from gateway.seats import (
    Account,
    Admin,
    AdminBook,
    AdminName,
    Denied,
    DeniedReason,
    Previous,
    Seat,
    SeatBook,
    SeatChanges,
    SeatName,
    diff,
    name_problem,
)

KEY, OLD, BEN, OFF, PAST = (new_key(SEAT_PREFIX, bytes([n]) * 32) for n in range(5))
TOKEN = new_key(ADMIN_PREFIX, b"\x09" * 32)
NOW = 1_000.0

BOOK = SeatBook(
    {
        SeatName(account.name): account
        for account in (
            Account("ana", digest_of(KEY), max_streams=3, previous=Previous(digest_of(OLD), NOW + 10)),
            Account("ben", digest_of(BEN), expires_s=NOW + 5),
            Account("off", digest_of(OFF), disabled=True),
            Account("past", digest_of(PAST), expires_s=NOW),
        )
    }
)
ANA = Seat(SeatName("ana"), 3)
BEN_SEAT = Seat(SeatName("ben"), None)


def bearer(key: str, scheme: str = "Bearer") -> tuple[bytes, bytes]:
    return (b"authorization", f"{scheme} {key}".encode())


def api_key(key: str) -> tuple[bytes, bytes]:
    return (b"x-api-key", key.encode())


def denied(*headers: tuple[bytes, bytes], now_s: float = NOW) -> Denied:
    found = BOOK.authenticate(headers, now_s)
    assert isinstance(found, Denied)
    return found


@pytest.mark.parametrize(
    "header",
    [bearer(KEY), bearer(KEY, "bearer"), bearer(KEY, "BEARER"), bearer(f"  {KEY} "), api_key(KEY), api_key(f" {KEY} ")],
)
def test_a_key_is_taken_from_either_header(header: tuple[bytes, bytes]) -> None:
    assert BOOK.authenticate([(b"host", b"x"), header], NOW) == ANA


def test_authorization_wins_when_both_keys_are_known() -> None:
    assert BOOK.authenticate([api_key(BEN), bearer(KEY)], NOW) == ANA


@pytest.mark.parametrize(
    "headers",
    [
        [bearer("sk-placeholder"), api_key(BEN)],
        [bearer(BEN), api_key("sk-placeholder")],
        [bearer(""), api_key(BEN)],
        [bearer("abc", "Basic"), api_key(BEN)],
    ],
)
def test_a_placeholder_in_one_header_does_not_hide_the_key_in_the_other(headers: list[tuple[bytes, bytes]]) -> None:
    assert BOOK.authenticate(headers, NOW) == BEN_SEAT


def test_a_refused_seat_in_authorization_is_refused_whatever_x_api_key_says() -> None:
    assert denied(bearer(OFF), api_key(BEN)).status == 403


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"host", b"x")],
        [bearer("")],
        [(b"authorization", b"")],
        [(b"authorization", b"Bearer")],
        [(b"authorization", b"   ")],
        [api_key("")],
        [bearer(KEY, "Basic")],
    ],
)
def test_a_request_without_a_key_is_401_and_says_how_to_get_one(headers: list[tuple[bytes, bytes]]) -> None:
    found = denied(*headers)
    assert (found.status, found.reason, found.name) == (401, DeniedReason.MISSING, None)
    assert "ask the operator of this box for a key: moe-appliance seats add NAME" in found.message


def test_a_key_without_bearer_is_told_what_to_write() -> None:
    assert "must read 'Bearer KEY'" in denied((b"authorization", KEY.encode())).message


@pytest.mark.parametrize("key", ["moe-nobody", KEY[:-1], KEY + "x", KEY.upper(), "x" * 1_000_000])
def test_an_unknown_key_is_401_and_not_repeated(key: str) -> None:
    found = denied(bearer(key))
    assert (found.status, found.reason) == (401, DeniedReason.UNKNOWN)
    assert key not in found.message
    assert "moe-appliance seats add NAME" in found.message


def test_an_admin_token_is_no_seat_key_and_the_message_says_so() -> None:
    assert "admin token" in denied(bearer(TOKEN)).message


def test_a_disabled_seat_is_403_with_the_command_that_enables_it() -> None:
    found = denied(bearer(OFF))
    assert (found.status, found.reason, found.name) == (403, DeniedReason.DISABLED, "off")
    assert "seat off is disabled" in found.message
    assert "moe-appliance seats enable off" in found.message


def test_a_seat_is_refused_from_the_second_it_expires() -> None:
    assert BOOK.authenticate([bearer(BEN)], NOW + 4.9) == BEN_SEAT
    found = denied(bearer(BEN), now_s=NOW + 5)
    assert (found.status, found.reason, found.name) == (403, DeniedReason.EXPIRED, "ben")
    assert "seat ben expired on 1970-01-01" in found.message


def test_a_rotated_key_works_until_its_time_and_then_names_the_seat() -> None:
    assert BOOK.authenticate([bearer(OLD)], NOW + 9.9) == ANA
    found = denied(bearer(OLD), now_s=NOW + 10)
    assert (found.status, found.reason, found.name) == (401, DeniedReason.REPLACED, "ana")
    assert "moe-appliance seats rotate ana" in found.message


def test_a_rotated_key_does_not_hide_the_new_one() -> None:
    assert BOOK.authenticate([bearer(OLD), api_key(KEY)], NOW + 10) == ANA


_HEADERS = st.lists(
    st.tuples(
        st.sampled_from([b"authorization", b"x-api-key", b"host"]),
        st.one_of(st.binary(max_size=64), st.binary(max_size=64).map(lambda raw: b"Bearer " + raw)),
    ),
    max_size=6,
)


@given(_HEADERS)
def test_no_header_raises_and_none_but_a_key_opens(headers: list[tuple[bytes, bytes]]) -> None:
    assert denied(*headers).status == 401
    assert isinstance(AdminBook({}).authenticate(headers, NOW), Denied)


@pytest.mark.parametrize("at_s", [None, -1e12, 1e300, 253402300799.999999])
def test_an_odd_expiry_is_a_refusal_not_an_exception(at_s: float | None) -> None:
    book = SeatBook({SeatName("a"): Account("a", digest_of(KEY), expires_s=at_s)})
    assert book.authenticate([bearer(KEY)], 1e301) is not None


def test_one_key_for_two_seats_cannot_be_held() -> None:
    with pytest.raises(ValueError, match="twice"):
        SeatBook({SeatName(n): Account(n, digest_of(KEY)) for n in ("a", "b")})


def test_an_admin_is_known_by_header_and_by_form() -> None:
    eve = AdminName("eve")
    book = AdminBook({eve: Account("eve", digest_of(TOKEN), expires_s=NOW + 1)})
    assert book.authenticate([bearer(TOKEN)], NOW) == book.check(f" {TOKEN}\n", NOW) == Admin(eve)
    assert book.active(NOW) == {eve}
    assert book.active(NOW + 1) == frozenset()
    for found in (book.check("", NOW), book.check("\udcff", NOW), book.check(KEY, NOW)):
        assert isinstance(found, Denied)
        assert "moe-appliance admins add NAME" in found.message
    late = book.check(TOKEN, NOW + 1)
    assert isinstance(late, Denied)
    assert late.status == 403


def test_a_disabled_admin_is_told_about_admins_toml() -> None:
    book = AdminBook({AdminName("eve"): Account("eve", digest_of(TOKEN), disabled=True)})
    found = book.check(TOKEN, NOW)
    assert isinstance(found, Denied)
    assert "admins.toml" in found.message


@pytest.mark.parametrize(("name", "said"), [("ANA", "in lower case: ana"), ("a b", "1 to 32"), ("ana\n", "1 to 32")])
def test_a_bad_name_says_what_would_be_good(name: str, said: str) -> None:
    assert said in (name_problem(name) or "")


# ---------------------------------------------------------------------------------------- changes


def book(*accounts: Account) -> SeatBook:
    return SeatBook({SeatName(account.name): account for account in accounts})


def names(*found: str) -> frozenset[SeatName]:
    return frozenset(SeatName(name) for name in found)


def test_each_way_to_lose_a_seat_is_told_apart() -> None:
    old = book(*(Account(n, digest_of(n)) for n in "abcd"))
    new = book(
        Account("b", digest_of("b"), disabled=True),
        Account("c", digest_of("c"), expires_s=NOW),
        Account("d", digest_of("d"), max_streams=1),
        Account("e", digest_of("e")),
    )
    changes = diff(old, new, old_s=NOW, new_s=NOW)
    assert changes == SeatChanges(names("a"), names("b"), names("c"), names("e"), names("d"))
    assert changes.lost == names("a", "b", "c")


def test_a_rotated_key_is_no_change() -> None:
    old = book(Account("a", digest_of(OLD)))
    for previous in (Previous(digest_of(OLD), NOW + 1), None):
        assert not diff(old, book(Account("a", digest_of(KEY), previous=previous)), old_s=NOW, new_s=NOW)


def test_a_seat_that_expires_between_two_looks_is_told_once() -> None:
    assert diff(BOOK, BOOK, old_s=NOW + 4, new_s=NOW + 5).expired == names("ben")
    assert not diff(BOOK, BOOK, old_s=NOW + 5, new_s=NOW + 6)


def test_a_seat_that_could_not_stream_before_is_not_lost_again() -> None:
    assert not diff(BOOK, book(*(BOOK.accounts[n] for n in names("ana", "ben"))), old_s=NOW, new_s=NOW)


def test_an_enabled_seat_is_added() -> None:
    new = book(*(a for a in BOOK.accounts.values() if a.name != "off"), Account("off", digest_of(OFF)))
    assert diff(BOOK, new, old_s=NOW, new_s=NOW).added == names("off")
