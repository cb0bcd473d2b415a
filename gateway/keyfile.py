"""seats.toml and admins.toml: parsed and validated with line and key, loaded, and held while they change.

Parsing is pure; `load_seats`, `load_admins` and `HeldFile` read files. No asyncio: the gateway calls
`HeldFile.refresh` each second.

- A file is taken as a whole or not at all. One above FILE_MAX_BYTES is not read.
- Times without an offset are UTC. A date means the end of that day, UTC.
- A missing file holds nobody; that is no error, and the book says so (`file_missing`).
"""

from __future__ import annotations

import datetime
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from gateway.errors import ConfigError
from gateway.keys import Digest, parse_digest
from gateway.seats import Account, AdminBook, AdminName, Previous, SeatBook, SeatName, name_problem
from gateway.toml_lines import KeyPath, dotted, line_errors, lines_of, parse_toml, validation_error

T = TypeVar("T")

FILE_MAX_BYTES = 1024 * 1024
"""Ten thousand seats. The gateway reads between two tokens."""


def _moment(value: object) -> datetime.datetime:
    if isinstance(value, datetime.datetime):
        return value if value.tzinfo is not None else value.replace(tzinfo=datetime.UTC)
    if isinstance(value, datetime.date):
        return datetime.datetime.combine(value, datetime.time.max, datetime.UTC)
    raise ValueError("must be a date such as 2027-01-31 or a time such as 2027-01-31T18:00:00Z, without quotes")


def _name(text: str) -> str:
    problem = name_problem(text)
    if problem is not None:
        raise ValueError(f"is not a name: it {problem}")
    return text


Moment = Annotated[datetime.datetime, BeforeValidator(_moment)]
DigestField = Annotated[Digest, AfterValidator(parse_digest)]
Name = Annotated[str, AfterValidator(_name)]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)


class _Row(_Table):
    @model_validator(mode="before")
    @classmethod
    def _no_table_inside(cls, value: Any) -> Any:
        for key in value if isinstance(value, dict) else ():
            if key not in cls.model_fields and isinstance(value[key], dict):
                raise ValueError(f'holds a table {key}; a name with a dot is written in quotes: "NAME.{key}"')
        return value


class PreviousKey(_Table):
    """The key before the last rotation. Written by `moe-appliance seats rotate`."""

    digest: DigestField
    """Digest of the old key."""
    until: Moment
    """When the old key stops."""


class SeatRow(_Row):
    """`[seats.NAME]`."""

    digest: DigestField
    """`sha256:` and 64 hex digits of the seat's key."""
    max_streams: Annotated[int, Field(ge=1)] | None = None
    """Streams this seat may ever run at once. Default: no limit of its own."""
    tokens_per_month: Annotated[int, Field(ge=1)] | None = None
    """Output tokens and uncached prompt tokens of a calendar month, UTC; of an answer that was broken off, its output
    alone. Above it, requests stand behind those of other seats for up to a minute; none is ever refused for it.
    Default: no budget."""
    expires: Moment | None = None
    """When the seat stops. Default: never."""
    disabled: bool = False
    """The seat is refused while this is true. Default false."""
    previous: PreviousKey | None = None
    """The key before the last rotation, while it still works."""


class AdminRow(_Row):
    """`[admins.NAME]`."""

    digest: DigestField
    """`sha256:` and 64 hex digits of the admin's token."""
    expires: Moment | None = None
    """When the token stops. Default: never."""
    disabled: bool = False
    """The token is refused while this is true. Default false."""


class SeatsFile(_Table):
    """All of seats.toml."""

    seats: dict[Name, SeatRow] = Field(default_factory=dict)
    """Seats by name."""


class AdminsFile(_Table):
    """All of admins.toml."""

    admins: dict[Name, AdminRow] = Field(default_factory=dict)
    """Admins by name."""


_File = TypeVar("_File", SeatsFile, AdminsFile)


# ---------------------------------------------------------------------------------------- parsing


def parse_seats_file(path: Path, raw: bytes) -> SeatsFile:
    """Return the tables of seats.toml. Raises ConfigError that lists everything wrong; `path` is for that."""
    text, file = _validated(path, raw, SeatsFile)
    _refuse_twice(path, text, "seats", file.seats)
    return file


def parse_admins_file(path: Path, raw: bytes) -> AdminsFile:
    """Return the tables of admins.toml. Raises ConfigError that lists everything wrong."""
    text, file = _validated(path, raw, AdminsFile)
    _refuse_twice(path, text, "admins", file.admins)
    return file


def parse_seats(path: Path, raw: bytes | None) -> SeatBook:
    """Return the seats of a file's bytes; None = there is no file. Raises ConfigError."""
    rows = parse_seats_file(path, raw or b"").seats
    return SeatBook({SeatName(n): account_of(n, row) for n, row in rows.items()}, file_missing=raw is None)


def parse_admins(path: Path, raw: bytes | None) -> AdminBook:
    """Return the admins of a file's bytes; None = there is no file. Raises ConfigError."""
    rows = parse_admins_file(path, raw or b"").admins
    return AdminBook({AdminName(n): account_of(n, row) for n, row in rows.items()}, file_missing=raw is None)


def account_of(name: str, row: SeatRow | AdminRow) -> Account:
    """Return a row as the value that the gateway works with."""
    expires_s = row.expires.timestamp() if row.expires is not None else None
    if isinstance(row, AdminRow):
        return Account(name, row.digest, expires_s=expires_s, disabled=row.disabled)
    old = row.previous
    previous = Previous(old.digest, old.until.timestamp()) if old is not None else None
    streams, budget = row.max_streams, row.tokens_per_month
    return Account(name, row.digest, streams, expires_s, row.disabled, previous, tokens_per_month=budget)


def _validated(path: Path, raw: bytes, model: type[_File]) -> tuple[str, _File]:
    text, values = parse_toml(path, raw)
    try:
        return text, model.model_validate(values)
    except ValidationError as exc:
        raise validation_error(path, text, exc, model) from exc


def _refuse_twice(path: Path, text: str, kind: str, rows: Mapping[str, SeatRow] | Mapping[str, AdminRow]) -> None:
    first: dict[Digest, KeyPath] = {}
    found: list[tuple[KeyPath, KeyPath]] = []
    for name, row in rows.items():
        digests: list[tuple[Digest, KeyPath]] = [(row.digest, (kind, name, "digest"))]
        if isinstance(row, SeatRow) and row.previous is not None:
            digests.append((row.previous.digest, (kind, name, "previous", "digest")))
        for digest, key in digests:
            other = first.setdefault(digest, key)
            if other != key:
                found.append((key, other))
    if found:
        lines = lines_of(text)
        raise line_errors(
            path,
            text,
            [
                (key, f"is the same key as {dotted(other)} (line {lines.get(other)}); each needs one of its own")
                for key, other in found
            ],
        )


# ---------------------------------------------------------------------------------------- loading


@dataclass(frozen=True, slots=True)
class Signature:
    """What tells one version of a file from the next."""

    mtime_ns: int
    size: int
    inode: int


def load_seats(path: Path) -> SeatBook:
    """Read seats.toml. Raises ConfigError when it cannot be read or used."""
    return parse_seats(path, _read(path)[1])


def load_admins(path: Path) -> AdminBook:
    """Read admins.toml. Raises ConfigError when it cannot be read or used."""
    return parse_admins(path, _read(path)[1])


def _signature(path: Path) -> Signature | None:
    """Raises ConfigError when `path` is something else than a file, or hidden from us."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise _unreadable(path, exc) from exc
    if not stat.S_ISREG(found.st_mode):  # reading a FIFO would hang
        raise ConfigError(f"{path} is not a file", f"remove {path}, or name another file")
    return Signature(found.st_mtime_ns, found.st_size, found.st_ino)


def _read(path: Path) -> tuple[Signature | None, bytes | None]:
    signature = _signature(path)
    if signature is None:
        return None, None
    if signature.size > FILE_MAX_BYTES:
        raise _too_large(path, signature.size)
    try:
        with path.open("rb") as file:
            raw = file.read(FILE_MAX_BYTES + 1)
        if len(raw) > FILE_MAX_BYTES:  # it grew
            raise _too_large(path, len(raw))
        return signature, raw
    except FileNotFoundError:
        return None, None
    except OSError as exc:
        raise _unreadable(path, exc) from exc


def _too_large(path: Path, size: int) -> ConfigError:
    return ConfigError(
        f"{path} has {size} bytes; it may have {FILE_MAX_BYTES}", f"look at {path}: this is no file of keys"
    )


def _unreadable(path: Path, exc: OSError) -> ConfigError:
    return ConfigError(
        f"{path} cannot be read: {(exc.strerror or str(exc)).lower()}",
        f"ls -l {path}   and let the user that runs moe-appliance read it",
    )


# ---------------------------------------------------------------------------------------- holding


@dataclass(frozen=True, slots=True)
class Changed(Generic[T]):
    """The file has a new version and it is in use. `mended`: the version before was broken."""

    old: T
    new: T
    mended: bool


@dataclass(frozen=True, slots=True)
class Unchanged:
    """Nothing to do. A file that stays broken in the same way is unchanged."""


@dataclass(frozen=True, slots=True)
class Broken:
    """The file cannot be used; the last good value goes on. `since_s`: when it was first seen so."""

    error: str
    since_s: float


class HeldFile(Generic[T]):
    """Holds the last good value of a file.

    `value` is that value, or `initial` before the first good one; `broken` is set while the file on disk
    cannot be used. The constructor reads nothing.

    A file that vanished or became empty is believed at the second look only: editors that write in place
    show that for an instant, and it would turn everybody away. A forced look believes at once.
    """

    def __init__(self, path: Path, parse: Callable[[Path, bytes | None], T], initial: T) -> None:
        self.path = path
        self.value = initial
        self.broken: Broken | None = None
        self._parse = parse
        self._seen: Signature | None = None
        self._stale = True
        self._good = False
        self._doubted = False

    def refresh(self, now_s: float, *, force: bool = False) -> Changed[T] | Unchanged | Broken:
        """Look at the file and take a new version of it; `now_s` is wall-clock time.

        Returns Broken once for each different error. With `force` the file is read even if it looks the
        same. Raises nothing.
        """
        try:
            signature = _signature(self.path)
            if signature == self._seen and not self._stale and not force:
                self._doubted = False
                return Unchanged()
            if (signature is None or signature.size == 0) and self._good and not self._doubted and not force:
                self._doubted = True
                return Unchanged()
            self._doubted = False
            return self._take(now_s, force=force)
        except ConfigError as exc:  # unreadable, which a chmod mends without a trace: look again each time
            self._stale = True
            return self._break(str(exc), now_s)

    def _take(self, now_s: float, *, force: bool) -> Changed[T] | Unchanged | Broken:
        signature, raw = _read(self.path)
        if _signature(self.path) != signature and not force:  # written while we read it
            return Unchanged()
        self._seen, self._stale = signature, False
        try:
            new = self._parse(self.path, raw)
        except ConfigError as exc:
            return self._break(str(exc), now_s)
        changed = Changed(self.value, new, mended=self.broken is not None)
        self.value, self.broken, self._good = new, None, True
        return changed

    def _break(self, error: str, now_s: float) -> Broken | Unchanged:
        if self.broken is not None and self.broken.error == error:
            return Unchanged()
        self.broken = Broken(error, self.broken.since_s if self.broken is not None else now_s)
        return self.broken
