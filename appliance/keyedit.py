"""Edits of seats.toml and admins.toml that keep comments and order: locked, checked before and after.

Touches the files (through lockedfile.py) and the system's random numbers.

- An edit of `[seats.NAME]` re-writes the lines of that table alone; every other byte stays. A table in
  another form (inline, dotted, in pieces) is edited through tomlkit's view of the whole file.
- What will be written is parsed first: the named table must be as wanted and all others as before.
- A file that is broken before the edit is left as it is.
"""

from __future__ import annotations

import contextlib
import difflib
import secrets
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Generic, TypeVar

import tomlkit
from pydantic import ValidationError
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import InlineTable

from appliance.errors import ConfigError, MoeError
from appliance.lockedfile import LockedFile, file_errors, locked, read_regular
from gateway.keyfile import (
    AdminRow,
    PreviousKey,
    SeatRow,
    account_of,
    parse_admins_file,
    parse_seats_file,
)
from gateway.keys import ADMIN_PREFIX, KEY_BYTES, SEAT_PREFIX, digest_of, new_key
from gateway.seats import AccountState, name_problem
from gateway.toml_lines import blocks

GRACE = timedelta(hours=24)
"""How long the old key of a rotated seat still works."""

Row = TypeVar("Row", SeatRow, AdminRow)


@dataclass(frozen=True, slots=True)
class _Kind(Generic[Row]):
    """One of the two files: its top table, the word for one entry, the parser of all rows, the key prefix."""

    table: str
    word: str
    rows: Callable[[Path, bytes], Mapping[str, Row]]
    prefix: str

    @property
    def command(self) -> str:
        return f"moe-appliance {self.table}"


_SEATS: _Kind[SeatRow] = _Kind("seats", "seat", lambda p, raw: parse_seats_file(p, raw).seats, SEAT_PREFIX)
_ADMINS: _Kind[AdminRow] = _Kind("admins", "admin", lambda p, raw: parse_admins_file(p, raw).admins, ADMIN_PREFIX)


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key that was just made; it is nowhere else. `old_until`: when the key before it stops, if it still works."""

    name: str
    key: str
    old_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Listed:
    """One row of a list. `old_until` is set while the key before the last rotation still works."""

    name: str
    state: AccountState
    max_streams: int | None
    expires: datetime | None
    old_until: datetime | None
    tokens_per_month: int | None = None


# ------------------------------------------------------------------------------------------ verbs


def add_seat(
    path: Path,
    name: str,
    *,
    max_streams: int | None = None,
    tokens_per_month: int | None = None,
    expires: date | datetime | None = None,
) -> NewKey:
    """Add a seat; raises MoeError for a bad or taken name, or a file that cannot be changed."""
    fields = {"max_streams": max_streams, "tokens_per_month": tokens_per_month, "expires": expires}
    return _add(path, _SEATS, name, fields, SeatRow)


def limit_seat(path: Path, name: str, limits: Mapping[str, int | None]) -> bool:
    """Change `max_streams` and `tokens_per_month`, of which those that are left out stay; None takes a limit away.
    Returns False when they were so already."""
    return _change(path, _SEATS, name, lambda row: row.model_copy(update=dict(limits)))


def rotate_seat(path: Path, name: str, *, grace: timedelta = GRACE, now: datetime | None = None) -> NewKey:
    """Give a seat a new key. The old one works for `grace` more (0: it stops at once).

    A key that an earlier rotation left working stops at once: one old key is kept, not two.
    """
    until = ((now or datetime.now(UTC)) + grace).astimezone(UTC).replace(microsecond=0)
    key = new_key(SEAT_PREFIX, secrets.token_bytes(KEY_BYTES))

    def wanted(row: SeatRow) -> SeatRow:
        previous = PreviousKey(digest=row.digest, until=until) if grace else None
        return row.model_copy(update={"digest": digest_of(key), "previous": previous})

    _change(path, _SEATS, name, wanted)
    return NewKey(name, key, until if grace else None)


def disable_seat(path: Path, name: str) -> bool:
    """Refuse a seat from now on. Returns False when it was disabled already."""
    return _switch(path, name, disabled=True)


def enable_seat(path: Path, name: str) -> bool:
    """Let a disabled seat in again. Returns False when it was enabled already."""
    return _switch(path, name, disabled=False)


def remove_seat(path: Path, name: str) -> None:
    """Remove a seat and its keys; comments inside its table go with it, all others stay."""
    _remove(path, _SEATS, name)


def list_seats(path: Path, *, now: datetime | None = None) -> tuple[Listed, ...]:
    """Return the seats by name; none when there is no file. Raises ConfigError when it is broken."""
    return _list(path, _SEATS, now or datetime.now(UTC))


def add_admin(path: Path, name: str, *, expires: date | datetime | None = None) -> NewKey:
    """Add an admin; as add_seat."""
    return _add(path, _ADMINS, name, {"expires": expires}, AdminRow)


def rotate_admin(path: Path, name: str) -> NewKey:
    """Give an admin a new token. The old one stops at once."""
    key = new_key(ADMIN_PREFIX, secrets.token_bytes(KEY_BYTES))

    _change(path, _ADMINS, name, lambda row: row.model_copy(update={"digest": digest_of(key)}))
    return NewKey(name, key)


def remove_admin(path: Path, name: str) -> None:
    """Remove an admin and its token."""
    _remove(path, _ADMINS, name)


def list_admins(path: Path, *, now: datetime | None = None) -> tuple[Listed, ...]:
    """Return the admins by name; as list_seats."""
    return _list(path, _ADMINS, now or datetime.now(UTC))


# ---------------------------------------------------------------------------------------- editing


def _add(path: Path, kind: _Kind[Row], name: str, fields: dict[str, Any], model: type[Row]) -> NewKey:
    problem = name_problem(name)
    if problem is not None:
        better = name.lower() if name_problem(name.lower()) is None else "NAME"
        raise MoeError(f"{name!r} cannot name {_a(kind.word)}: it {problem}", f"{kind.command} add {better}")
    key = new_key(kind.prefix, secrets.token_bytes(KEY_BYTES))
    given = {"digest": str(digest_of(key))} | {k: v for k, v in fields.items() if v is not None}
    try:
        wanted = model.model_validate(given)
    except ValidationError as exc:
        said = "; ".join(f"{e['loc'][0]}: {e['msg']}" for e in exc.errors(include_url=False, include_input=False))
        raise MoeError(f"{kind.word} {name} cannot be added: {said}", f"{kind.command} add --help") from exc
    with locked(path, kind.command) as file:
        rows = kind.rows(file.path, file.raw)
        if name in rows:
            raise MoeError(f"{kind.word} {name} exists already", f"{kind.command} rotate {name}   gives it a new key")
        file.replace(_checked(file, kind, name, wanted, [_appended, _inserted], given))
    return NewKey(name, key)


def _switch(path: Path, name: str, *, disabled: bool) -> bool:
    return _change(path, _SEATS, name, lambda row: row.model_copy(update={"disabled": disabled}))


def _change(path: Path, kind: _Kind[Row], name: str, change: Callable[[Row], Row]) -> bool:
    """Turn one row into another. Returns False when they are the same and nothing was written."""
    _must_exist(path, kind, name)
    with locked(path, kind.command) as file:
        row = _row(file, kind, name)
        wanted = change(row)
        if wanted == row:
            return False

        def changed(text: str, table: str, name: str, _values: dict[str, Any]) -> str:
            before, own, after = _span(text, table, name) or ("", text, "")
            windows = "\r\n" in own
            document: Any = tomlkit.parse(own.replace("\r\n", "\n"))
            _apply(document[table][name], row, wanted)
            own = tomlkit.dumps(document)
            return before + (own.replace("\n", "\r\n") if windows else own) + after

        file.replace(_checked(file, kind, name, wanted, [changed], {}))
        return True


def _remove(path: Path, kind: _Kind[Row], name: str) -> None:
    _must_exist(path, kind, name)
    with locked(path, kind.command) as file:
        _row(file, kind, name)
        file.replace(_checked(file, kind, name, None, [_removed], {}))


def _list(path: Path, kind: _Kind[Row], now: datetime) -> tuple[Listed, ...]:
    found: list[Listed] = []
    with file_errors(path, kind.command, "read"):
        raw = read_regular(path) or b""
    for name, row in sorted(kind.rows(path, raw).items()):
        previous = row.previous if isinstance(row, SeatRow) else None
        old_until = previous.until if previous is not None and previous.until > now else None
        streams, budget = (row.max_streams, row.tokens_per_month) if isinstance(row, SeatRow) else (None, None)
        state = account_of(name, row).state(now.timestamp())
        found.append(Listed(name, state, streams, row.expires, old_until, budget))
    return tuple(found)


def _must_exist(path: Path, kind: _Kind[Row], name: str) -> None:
    """Without a file there is nothing to lock, and maybe no folder to lock it in."""
    with file_errors(path, kind.command, "read"):
        if read_regular(path) is None:
            add = f"{kind.command} add {name if name_problem(name) is None else 'NAME'}"
            raise MoeError(f"there is no {kind.word} {name}: there is no file {path} yet", add)


def _row(file: LockedFile, kind: _Kind[Row], name: str) -> Row:
    rows = kind.rows(file.path, file.raw)
    if name in rows:
        return rows[name]
    close = difflib.get_close_matches(name.lower(), rows, n=1, cutoff=0.5)
    hint = f"; did you mean {close[0]}?" if close else ""
    raise MoeError(f"there is no {kind.word} {name}{hint}", f"{kind.command} list")


# ------------------------------------------------------------------------------------ text -> text

_Edit = Callable[[str, str, str, dict[str, Any]], str]
"""(text, top table, name, values) -> new text."""


def _span(text: str, table: str, name: str) -> tuple[str, str, str] | None:
    """Split a text around `[table.name]` and its sub-tables; None when they are not one run of lines."""
    tables = blocks(text)
    own = [i for i, block in enumerate(tables) if block.path[:2] == (table, name)]
    if not own or own != list(range(own[0], own[-1] + 1)) or len(tables[own[0]].path) != 2:
        return None
    lines = text.split("\n")
    first, last = tables[own[0]].first_line - 1, tables[own[-1]].last_line
    before = "".join(line + "\n" for line in lines[:first])
    return before, "\n".join(lines[first:last]) + "\n", "\n".join(lines[last:])


def _apply(table: Any, old: SeatRow | AdminRow, new: SeatRow | AdminRow) -> None:
    """Write the fields that differ into a table of tomlkit's."""
    for key, value in new.model_dump().items():
        if value == getattr(old, key):
            continue
        if value is None:
            table.pop(key, None)
        elif isinstance(value, dict) and key in table:
            for inner, inner_value in value.items():
                table[key][inner] = inner_value
        elif isinstance(value, dict):
            inline = tomlkit.inline_table()
            inline.update(value)
            table[key] = inline
        else:
            table[key] = value


def _appended(text: str, table: str, name: str, values: dict[str, Any]) -> str:
    document, outer, inner = tomlkit.document(), tomlkit.table(is_super_table=True), tomlkit.table()
    inner.update(values)
    outer.add(name, inner)
    document.add(table, outer)
    newline = "\r\n" if "\r\n" in text else "\n"
    if text and not text.endswith("\n"):
        text += newline
    gap = newline if text.strip() and not _ends_blank(text) else ""
    return text + gap + tomlkit.dumps(document).replace("\n", newline)


def _inserted(text: str, table: str, name: str, values: dict[str, Any]) -> str:
    document: Any = tomlkit.parse(text)
    inner: Any = tomlkit.inline_table() if isinstance(document[table], InlineTable) else tomlkit.table()
    inner.update(values)
    document[table][name] = inner
    return tomlkit.dumps(document)


def _removed(text: str, table: str, name: str, _values: dict[str, Any]) -> str:
    span = _span(text, table, name)
    if span is None:
        document: Any = tomlkit.parse(text)
        del document[table][name]
        return tomlkit.dumps(document)
    before, _, after = span
    if not after.strip():  # nothing follows: leave no gap at the end
        return before.rstrip("\r\n") + ("\r\n" if "\r\n" in before else "\n") if before.strip() else ""
    if not before.strip() or _ends_blank(before):  # one gap is enough
        after = after.removeprefix("\r").removeprefix("\n")
    return before + after


def _ends_blank(text: str) -> bool:
    return text.replace("\r", "").endswith("\n\n")


def _checked(
    file: LockedFile, kind: _Kind[Row], name: str, wanted: Row | None, ways: list[_Edit], values: dict[str, Any]
) -> str:
    """Return the first text, of several ways to edit, that holds just the change wanted."""
    rows = dict(kind.rows(file.path, file.raw))
    rows.pop(name, None)
    if wanted is not None:
        rows[name] = wanted
    for way in ways:
        with contextlib.suppress(ConfigError, TOMLKitError, tomllib.TOMLDecodeError, KeyError):
            text = way(file.text, kind.table, name, values)
            if kind.rows(file.path, text.encode()) == rows:
                return text
    raise MoeError(
        f"{file.path} is written in a form that cannot be edited safely; nothing was changed",
        f"write {kind.word} {name} as a table of its own: [{kind.table}.{name}]",
    )


def _a(word: str) -> str:
    return f"an {word}" if word[0] in "aeiou" else f"a {word}"
