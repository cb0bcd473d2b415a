"""gateway.ledger.writing: what is put is written, nothing waits for it, and what cannot be written is counted."""

from __future__ import annotations

import io
import os
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from gateway import logs
from gateway.ledger import reading
from gateway.ledger import writing as module
from gateway.ledger.file import LedgerFile
from gateway.ledger.rows import SeatMonth
from gateway.ledger.writing import Ledger
from gateway.state import Event, Severity
from tests.gateway.ledgers import DAY_S, NOW_S, hurried, row, rows_of, running_ledger, until


@pytest.fixture(autouse=True)
def _hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    hurried(monkeypatch)


def event(id: str = "e1", at_s: float = NOW_S) -> Event:
    return Event(id=id, at_s=at_s, kind="operator.mode", severity=Severity.INFO, text="paused", who="eve")


def full(monkeypatch: pytest.MonkeyPatch, pages: int) -> list[int]:
    """Let the file have no more pages than this; set the first element to change it."""
    allowed = [pages]
    transaction = LedgerFile.transaction

    def bounded(self: LedgerFile) -> Any:
        self._db.execute(f"PRAGMA max_page_count = {allowed[0]}")
        return transaction(self)

    monkeypatch.setattr(LedgerFile, "transaction", bounded)
    return allowed


def test_what_is_put_is_in_the_file_once_it_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with running_ledger(path) as ledger:
        for number in range(2500):
            ledger.put(row(at_s=NOW_S + number, request_id=f"r{number}"))
        ledger.put_event(event())
    assert [found.name for found in tmp_path.iterdir()] == ["ledger.db"], "no log of writes is left"
    assert [id for (id,) in rows_of(path, "request_id")] == [f"r{number}" for number in range(2500)]
    assert reading.events(path, 0, 10) == [event()]
    assert ledger.state.rows == 2500


def test_the_file_is_its_owner_s_alone_whatever_the_mask(tmp_path: Path) -> None:
    mask = os.umask(0)
    try:
        with running_ledger(tmp_path / "ledger.db") as ledger:
            ledger.put(row())
            until(lambda: ledger.state.rows == 1)
            assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
    finally:
        os.umask(mask)


def test_a_row_is_in_the_file_within_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COMMIT_S", 0.25)
    path = tmp_path / "ledger.db"
    with running_ledger(path) as ledger:
        until(lambda: path.exists() and ledger._file is not None)
        put_s = time.monotonic()
        ledger.put(row())
        until(lambda: ledger.state.rows == 1)
        assert time.monotonic() - put_s < 1.0


def test_the_thread_sleeps_while_no_request_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "UPKEEP_S", 60.0)
    looks: list[bool] = []
    work = Ledger._work
    monkeypatch.setattr(Ledger, "_work", lambda self, last: (looks.append(last), work(self, last)))
    with running_ledger(tmp_path / "ledger.db") as ledger:
        ledger.put(row())
        until(lambda: ledger.state.rows == 1)
        looks.clear()
        time.sleep(20 * module.COMMIT_S)
        assert len(looks) <= 1
        ledger.put(row(request_id="another"))
        until(lambda: ledger.state.rows == 2)


def test_putting_does_not_wait_for_the_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside, go_on = threading.Event(), threading.Event()
    insert = LedgerFile.insert

    def slow(self: LedgerFile, *values: Any) -> int:
        inside.set()
        assert go_on.wait(10)
        return insert(self, *values)

    monkeypatch.setattr(LedgerFile, "insert", slow)
    with running_ledger(tmp_path / "ledger.db") as ledger:
        ledger.put(row())
        assert inside.wait(10)
        begun_s = time.monotonic()
        for number in range(1000):
            ledger.put(row(request_id=f"r{number}"))
        assert ledger.month_of("ana").requests == 1001
        assert time.monotonic() - begun_s < 1.0
        go_on.set()
        until(lambda: ledger.state.rows == 1001)


def test_the_queue_is_bounded_and_what_is_lost_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_ROWS", 10)
    with running_ledger(tmp_path / "absent" / "ledger.db") as ledger:
        for number in range(14):
            ledger.put(row(request_id=f"r{number}"))
        until(lambda: ledger.state.error)
        assert (ledger.state.waiting, ledger.state.lost) == (10, 4)
        (tmp_path / "absent").mkdir()
        until(lambda: ledger.state.rows == 10 and not ledger.state.error)
        assert (ledger.state.waiting, ledger.state.lost, ledger.state.error) == (0, 4, "")
        assert ledger.month_of("ana").requests == 10, "the file and the memory agree"


def test_a_full_disk_keeps_rows_waiting_and_writes_them_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, log = tmp_path / "ledger.db", io.StringIO()
    allowed = full(monkeypatch, 40)
    monkeypatch.setattr(module, "KEPT_ROWS", 3000)
    monkeypatch.setattr(module, "BATCH_ROWS", 100)
    with running_ledger(path, log=log) as ledger:
        for number in range(2000):
            ledger.put(row(request_id=f"r{number}", at_s=NOW_S + number))
        until(lambda: ledger.state.error == "the disk is full")
        state = ledger.state
        assert 0 < state.rows < 2000
        assert (state.lost, state.rows + state.waiting) == (0, 2000)
        for number in range(2000, 6000):
            ledger.put(row(request_id=f"r{number}", at_s=NOW_S + number))
        assert ledger.state.lost == 6000 - state.rows - 3000
        allowed[0] = 100_000
        until(lambda: not ledger.state.waiting and not ledger.state.error)
        assert ledger.state.rows == state.rows + 3000
    assert len(rows_of(path)) == state.rows + 3000
    assert log.getvalue().count('"ledger.broken"') == 1, "said once, not every half second"
    assert log.getvalue().count('"ledger.mended"') == 1
    assert '"ledger.lost"' in log.getvalue()


def test_two_gateways_write_at_once_and_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with running_ledger(path) as old, running_ledger(path) as new:
        for number in range(500):
            old.put(row(request_id="same", at_s=NOW_S))
            new.put(row(request_id="same", at_s=NOW_S))
            old.put_event(event(f"e{number}"))
            new.put_event(event(f"e{number}"))
        until(lambda: not old.state.waiting and not new.state.waiting)
    assert len(rows_of(path)) == 1000, "a request id that a client repeats is no key"
    assert len(rows_of(path, table="events")) == 500


def test_a_gateway_begins_with_the_month_that_the_file_has(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with running_ledger(path) as ledger:
        ledger.put(row())
        ledger.put(row(at_s=NOW_S - 40 * DAY_S))
        ledger.put(row(seat="ben", prompt_tokens=None, cached_tokens=None, word="refused", completion_tokens=0))
    with running_ledger(path) as ledger:
        ledger.put(row())
        until(lambda: ledger.month_of("ben").requests == 1 and ledger.state.rows == 4)
        assert ledger.month_of("ana") == SeatMonth(2000, 1600, 100, 2)
        assert ledger.month_of("ben") == SeatMonth(0, 0, 0, 1)


def test_old_days_are_folded_in_the_background(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ledger.db"
    with running_ledger(path) as ledger:
        for day in range(60):
            ledger.put(row(at_s=NOW_S - 3600 - day * DAY_S))
    before = reading.months(path)
    with running_ledger(path, keep_days=10) as ledger:
        until(lambda: 0 < ledger.state.rows < 60)
        assert ledger.state.rows == 11, "today and ten whole days"
        oldest_s = ledger.state.oldest_s
        assert oldest_s is not None
        assert oldest_s >= (NOW_S // DAY_S - 10) * DAY_S, "whole days"
    totals = [(month, seat.completion_tokens, seat.requests) for month, seat in reading.months(path)]
    assert totals == [(month, seat.completion_tokens, seat.requests) for month, seat in before]


@pytest.mark.parametrize("what", ["fold", "shrink"])
def test_what_cannot_be_folded_is_no_row_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    path, log = tmp_path / "ledger.db", io.StringIO()
    with running_ledger(path) as ledger:
        ledger.put(row(at_s=NOW_S - 60 * DAY_S))
    ill = [True]
    real = getattr(LedgerFile, what)

    def failing(self: LedgerFile, *values: Any) -> Any:
        if ill[0]:
            raise sqlite3.OperationalError("no room")
        return real(self, *values)

    monkeypatch.setattr(LedgerFile, what, failing)
    monkeypatch.setattr(module, "UPKEEP_RETRY_S", 0.01)
    with running_ledger(path, keep_days=10, log=log) as ledger:
        until(lambda: ledger.state.upkeep_error == "no room")
        for number in range(5):
            ledger.put(row(at_s=NOW_S + number))
            until(lambda: not ledger.state.waiting)
            assert ledger.state.error == ""
        ill[0] = False
        until(lambda: ledger.state.upkeep_error == "" and ledger.state.rows == 5)
    assert log.getvalue().count('"ledger.upkeep"') == 1, "said once"
    assert '"ledger.broken"' not in log.getvalue()


def test_what_another_gateway_writes_is_counted_soon(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with running_ledger(path) as new:
        until(lambda: new.state.size_bytes)
        with running_ledger(path) as old:
            old.put(row())
            until(lambda: old.state.rows == 1)
            until(lambda: new.state.rows == 1 and new.month_of("ana").requests == 1)


def test_a_clock_that_goes_a_month_ahead_and_comes_back_takes_no_total_along(tmp_path: Path) -> None:
    now_s = [NOW_S]
    ledger = Ledger(tmp_path / "ledger.db", 0, logs.configure("gateway", io.StringIO()), now=lambda: now_s[0])
    ledger.start()
    try:
        ledger.put(row())
        until(lambda: ledger.state.rows == 1)
        now_s[0] += 40 * DAY_S
        ledger.put(row(at_s=now_s[0]))
        until(lambda: ledger.state.rows == 2)
        assert ledger.month_of("ana").requests == 1
        now_s[0] = NOW_S
        until(lambda: ledger.month_of("ana").requests == 1)
        ledger.put(row(at_s=NOW_S))
        until(lambda: ledger.month_of("ana").requests == 2)
    finally:
        ledger.close(10)


def test_how_busy_the_team_was_is_looked_at_without_stopping_the_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger.db"
    with running_ledger(path) as ledger:
        for number in range(3000):
            ledger.put(row(at_s=NOW_S - 5 * DAY_S + number * 100, queue_s=0.0))
    monkeypatch.setattr(module, "LOOK_ROWS", 1)
    inside, waits = threading.Event(), module.Ledger._write

    def written(self: module.Ledger, file: LedgerFile) -> None:
        waits(self, file)
        if threading.current_thread() is self._thread and self.state.rows > 3000:
            inside.set()

    monkeypatch.setattr(module.Ledger, "_write", written)
    with running_ledger(path) as ledger:
        until(lambda: ledger.state.rows == 3000)
        ledger.put(row(at_s=NOW_S))
        until(inside.is_set)
        assert ledger.state.busy is None, "the look goes on"
        monkeypatch.setattr(module, "LOOK_ROWS", 10_000)
        until(lambda: ledger.state.busy is not None)
        busy = ledger.state.busy
        assert busy is not None
        assert busy.requests >= 3000
