"""Who a request comes from: seats, admins, and why somebody is turned away. Pure.

- A refusal is a value. Its message is read by people: it names the seat when the key is known and says
  what to do. It never repeats a key.
- 401: nobody here knows the key. 403: the key is known and its seat may not be used.
- `now_s` is wall-clock time in seconds since the epoch throughout.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import ClassVar, Literal, NewType

from gateway.keys import ADMIN_PREFIX, SEAT_PREFIX, Digest, KeyTable

SeatName = NewType("SeatName", str)
AdminName = NewType("AdminName", str)
Headers = Iterable[tuple[bytes, bytes]]
"""Header lines as ASGI gives them: names in lower case."""

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,31}")
_KEY_MAX = 512
"""Longest key that is hashed, characters; ours have 47 to 53."""
_KEYS_MAX = 4
"""Keys of one request that are tried."""
_FIRST_S, _LAST_S = -62_135_596_800.0, 253_402_300_799.0
"""First and last second that datetime can show: the years 1 and 9999."""


def name_problem(text: str) -> str | None:
    """Return what is wrong with a name of a seat or admin, or None when it may be used."""
    if _NAME.fullmatch(text) is not None:
        return None
    if _NAME.fullmatch(text.lower()) is not None:
        return f"must be in lower case: {text.lower()}"
    return "must be 1 to 32 of a-z, 0-9, '.', '_' and '-', beginning with a letter or a digit"


class AccountState(StrEnum):
    """Whether an account may be used; the operator's switch comes before the date."""

    ACTIVE = "active"
    DISABLED = "disabled"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class Previous:
    """The key before the last rotation: it still works until `until_s` (exclusive)."""

    digest: Digest
    until_s: float


@dataclass(frozen=True, slots=True)
class Account:
    """One table of seats.toml or admins.toml. From `expires_s` on it does not work; None = no end. `off_by`: the admin
    who switched it off while the box runs, whatever the file says (overlay.py); "" = nobody did. `tokens_per_month`: a
    soft budget; None = none."""

    name: str
    digest: Digest
    max_streams: int | None = None
    expires_s: float | None = None
    disabled: bool = False
    previous: Previous | None = None
    off_by: str = ""
    tokens_per_month: int | None = None

    def state(self, now_s: float) -> AccountState:
        """Return whether it may be used at `now_s`."""
        if self.disabled or self.off_by:
            return AccountState.DISABLED
        if self.expires_s is not None and now_s >= self.expires_s:
            return AccountState.EXPIRED
        return AccountState.ACTIVE


@dataclass(frozen=True, slots=True)
class Seat:
    """Somebody who may stream. `max_streams`: streams this seat may ever run at once; None = no own limit.
    `tokens_per_month`: its soft budget; None = none."""

    name: SeatName
    max_streams: int | None
    tokens_per_month: int | None = None


@dataclass(frozen=True, slots=True)
class Admin:
    """Somebody who may see and change the box over TCP."""

    name: AdminName


class DeniedReason(StrEnum):
    """Why a key was not taken. MISSING, UNKNOWN and REPLACED are 401; DISABLED and EXPIRED are 403."""

    MISSING = "missing"
    UNKNOWN = "unknown"
    REPLACED = "replaced"
    DISABLED = "disabled"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class Denied:
    """A refusal: HTTP status, stable reason, a message for people. `name` is set when the key is known."""

    status: Literal[401, 403]
    reason: DeniedReason
    message: str
    name: str | None = None


@dataclass(frozen=True, slots=True)
class _Hit:
    account: Account
    until_s: float | None


@dataclass(frozen=True, slots=True)
class _Words:
    kind: str
    verb: str
    file: str
    get: str


def _table(accounts: Mapping[str, Account]) -> KeyTable[_Hit]:
    entries: list[tuple[Digest, _Hit]] = []
    for account in accounts.values():
        entries.append((account.digest, _Hit(account, None)))
        if account.previous is not None:
            entries.append((account.previous.digest, _Hit(account, account.previous.until_s)))
    return KeyTable(entries)


def counted(count: int, noun: str) -> str:
    """1, "seat" -> "1 seat"; 2, "seat" -> "2 seats"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class SeatBook:
    """All seats by name. Raises ValueError when two keys are the same. `file_missing`: there is no file."""

    accounts: Mapping[SeatName, Account]
    file_missing: bool = False
    _keys: KeyTable[_Hit] = field(init=False, repr=False, compare=False)

    _WORDS: ClassVar[_Words] = _Words(
        kind="seat",
        verb="moe-appliance seats",
        file="seats.toml",
        get="ask the operator of this box for a key: moe-appliance seats add NAME",
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "_keys", _table({str(k): v for k, v in self.accounts.items()}))

    def authenticate(self, headers: Headers, now_s: float) -> Seat | Denied:
        """Return whose request this is, from `Authorization: Bearer KEY` and `x-api-key`; never raises.

        With several keys the first one known wins, Authorization before x-api-key: agents send a real key
        in one of the two and a placeholder in the other, whichever their settings filled.
        """
        found = _authenticate(self._keys, headers, now_s, self._WORDS)
        return found if isinstance(found, Denied) else _seat(found)

    def check(self, key: str, now_s: float) -> Seat | Denied:
        """Return whose key this is: the login form."""
        found = _first_known(self._keys, [key.strip()], now_s, self._WORDS)
        return found if isinstance(found, Denied) else _seat(found)

    def switched_off(self, off: Mapping[str, str]) -> SeatBook:
        """The same seats, of which those in `off` are off: name -> who did it. Names that are none here are nobody."""
        accounts = {name: replace(account, off_by=off.get(name, "")) for name, account in self.accounts.items()}
        return replace(self, accounts=accounts) if accounts != self.accounts else self

    def active(self, now_s: float) -> frozenset[SeatName]:
        """Return the seats that may be used at `now_s`."""
        return _in_state(self, AccountState.ACTIVE, now_s)

    def is_active(self, name: str, now_s: float) -> bool:
        """Whether that seat may be used at `now_s`."""
        account = self.accounts.get(SeatName(name))
        return account is not None and account.state(now_s) is AccountState.ACTIVE


@dataclass(frozen=True, slots=True)
class AdminBook:
    """All admins by name; as SeatBook."""

    accounts: Mapping[AdminName, Account]
    file_missing: bool = False
    _keys: KeyTable[_Hit] = field(init=False, repr=False, compare=False)

    _WORDS: ClassVar[_Words] = _Words(
        kind="admin",
        verb="moe-appliance admins",
        file="admins.toml",
        get="on the box, make a token: moe-appliance admins add NAME",
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "_keys", _table({str(k): v for k, v in self.accounts.items()}))

    def authenticate(self, headers: Headers, now_s: float) -> Admin | Denied:
        """Return which admin asks; the same headers and rules as for seats."""
        return _admin(_authenticate(self._keys, headers, now_s, self._WORDS))

    def check(self, token: str, now_s: float) -> Admin | Denied:
        """Return whose token this is: the login form."""
        return _admin(_first_known(self._keys, [token.strip()], now_s, self._WORDS))

    def active(self, now_s: float) -> frozenset[AdminName]:
        """Return the admins that may log in at `now_s`; a session of anybody else has ended."""
        return frozenset(n for n, a in self.accounts.items() if a.state(now_s) is AccountState.ACTIVE)


def _seat(found: Account) -> Seat:
    return Seat(SeatName(found.name), found.max_streams, found.tokens_per_month)


def _admin(found: Account | Denied) -> Admin | Denied:
    return found if isinstance(found, Denied) else Admin(AdminName(found.name))


def _authenticate(keys: KeyTable[_Hit], headers: Headers, now_s: float, words: _Words) -> Account | Denied:
    bearer: list[str] = []
    plain: list[str] = []
    no_scheme = False
    for name, value in headers:
        if name == b"authorization":
            scheme, _, rest = value.strip(b" \t").partition(b" ")
            if scheme.lower() == b"bearer":
                bearer.append(_text(rest))
            else:
                no_scheme = no_scheme or scheme.startswith(SEAT_PREFIX.encode())
        elif name == b"x-api-key":
            plain.append(_text(value))
    tried = [key for key in bearer + plain if key]
    if not tried:
        said = "Authorization must read 'Bearer KEY'" if no_scheme else f"this request has no {words.kind} key"
        return Denied(401, DeniedReason.MISSING, f"{said}; {words.get}")
    return _first_known(keys, tried[:_KEYS_MAX], now_s, words)


def _text(value: bytes) -> str:
    """Decode a key; what no key can contain becomes a character that no key contains."""
    return value.strip(b" \t").decode("ascii", "replace")


def _first_known(keys: KeyTable[_Hit], tried: list[str], now_s: float, words: _Words) -> Account | Denied:
    replaced: Denied | None = None
    for key in tried:
        hit = keys.find(key) if len(key) <= _KEY_MAX else None
        if hit is None:
            continue
        if hit.until_s is None or now_s < hit.until_s:
            return _usable(hit.account, now_s, words)
        replaced = replaced or _replaced(hit.account, hit.until_s, words)
    if replaced is not None:
        return replaced
    if words.kind == "seat" and any(key.startswith(ADMIN_PREFIX) for key in tried):
        said = "this is an admin token, which is no seat key"
    else:
        said = f"this {words.kind} key is not known here"
    return Denied(401, DeniedReason.UNKNOWN, f"{said}; {words.get}")


def _usable(account: Account, now_s: float, words: _Words) -> Account | Denied:
    who, operator = f"{words.kind} {account.name}", "ask the operator of this box"
    match account.state(now_s):
        case AccountState.ACTIVE:
            return account
        case AccountState.DISABLED:
            verb = "enable" if account.disabled else "on"
            said = f"{who} is {'disabled' if account.disabled else 'switched off'}; {operator}: "
            said += f"{words.verb} {verb} {account.name}"
            if words.kind == "admin":
                said = f"{who} is disabled; {operator} to remove `disabled` from {words.file}"
            return Denied(403, DeniedReason.DISABLED, said, account.name)
        case AccountState.EXPIRED:
            said = f"{who} expired on {_day(account.expires_s)}; {operator} for a later `expires` in {words.file}"
            return Denied(403, DeniedReason.EXPIRED, said, account.name)


def _replaced(account: Account, until_s: float, words: _Words) -> Denied:
    said = (
        f"this key of {words.kind} {account.name} was replaced and stopped on {_day(until_s)}; use the new one, "
        f"or ask the operator of this box for another: {words.verb} rotate {account.name}"
    )
    return Denied(401, DeniedReason.REPLACED, said, account.name)


def _day(at_s: float | None) -> str:
    at_s = min(max(at_s or 0.0, _FIRST_S), _LAST_S)
    return datetime.datetime.fromtimestamp(at_s, datetime.UTC).strftime("%Y-%m-%d (UTC)")


# ---------------------------------------------------------------------------------------- changes


@dataclass(frozen=True, slots=True)
class SeatChanges:
    """What admission must know between two looks at the seats.

    `gone`, `disabled`, `expired`: could stream before and cannot now. `added`: could not and can now (new,
    enabled, extended). `limits`: can in both, with another `max_streams`. A rotated key is no change.
    """

    gone: frozenset[SeatName] = frozenset()
    disabled: frozenset[SeatName] = frozenset()
    expired: frozenset[SeatName] = frozenset()
    added: frozenset[SeatName] = frozenset()
    limits: frozenset[SeatName] = frozenset()

    @property
    def lost(self) -> frozenset[SeatName]:
        """Seats whose queued requests are dropped and whose streams end after the grace time."""
        return self.gone | self.disabled | self.expired

    def __bool__(self) -> bool:
        return bool(self.lost or self.added or self.limits)


def diff(old: SeatBook, new: SeatBook, *, old_s: float, new_s: float) -> SeatChanges:
    """Compare `old` as it was at `old_s` with `new` as it is at `new_s`.

    Called each second with the same book twice, it tells when a seat expires.
    """
    before, after = old.active(old_s), new.active(new_s)
    lost = before - after
    limits = (n for n in before & after if old.accounts[n].max_streams != new.accounts[n].max_streams)
    return SeatChanges(
        gone=lost - new.accounts.keys(),
        disabled=lost & _in_state(new, AccountState.DISABLED, new_s),
        expired=lost & _in_state(new, AccountState.EXPIRED, new_s),
        added=after - before,
        limits=frozenset(limits),
    )


def _in_state(book: SeatBook, state: AccountState, now_s: float) -> frozenset[SeatName]:
    return frozenset(name for name, account in book.accounts.items() if account.state(now_s) is state)
