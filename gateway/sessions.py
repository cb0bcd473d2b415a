"""Login cookies of admins, and the brake on failed logins. Pure.

A cookie is `v1.NAME.EXPIRES.MAC`: the admin's name, seconds since the epoch, and HMAC-SHA256 in base64url.

Rules:
- The MAC covers the digest of the admin's token as it is in admins.toml now. The digest is not in the cookie: a
  rotated token changes what the MAC must be, and with it every session of that admin ends.
- A session ends with its time, with its admin (removed, disabled, expired), with the token, and with `secret`.
- Nothing in a cookie is believed before the MAC was compared, in constant time.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections import deque
from math import ceil

from gateway.keys import Digest
from gateway.seats import AdminBook, AdminName

LIFETIME_S = 12 * 3600
SECRET_BYTES = 32
FAILURES_MAX = 5
FAILURES_WINDOW_S = 60.0

_VERSION = "v1"
_COOKIE_MAX = 256
"""Longest cookie that is looked at, characters; ours have about 100 at most."""


def issue(secret: bytes, admin: AdminName, book: AdminBook, now_s: float, lifetime_s: float = LIFETIME_S) -> str:
    """Return a cookie for `admin`, good for `lifetime_s` seconds from `now_s` (wall clock).

    Raises KeyError when `book` does not hold the admin, ValueError when `secret` is shorter than 32 bytes.
    """
    expires = str(int(now_s + lifetime_s))
    return ".".join((_VERSION, _packed(admin), expires, _mac(secret, admin, expires, book.accounts[admin].digest)))


def read(secret: bytes, cookie: str, book: AdminBook, now_s: float) -> AdminName | None:
    """Return whose session this is at `now_s`, None when it is none, or none any more."""
    parts = cookie.split(".") if len(cookie) <= _COOKIE_MAX and cookie.isascii() else []
    if len(parts) != 4 or parts[0] != _VERSION:
        return None
    name = _unpacked(parts[1])
    account = book.accounts.get(name) if name is not None else None
    if name is None or account is None:
        return None
    if not hmac.compare_digest(parts[3], _mac(secret, name, parts[2], account.digest)):
        return None
    if now_s >= int(parts[2]) or name not in book.active(now_s):
        return None
    return name


def _mac(secret: bytes, name: str, expires: str, digest: Digest) -> str:
    if len(secret) < SECRET_BYTES:
        raise ValueError(f"the cookie secret needs {SECRET_BYTES} bytes, got {len(secret)}")
    said = "\n".join(("moe-appliance admin session", _VERSION, name, expires, digest))
    return base64.urlsafe_b64encode(hmac.digest(secret, said.encode(), hashlib.sha256)).rstrip(b"=").decode()


def _packed(name: str) -> str:
    return base64.urlsafe_b64encode(name.encode()).rstrip(b"=").decode()


def _unpacked(text: str) -> AdminName | None:
    try:
        name = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
    except ValueError:
        return None
    return AdminName(name) if _packed(name) == text else None


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
