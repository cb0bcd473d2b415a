"""Reads the ledger: sums, months, events, and when the box was busy. Touches the file, read-only; blocks.

For threads and for other processes, while a gateway writes or while none runs. Never called on the event loop.

Rules:
- Each call opens its own connection and closes it; a snapshot that is held keeps the file from being tidied.
- Percentiles come from buckets 1 % wide, so that a million rows need no more memory than a thousand.
- `requests` has what is not folded yet. Of what came before only whole months are known: they are in each sum whose
  time begins at one or before it.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from gateway.errors import MoeError, start_command
from gateway.ledger.file import is_damage
from gateway.ledger.months import Month
from gateway.ledger.rows import Served, Usage
from gateway.ledger.schema import EVENTS, FIGURES, HOURS, INTERVALS, MONTHS, NAMES, USAGE, VERSION, micros
from gateway.state import Event, Severity

BUSY_S = 2.0
BUCKET = 0.01
_LATEST_S = 9e10
"""In the year 4822."""


def usage(path: Path, since_s: float, until_s: float, seat: str | None = None) -> list[Usage]:
    """What each seat used between two wall-clock times, `until_s` left out, by name. `seat`: only that one.

    `until_s` is now, or the end of a month: a month cannot be cut once it is folded. Waits, first tokens and paces are
    of requests that are not folded. Raises MoeError when there is no ledger, or it cannot be read.
    """
    return list(usage_and_total(path, since_s, until_s, seat)[0])


def usage_and_total(
    path: Path, since_s: float, until_s: float, seat: str | None = None
) -> tuple[tuple[Usage, ...], Usage]:
    """The same, and all of them together (`seat` ""). Raises MoeError."""
    times = (*_between(since_s, until_s), seat)
    values = (*times, _first_month(since_s), _month(until_s - 1e-6))
    spreads: dict[str, _Spreads] = defaultdict(_Spreads)
    with _opened(path) as db:
        db.execute("BEGIN")  # both look at the same rows
        by_seat = {name: dict(zip(NAMES, sums, strict=True)) for name, *sums in db.execute(USAGE, values)}
        for name, wait_s, ttft_s, pace in db.execute(FIGURES, times):
            spreads[name].add(wait_s, ttft_s, pace)
    rows = tuple(_usage(name, by_seat[name], spreads[name]) for name in sorted(by_seat))
    together, all_of_them = dict.fromkeys(NAMES, 0), _Spreads()
    for name, found in by_seat.items():
        together = {key: together[key] + found[key] for key in NAMES}
        all_of_them.merge(spreads[name])
    return rows, _usage("", together, all_of_them)


def months(path: Path, seat: str | None = None) -> list[tuple[str, Usage]]:
    """What each seat used in each calendar month, UTC (YYYY-MM), folded or not, in order; without percentiles. Raises
    MoeError."""
    none = _Spreads()
    with _opened(path) as db:
        found = db.execute(MONTHS, (seat,)).fetchall()
    return [(month, _usage(name, dict(zip(NAMES, sums, strict=True)), none)) for month, name, *sums in found]


def events(path: Path, after_s: float, limit: int) -> list[Event]:
    """The latest `limit` events after a wall-clock time, oldest first. Raises MoeError."""
    with _opened(path) as db:
        found = db.execute(EVENTS, (micros(after_s), max(0, limit))).fetchall()
    return [
        Event(id=id, at_s=at_us / 1e6, kind=kind, severity=Severity(severity), text=text, who=who)
        for id, at_us, kind, severity, text, who in reversed(found)
    ]


def intervals(path: Path, since_s: float, until_s: float) -> Iterator[Served]:
    """The turns that arrived between two wall-clock times and got a ticket, by arrival; helpers are left out. Raises
    MoeError."""
    with _opened(path) as db:
        for at_us, wait_s, duration_s, seat in db.execute(INTERVALS, _between(since_s, until_s)):
            yield Served(at_us / 1e6, wait_s, at_us / 1e6 + duration_s, seat)


def hours(path: Path, since_s: float, until_s: float) -> tuple[int, ...]:
    """How many of the turns of `intervals` came in each of the 24 hours of the day, UTC. Raises MoeError."""
    with _opened(path) as db:
        found = dict(db.execute(HOURS, _between(since_s, until_s)).fetchall())
    return tuple(found.get(hour, 0) for hour in range(24))


def kept_from_s(path: Path) -> float | None:
    """The arrival of the first single request, when some before it were folded into months; else None. Raises
    MoeError."""
    with _opened(path) as db:
        [oldest] = db.execute("SELECT min(at_us) FROM requests WHERE EXISTS (SELECT 1 FROM months)").fetchone()
    return None if oldest is None else oldest / 1e6


def copy(path: Path, to: Path) -> None:
    """A whole and consistent copy as one file, while a gateway writes or not. Raises MoeError when it cannot be read,
    OSError when the copy cannot be written."""
    with _opened(path) as db, contextlib.closing(sqlite3.connect(to, isolation_level=None)) as copied:
        try:
            db.backup(copied)
            copied.execute("PRAGMA journal_mode = DELETE")
        except sqlite3.Error as error:
            if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_FULL:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(to)) from error
            raise


def check(path: Path) -> None:
    """Read every page of a ledger. Raises MoeError when one is damaged."""
    with _opened(path) as db:
        said = [line for (line,) in db.execute("PRAGMA quick_check(3)")]
    if said != ["ok"]:
        raise MoeError(f"the ledger {path} is damaged: {'; '.join(said)}", _AWAY.format(path=path))


def _between(since_s: float, until_s: float) -> tuple[int, int]:
    """Both in microseconds; what is beyond every request stays so."""
    return micros(min(since_s, _LATEST_S)), micros(min(until_s, _LATEST_S))


def _month(at_s: float) -> str:
    return Month.of(min(max(at_s, 0.0), _LATEST_S)).name


def _first_month(since_s: float) -> str:
    """The first month that begins at `since_s` or later; "" is before all."""
    if since_s <= 0:
        return ""
    return _month(Month.of(min(since_s, _LATEST_S) - 1e-6).end_s)


_AWAY = "moe-appliance restore FILE   or move it away: {path}"


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    """A read-only connection to a ledger that this program knows."""
    if not path.is_file():
        remedy = f"it begins with the first request: {start_command(path.parent)}"
        raise MoeError(f"there is no ledger {path} yet", remedy)
    try:
        with contextlib.closing(_connection(path)) as db:
            [version] = db.execute("PRAGMA user_version").fetchone()
            if version != VERSION:
                raise MoeError(
                    f"the ledger {path} is of version {version}, this program reads {VERSION}",
                    "use the moe-appliance that writes it" if version else "it begins with the first request",
                )
            yield db
    except sqlite3.Error as error:
        remedy = _AWAY.format(path=path) if is_damage(error) else f"ls -l {path}*; sudo moe-appliance usage"
        raise MoeError(f"the ledger {path} cannot be read: {error}", remedy) from error


def _connection(path: Path) -> sqlite3.Connection:
    """Who may not write the folder cannot take part in its locks: then the file alone is read, if nothing is beside it
    that only a writer could merge. Raises sqlite3.Error."""
    uri = f"{path.absolute().as_uri()}?mode=ro"
    try:
        return _probed(uri)
    except sqlite3.OperationalError:
        log = path.with_name(path.name + "-wal")
        if log.exists() and log.stat().st_size:
            raise
        return _probed(f"{uri}&immutable=1")


def _probed(uri: str) -> sqlite3.Connection:
    db = sqlite3.connect(uri, uri=True, timeout=BUSY_S, isolation_level=None)
    try:
        db.execute("SELECT 1 FROM sqlite_master").fetchone()
    except sqlite3.Error:
        db.close()
        raise
    return db


class _Spread:
    """How often a figure had about which value."""

    def __init__(self) -> None:
        self.buckets: Counter[int | None] = Counter()

    def add(self, value: float) -> None:
        self.buckets[round(math.log(value) / BUCKET) if value > 1e-6 else None] += 1

    def at(self, share: float) -> float | None:
        """The value that a share of them did not exceed, within 0.5 %; None without any."""
        rank = max(1, math.ceil(share * self.buckets.total()))
        for bucket in sorted(self.buckets, key=lambda b: -math.inf if b is None else b):
            rank -= self.buckets[bucket]
            if rank <= 0:
                return 0.0 if bucket is None else math.exp(bucket * BUCKET)
        return None


class _Spreads:
    """Of one seat: waits, times to the first token, paces."""

    def __init__(self) -> None:
        self.wait, self.ttft, self.pace = _Spread(), _Spread(), _Spread()

    def add(self, wait_s: float | None, ttft_s: float | None, pace: float | None) -> None:
        if wait_s is not None:
            self.wait.add(wait_s)
        if ttft_s is not None:
            self.ttft.add(ttft_s)
        if pace is not None:
            self.pace.add(pace)

    def merge(self, other: _Spreads) -> None:
        self.wait.buckets.update(other.wait.buckets)
        self.ttft.buckets.update(other.ttft.buckets)
        self.pace.buckets.update(other.pace.buckets)


def _usage(seat: str, sums: dict[str, int], spreads: _Spreads) -> Usage:
    told = sums["told_tokens"]
    return Usage(
        seat=seat,
        requests=sums["requests"],
        served=sums["served"],
        refused=sums["refused"],
        failed=sums["failed"],
        left=sums["left_"],
        prompt_tokens=sums["prompt_tokens"],
        cached_tokens=sums["cached_tokens"],
        completion_tokens=sums["completion_tokens"],
        estimated=sums["estimated"],
        hit_share=sums["cached_tokens"] / told if told else None,
        wait_p50_s=spreads.wait.at(0.5),
        wait_p95_s=spreads.wait.at(0.95),
        ttft_p50_s=spreads.ttft.at(0.5),
        tok_per_s_p50=spreads.pace.at(0.5),
    )
