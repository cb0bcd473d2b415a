"""gateway.ledger.writing with a file that is broken, gone, read-only or of a later version: no row is lost for it."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.ledger import file as ledger_file
from gateway.ledger import writing as module
from gateway.ledger.file import LedgerFile
from tests.gateway.ledgers import NOW_S, hurried, row, rows_of, running_ledger, until


@pytest.fixture(autouse=True)
def _hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    hurried(monkeypatch)


@pytest.mark.parametrize("broken", [b"no database at all" * 100, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_damaged_file_is_moved_aside_and_a_new_one_begun(tmp_path: Path, broken: bytes) -> None:
    path = tmp_path / "ledger.db"
    path.write_bytes(broken)
    (tmp_path / "ledger.db-wal").write_bytes(b"of the old one")
    with running_ledger(path) as ledger:
        ledger.put(row())
        until(lambda: ledger.state.rows == 1 and ledger.state.aside)
        aside = tmp_path / ledger.state.aside
    assert aside.read_bytes() == broken
    assert len(rows_of(path)) == 1
    with running_ledger(path) as ledger:
        until(lambda: ledger.state.rows == 1)
        assert ledger.state.aside == aside.name, "said until somebody removes it"


def test_a_file_that_breaks_while_it_is_used_is_moved_aside_without_losing_what_waits(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with running_ledger(path) as ledger:
        for number in range(3000):
            ledger.put(row(at_s=NOW_S + number))
        until(lambda: ledger.state.rows == 3000)
    raw = bytearray(path.read_bytes())
    raw[4096 * 2 :] = b"\xee" * (len(raw) - 4096 * 2)
    path.write_bytes(raw)
    with running_ledger(path) as ledger:
        ledger.put(row(at_s=NOW_S + 9000, request_id="after"))
        until(lambda: ledger.state.aside and ledger.state.rows == 1)
    assert rows_of(path, "request_id") == [("after",)]


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), sqlite3.OperationalError("disk I/O error")])
def test_no_other_error_moves_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    path, failing = tmp_path / "ledger.db", [True]
    insert = LedgerFile.insert

    def ill(self: LedgerFile, *values: Any) -> int:
        if failing[0]:
            raise error
        return insert(self, *values)

    monkeypatch.setattr(LedgerFile, "insert", ill)
    with running_ledger(path) as ledger:
        ledger.put(row())
        until(lambda: ledger.state.error)
        inode = path.stat().st_ino
        failing[0] = False
        until(lambda: ledger.state.rows == 1)
        assert path.stat().st_ino == inode
        assert ledger.state.aside == ""


def test_a_file_that_could_only_be_read_at_first_is_written_once_it_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system that was remounted, a file that belonged to root until somebody followed the remedy."""
    path = tmp_path / "ledger.db"
    with running_ledger(path) as ledger:
        ledger.put(row())
    connect, only_read = sqlite3.connect, [True]

    def connected(to: Any, **words: Any) -> Any:
        return connect(f"file:{to}?mode=ro", uri=True, **words) if only_read[0] else connect(to, **words)

    monkeypatch.setattr(ledger_file.sqlite3, "connect", connected)
    monkeypatch.setattr(module, "intervals", lambda *times: iter(()))
    monkeypatch.setattr(module, "hours", lambda *times: (0,) * 24)
    with running_ledger(path) as ledger:
        ledger.put(row(at_s=NOW_S + 1))
        until(lambda: "readonly" in ledger.state.error)
        only_read[0] = False
        until(lambda: ledger.state.rows == 2 and not ledger.state.error)


def test_a_file_of_a_later_version_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 99")
    db.close()
    with running_ledger(path) as ledger:
        ledger.put(row())
        until(lambda: "version 99" in ledger.state.error)
        assert ledger.state.aside == ""
    assert ledger.state.waiting == 1


def test_a_removed_file_is_begun_anew_and_no_row_goes_into_the_dark(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with running_ledger(path) as ledger:
        ledger.put(row(request_id="gone"))
        until(lambda: ledger.state.rows == 1)
        for found in tmp_path.iterdir():
            found.unlink()
        ledger.put(row(request_id="kept"))
        until(lambda: path.exists() and ledger.state.rows == 1 and not ledger.state.waiting)
    assert rows_of(path, "request_id") == [("kept",)]


def test_a_file_that_cannot_be_set_up_at_first_is_set_up_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[int] = []
    prepare = LedgerFile.prepare

    def full_at_first(self: LedgerFile) -> None:
        tries.append(1)
        if len(tries) < 3:
            raise sqlite3.OperationalError("database or disk is full")
        prepare(self)

    monkeypatch.setattr(LedgerFile, "prepare", full_at_first)
    with running_ledger(tmp_path / "ledger.db") as ledger:
        ledger.put(row())
        until(lambda: ledger.state.rows == 1 and not ledger.state.error)


def test_damage_that_folding_finds_moves_the_file_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged = sqlite3.DatabaseError("malformed")
    damaged.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    found = [damaged]

    def fold(self: LedgerFile, before_s: float) -> int:
        if found:
            raise found.pop()
        return 0

    monkeypatch.setattr(LedgerFile, "fold", fold)
    with running_ledger(tmp_path / "ledger.db", keep_days=10) as ledger:
        until(lambda: ledger.state.aside)
        ledger.put(row())
        until(lambda: ledger.state.rows == 1)


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/null")])
def test_what_is_no_file_is_said_and_left_alone(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / "ledger.db"
    make(path)
    with running_ledger(path) as ledger:
        ledger.put(row())
        until(lambda: ledger.state.error == "it is not a file")
    assert list(tmp_path.iterdir()) == [path]
