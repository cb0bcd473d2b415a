"""The ledger's file, as its one writing thread sees it: opened, written, folded, set aside. Touches the file; blocks.

Rules:
- WAL: readers of other processes never wait. synchronous=NORMAL: what was committed outlives every death of a process;
  a power cut may take what came since the last checkpoint, and never damages the file. So no slow disk delays a commit.
- Two gateways may write for a moment, while one replaces the other: every transaction begins IMMEDIATE and waits
  BUSY_S for the other's.
- Folding adds to `months` and deletes from `requests` in one transaction, so that no total ever changes by it.
- A file that is damaged, or none of SQLite's, is moved aside with what belongs to it, by the one who holds the lock. No
  other error does that; a file of a later version is left alone.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import sqlite3
import stat
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import orjson

from gateway.ledger.months import Month, Months
from gateway.ledger.rows import SeatMonth
from gateway.ledger.schema import CREATE, DELETE, FOLD, INSERT, INSERT_EVENTS, MONTH, OLDEST, VERSION, Value, micros

BUSY_S = 5.0
FOLD_ROWS = 2000
"""Rows that one transaction folds, in a few milliseconds."""
VACUUM_PAGES = 256
"""Pages given back to the file system at a time: 1 MiB."""
WAL_MAX_BYTES = 8 * 1024 * 1024
BROKEN_MAX = 3
"""Files moved aside that are kept; of more, the smallest goes. A disk that breaks each one must not fill up as well."""
_BESIDE = ("-wal", "-shm")
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class LaterVersionError(sqlite3.DatabaseError):
    """The file was written by a later version of moe-appliance."""


def is_damage(error: sqlite3.Error) -> bool:
    """Whether an error says that the file itself is broken, which no waiting mends."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in _DAMAGED


class LedgerFile:
    """One file, made if there is none; `prepare` first. Everything raises sqlite3.Error and OSError; a transaction that
    raised has left nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with contextlib.suppress(FileExistsError):  # never opened by us when it exists: closing it would drop our locks
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is not a file")
        self._inode = found.st_ino
        self._data_version = 0
        self._db = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)

    def prepare(self) -> None:
        """Set it up for writing, and make its tables. Raises LaterVersionError as well."""
        db = self._db
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute(f"PRAGMA journal_size_limit = {WAL_MAX_BYTES}")
        [version] = db.execute("PRAGMA user_version").fetchone()
        if version > VERSION:
            raise LaterVersionError(f"the file is of version {version}, this program knows {VERSION}")
        if version < VERSION:
            with self.transaction():
                for statement in CREATE.split(";\n"):
                    db.execute(statement)
                db.execute(f"PRAGMA user_version = {VERSION}")
        self.others_wrote()

    def close(self) -> None:
        """Close it; the last one to do so empties the log of writes beside it."""
        self._db.close()

    def others_wrote(self) -> bool:
        """Whether another connection wrote since this was asked last."""
        was = self._data_version
        [self._data_version] = self._db.execute("PRAGMA data_version").fetchone()
        return self._data_version != was

    @property
    def is_there(self) -> bool:
        """False once somebody moved or removed the file under us."""
        try:
            return self.path.stat().st_ino == self._inode
        except OSError:
            return False

    @property
    def size_bytes(self) -> int:
        """The file and the log of writes beside it."""
        sizes = 0
        for path in (self.path, self.path.with_name(self.path.name + "-wal")):
            with contextlib.suppress(OSError):
                sizes += path.stat().st_size
        return sizes

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def insert(self, rows: Sequence[tuple[Value, ...]], events: Sequence[tuple[Value, ...]]) -> int:
        """Write them; those that are there already are kept once. Returns how many requests are new."""
        with self.transaction():
            new = self._db.execute(INSERT, (orjson.dumps(rows).decode(),)).rowcount if rows else 0
            if events:
                self._db.execute(INSERT_EVENTS, (orjson.dumps(events).decode(),))
        return new

    def fold(self, before_s: float) -> int:
        """Fold the oldest requests that came before a time into the months; at most FOLD_ROWS. Returns how many."""
        cutoff = micros(before_s)
        last = self._db.execute(OLDEST, (cutoff, FOLD_ROWS)).fetchone()
        if last is None:
            return 0
        with self.transaction():
            self._db.execute(FOLD, last)
            folded = self._db.execute(DELETE, last).rowcount
            self._db.execute("DELETE FROM events WHERE at_us < ?", (cutoff,))
        return folded

    def shrink(self) -> bool:
        """Give some unused pages back to the file system. Returns whether there are more."""
        self._db.execute(f"PRAGMA incremental_vacuum({VACUUM_PAGES})").fetchall()
        [free] = self._db.execute("PRAGMA freelist_count").fetchone()
        return bool(free)

    def count(self) -> int:
        """How many requests it has."""
        [rows] = self._db.execute("SELECT count(*) FROM requests").fetchone()
        return int(rows)

    def oldest_s(self) -> float | None:
        """When the first request that is not folded came."""
        [oldest] = self._db.execute("SELECT min(at_us) FROM requests").fetchone()
        return None if oldest is None else oldest / 1e6

    def months_at(self, now_s: float) -> Months:
        """What each seat used in the month of `now_s`, folded or not."""
        month = Month.of(now_s)
        found = self._db.execute(MONTH, (month.name, micros(month.start_s), micros(month.end_s)))
        return Months(month, {seat: SeatMonth(*sums) for seat, *sums in found})

    def set_aside(self) -> Path | None:
        """Close it and move it and what belongs to it out of the way. None when it is not there any more: another
        gateway has done it. Raises OSError."""
        self.close()
        with _alone(self.path):
            return _moved(self.path) if self.is_there else None


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold the lock beside the file. Raises BlockingIOError while another process does."""
    fd = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(fd)


def _moved(path: Path) -> Path:
    stamp = datetime.fromtimestamp(time.time(), UTC).strftime("%Y-%m-%dT%H%M%S.%fZ")
    aside = path.with_name(f"{path.name}.broken-{stamp}")
    path.rename(aside)
    for end in _BESIDE:
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + end).rename(aside.with_name(aside.name + end))
    kept = _all_aside(path)
    while len(kept) > BROKEN_MAX:
        least = min(kept, key=lambda broken: broken.stat().st_size)
        kept.remove(least)
        for end in ("", *_BESIDE):
            least.with_name(least.name + end).unlink(missing_ok=True)
    return aside


def aside_of(path: Path) -> Path | None:
    """The latest file that was moved aside and is still there."""
    return max(_all_aside(path), default=None)


def _all_aside(path: Path) -> list[Path]:
    return [found for found in path.parent.glob(f"{path.name}.broken-*") if not found.name.endswith(_BESIDE)]
