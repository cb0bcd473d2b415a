"""Login cookies of admins and of seats, and the brake on failed logins. Pure.

A cookie is `v1.NAME.EXPIRES.MAC`: the admin's name (or the seat's), seconds since the epoch, and HMAC-SHA256 in
base64url.

Rules:
- The MAC covers the digest of the admin's token as it is in admins.toml now. The digest is not in the cookie: a
  rotated token changes what the MAC must be, and with it every session of that admin ends.
- A session ends with its time, with its admin (removed, disabled, expired), with the token, and with `secret`.
- The same holds for a seat and its key; the MACs of the two have different labels, so that neither cookie is the other.
- Logging out ends the session here too, not only in that browser: see Ended.
- Nothing in a cookie is believed before the MAC was compared, in constant time.
- A form that changes something carries `csrf(...)` of its session, action and target: no other site, no other session
  and no other form can know it. It is good for as long as the session.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections import deque
from math import ceil

from gateway.keys import Digest
from gateway.seats import Account, AccountState, AdminBook, AdminName, SeatBook, SeatName

LIFETIME_S = 12 * 3600
SECRET_BYTES = 32
STALE = "This form is not of your session, or of one that has ended. Go back, load the page again, and try once more."
"""What to say when `csrf_good` is false."""
FAILURES_MAX = 5
FAILURES_WINDOW_S = 60.0

_VERSION = "v1"
_ADMIN, _SEAT = "moe-appliance admin session", "moe-appliance seat session"
_COOKIE_MAX = 256
"""Longest cookie that is looked at, characters; ours have about 100 at most."""


def issue(secret: bytes, admin: AdminName, book: AdminBook, now_s: float, lifetime_s: float = LIFETIME_S) -> str:
    """Return a cookie for `admin`, good for `lifetime_s` seconds from `now_s` (wall clock).

    Raises KeyError when `book` does not hold the admin, ValueError when `secret` is shorter than 32 bytes.
    """
    return _issue(_ADMIN, secret, admin, book.accounts[admin], now_s + lifetime_s)


def read(secret: bytes, cookie: str, book: AdminBook, now_s: float) -> AdminName | None:
    """Return whose session this is at `now_s`, None when it is none, or none any more."""
    name = AdminName(_name_in(cookie))
    return name if _good(_ADMIN, secret, cookie, book.accounts.get(name), now_s) else None


def issue_seat(secret: bytes, seat: SeatName, book: SeatBook, now_s: float, lifetime_s: float = LIFETIME_S) -> str:
    """Return a cookie for `seat`; as `issue`."""
    return _issue(_SEAT, secret, seat, book.accounts[seat], now_s + lifetime_s)


def read_seat(secret: bytes, cookie: str, book: SeatBook, now_s: float) -> SeatName | None:
    """Return whose session this is at `now_s`; as `read`."""
    name = SeatName(_name_in(cookie))
    return name if _good(_SEAT, secret, cookie, book.accounts.get(name), now_s) else None


def _issue(label: str, secret: bytes, name: str, account: Account, until_s: float) -> str:
    expires = str(int(until_s))
    return ".".join((_VERSION, _packed(name), expires, _mac(label, secret, name, expires, account.digest)))


def _good(label: str, secret: bytes, cookie: str, account: Account | None, now_s: float) -> bool:
    """Whether the cookie is one of ours for this account, which its name was looked up by, and still good."""
    if account is None:
        return False
    _, packed, expires, mac = cookie.split(".")
    if not hmac.compare_digest(mac, _mac(label, secret, _unpacked(packed), expires, account.digest)):
        return False
    return now_s < int(expires) and account.state(now_s) is AccountState.ACTIVE


def _name_in(cookie: str) -> str:
    """The name that a cookie of the right form claims, "" = it has another form."""
    parts = cookie.split(".") if len(cookie) <= _COOKIE_MAX and cookie.isascii() else []
    return _unpacked(parts[1]) if len(parts) == 4 and parts[0] == _VERSION else ""


def csrf(secret: bytes, cookie: str, action: str, target: str = "") -> str:
    """Return the value that the form for one action carries, of the session with this cookie. Raises ValueError as
    `issue`."""
    return _signed(secret, "\n".join(("moe-appliance admin form", _VERSION, cookie, action, target)))


def csrf_good(secret: bytes, cookie: str, action: str, target: str, value: str) -> bool:
    """Return whether `value` is the one of this session and action; in constant time."""
    good = csrf(secret, cookie, action, target)
    return hmac.compare_digest(good.encode(), value.encode("utf-8", "replace"))


def _mac(label: str, secret: bytes, name: str, expires: str, digest: Digest) -> str:
    return _signed(secret, "\n".join((label, _VERSION, name, expires, digest)))


def _signed(secret: bytes, said: str) -> str:
    if len(secret) < SECRET_BYTES:
        raise ValueError(f"the cookie secret needs {SECRET_BYTES} bytes, got {len(secret)}")
    return base64.urlsafe_b64encode(hmac.digest(secret, said.encode(), hashlib.sha256)).rstrip(b"=").decode()


def _packed(name: str) -> str:
    return base64.urlsafe_b64encode(name.encode()).rstrip(b"=").decode()


def _unpacked(text: str) -> str:
    """The name, "" = it is not written as we write it."""
    try:
        name = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
    except ValueError:
        return ""
    return name if _packed(name) == text else ""


class Ended:
    """Sessions that were logged out before their time, so that a copied cookie is good for nothing any more. A gateway
    that starts anew has forgotten them; what ends a session for good is another token."""

    __slots__ = ("_until_s",)

    def __init__(self) -> None:
        self._until_s: dict[str, float] = {}

    def end(self, cookie: str, now_s: float) -> None:
        """A good session of ours is over at `now_s`, wall-clock seconds; kept until its own time is."""
        self._until_s = {kept: until_s for kept, until_s in self._until_s.items() if until_s > now_s}
        self._until_s[cookie] = now_s + LIFETIME_S

    def begin(self, cookie: str) -> None:
        """Whoever logs in twice in one second gets the same cookie twice."""
        self._until_s.pop(cookie, None)

    def __contains__(self, cookie: str) -> bool:
        return cookie in self._until_s


class FailureBrake:
    """Counts failed logins of all sources together: FAILURES_MAX in FAILURES_WINDOW_S, then nobody may try.

    Tokens are 256 random bits, so this saves the log and the processor, not the tokens. Times are seconds of
    one monotonic clock.
    """

    __slots__ = ("_failures",)

    def __init__(self) -> None:
        self._failures: deque[float] = deque(maxlen=FAILURES_MAX)

    def wait_s(self, now_s: float) -> int:
        """Whole seconds until the next try is allowed; 0 = now."""
        if len(self._failures) < FAILURES_MAX:
            return 0
        return max(0, ceil(self._failures[0] + FAILURES_WINDOW_S - now_s))

    def failed(self, now_s: float) -> None:
        """A login failed."""
        self._failures.append(now_s)
