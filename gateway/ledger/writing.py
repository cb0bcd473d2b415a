"""Keeps a row of each request that is over, and makes no request wait for it. Touches a thread, a file, the clock.

The event loop puts rows into a queue in memory; one thread, which sleeps while there are none, writes them to the file,
all that came within COMMIT_S in one transaction. Every UPKEEP_S the same thread folds what is older than `keep_days`,
and every LOOK_S it looks how busy the team was; what fails of that is said apart, since rows are written all the same.

Rules:
- `put` and `put_event` do nothing but append: no file, no SQLite, no waiting for the thread.
- A row leaves the queue when it is committed. While the file cannot be written, KEPT_ROWS of them wait; those that
  come then are lost and counted. When there is room again, what waited is written.
- `months` counts what the file has and what waits for it, so that page and command line agree.
- A SIGKILL takes what came after the last commit: COMMIT_S and the time of one commit.
"""

from __future__ import annotations

import secrets
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

from gateway.errors import MoeError
from gateway.ledger.file import LedgerFile, aside_of, is_damage
from gateway.ledger.months import Month, Months
from gateway.ledger.reading import hours, intervals
from gateway.ledger.rows import LedgerState, Row, SeatMonth, Served
from gateway.ledger.schema import values_of, values_of_event
from gateway.logs import Log
from gateway.settings import LOOK_BACK_DAYS
from gateway.sizing.activity import day_offset_s, measure
from gateway.state import Event

NAME = "ledger.db"
COMMIT_S = 0.25
"""A busy interpreter or a slow disk may double it, and a SIGKILL must not take more than a second."""
KEPT_ROWS = 20_000
"""Rows that wait while the file cannot be written: about 10 MB, and half a day of a busy team."""
KEPT_EVENTS = 1000
BATCH_ROWS = 1000
RETRY_MAX_S = 5.0
UPKEEP_S = 2.0
"""Each time that the thread wakes takes 0.2 ms from the streams (measured)."""
UPKEEP_RETRY_S = 60.0
LOOK_S = 900.0
LOOK_ROWS = 50
"""Rows that a look takes in between two pauses, half a millisecond: it shares the interpreter with the streams."""
LOOK_PAUSE_S = 0.005
DAY_S = 86400.0
LOOK_BACK_S = LOOK_BACK_DAYS * DAY_S
_MENDED_BY_WAITING = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY)


class Ledger:
    """One per gateway. `put` and `put_event` from the event loop; `state` and `months` from anywhere.

    `keep_days`: whole days, UTC, that requests are kept before they are folded into months; 0 = for ever. `streams`:
    how many sequences may run at once, now.
    """

    def __init__(
        self,
        path: Path,
        keep_days: int,
        log: Log,
        streams: Callable[[], int] = lambda: 4,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.path = path
        self._keep_days = keep_days
        self._log = log
        self._streams = streams
        self._now = now
        self._start_id = secrets.randbits(63)
        self._seq = 0
        self._lock = threading.Lock()
        self._rows: deque[tuple[int, Row]] = deque()
        self._events: deque[Event] = deque(maxlen=KEPT_EVENTS)
        self._months = Months(Month.of(now()))
        self._state = LedgerState()
        self._lost = 0
        self._closing = threading.Event()
        self._wanted = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)
        self._file: LedgerFile | None = None
        self._ready = False
        self._look_at_s = 0.0
        self._upkeep_at_s = 0.0
        self._shrinks = False

    # From the event loop

    def start(self) -> None:
        """Start the thread. Once."""
        self._thread.start()

    def put(self, row: Row) -> None:
        """Keep a request. Never waits and never raises."""
        with self._lock:
            if len(self._rows) >= KEPT_ROWS:
                self._lost += 1
                return
            self._seq += 1
            self._rows.append((self._seq, row))
            self._months.add(row)
        self._wanted.set()

    def put_event(self, event: Event) -> None:
        """Keep an event. Never waits and never raises; of events that wait, the latest KEPT_EVENTS are kept."""
        with self._lock:
            self._events.append(event)
        self._wanted.set()

    @property
    def state(self) -> LedgerState:
        """How the ledger is now."""
        with self._lock:
            state = replace(self._state, lost=self._lost, waiting=len(self._rows))
        if state.error or self._thread.is_alive() or self._closing.is_set() or self._thread.ident is None:
            return state
        return replace(state, error="the thread that writes has ended; the gateway's log says why")

    def month_of(self, seat: str) -> SeatMonth:
        """What a seat used in this calendar month, UTC, without its budget; zeros until the file was read."""
        with self._lock:
            return self._months.of(seat, self._now())

    def close(self, timeout_s: float) -> None:
        """Write what waits and end the thread. Blocks for `timeout_s` at most; what is not written then is lost."""
        self._closing.set()
        self._wanted.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        if self._rows or self._lost:
            self._log.error("ledger.lost", rows=len(self._rows) + self._lost, error=self._state.error)

    # The thread

    def _run(self) -> None:
        pause_s = COMMIT_S
        while True:
            last = self._closing.is_set()
            self._wanted.clear()
            try:
                self._work(last)
                pause_s = COMMIT_S
            except (sqlite3.Error, OSError) as error:
                self._failed(error)
                pause_s = min(RETRY_MAX_S, 2 * pause_s)
            if last:
                break
            well, tidy = pause_s == COMMIT_S, self._upkeep_at_s > 0
            if not (well and tidy) or self._wanted.wait(UPKEEP_S):
                self._closing.wait(pause_s)
        self._let_go()

    def _work(self, last: bool) -> None:
        file = self._opened()
        self._write(file)
        self._mended()
        if not last and time.monotonic() >= self._upkeep_at_s:
            self._keep_up(file)

    def _opened(self) -> LedgerFile:
        if self._file is not None and not self._file.is_there:
            self._let_go()
        if self._file is None:
            self._file, self._ready = LedgerFile(self.path), False
        if not self._ready:
            self._file.prepare()
            self._read_sums(self._file)
            self._ready, self._look_at_s = True, time.monotonic()
        return self._file

    def _let_go(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, file: LedgerFile) -> None:
        """Everything that waits, in transactions of BATCH_ROWS."""
        while True:
            with self._lock:
                batch, events = list(islice(self._rows, BATCH_ROWS)), list(self._events)
            if not batch and not events:
                return
            rows = [values_of(row, self._start_id, seq) for seq, row in batch]
            new = file.insert(rows, [values_of_event(event) for event in events])
            with self._lock:
                for _ in batch:
                    self._rows.popleft()
                while self._events and events and self._events[0] is events[0]:
                    self._events.popleft()
                    events.pop(0)
                was = self._state
                oldest_s = min((row.at_s for _, row in batch), default=None) if was.oldest_s is None else was.oldest_s
                self._state = replace(was, rows=was.rows + new, size_bytes=file.size_bytes, oldest_s=oldest_s)

    def _keep_up(self, file: LedgerFile) -> None:
        """What no row waits for. A failure that is no damage is said, and what failed is tried again later."""
        failed = ""
        self._upkeep_at_s = time.monotonic() + UPKEEP_S
        try:
            if file.others_wrote() or self._months.month != Month.of(self._now()):  # the clock may have been set
                self._read_sums(file)
            if self._keep_days:
                self._fold(file)
            if time.monotonic() >= self._look_at_s:
                self._look(file)
        except (sqlite3.Error, OSError) as error:
            if isinstance(error, sqlite3.Error) and is_damage(error):
                raise
            failed = _said(error)
            self._upkeep_at_s = time.monotonic() + UPKEEP_RETRY_S
        with self._lock:
            was, self._state = self._state.upkeep_error, replace(self._state, upkeep_error=failed)
        if failed and failed != was:
            self._log.warning("ledger.upkeep", path=str(self.path), error=failed)

    def _fold(self, file: LedgerFile) -> None:
        """One small step; the next one after the next commit."""
        today = self._now() // DAY_S * DAY_S
        folded = file.fold(today - self._keep_days * DAY_S)
        self._shrinks = (folded > 0) or (self._shrinks and file.shrink())
        if self._shrinks:
            self._upkeep_at_s = 0.0
        if folded:
            oldest_s = file.oldest_s()
            with self._lock:
                self._state = replace(self._state, rows=self._state.rows - folded, oldest_s=oldest_s)

    def _look(self, file: LedgerFile) -> None:
        """What only a look at the whole file tells; another gateway may have written as well."""
        self._look_at_s = time.monotonic() + LOOK_S
        self._read_sums(file)
        until_s = self._now()
        since_s = until_s - LOOK_BACK_S
        try:
            offset_s = day_offset_s(hours(self.path, since_s, until_s))
            served = self._slowly(file, intervals(self.path, since_s, until_s))
            busy = measure(served, since_s, until_s, self._streams(), offset_s)
        except MoeError as error:
            if isinstance(error.__cause__, sqlite3.Error):
                raise error.__cause__ from None
            raise sqlite3.OperationalError(error.message) from error
        with self._lock:
            self._state = replace(self._state, busy=busy)

    def _slowly(self, file: LedgerFile, served: Iterator[Served]) -> Iterator[Served]:
        """The same with pauses, and with rows written meanwhile; cut short when the end has come."""
        written_s = time.monotonic()
        for number, request in enumerate(served, start=1):
            yield request
            if self._closing.wait(LOOK_PAUSE_S) if number % LOOK_ROWS == 0 else self._closing.is_set():
                return
            if time.monotonic() - written_s >= COMMIT_S:
                self._write(file)
                written_s = time.monotonic()

    def _read_sums(self, file: LedgerFile) -> None:
        rows, oldest_s, months, aside = file.count(), file.oldest_s(), file.months_at(self._now()), aside_of(self.path)
        with self._lock:
            waiting = list(self._rows)
        for _, row in waiting:  # only this thread takes rows out
            months.add(row)
        with self._lock:
            for _, row in islice(self._rows, len(waiting), None):
                months.add(row)
            self._months = months
            self._state = replace(
                self._state, rows=rows, oldest_s=oldest_s, size_bytes=file.size_bytes, aside=aside.name if aside else ""
            )

    def _failed(self, error: sqlite3.Error | OSError) -> None:
        said = _said(error)
        file = self._file
        if file is None or not isinstance(error, sqlite3.Error) or not is_damage(error):
            self._say(said)
            if getattr(error, "sqlite_errorcode", None) not in _MENDED_BY_WAITING:
                self._let_go()  # one that was opened for reading only stays so, whatever becomes of the file
            return
        self._file = None
        try:
            aside = file.set_aside()
        except OSError as refused:
            self._say(f"{said}, and it cannot be moved aside: {refused.strerror}")
            return
        if aside is not None:
            self._log.error("ledger.set_aside", path=str(self.path), aside=aside.name, error=said)

    def _say(self, error: str) -> None:
        with self._lock:
            told, self._state = self._state.error == error, replace(self._state, error=error)
        if not told:
            self._log.error("ledger.broken", path=str(self.path), error=error)

    def _mended(self) -> None:
        with self._lock:
            was, self._state = self._state.error, replace(self._state, error="")
        if was:
            self._log.info("ledger.mended", path=str(self.path), lost=self._lost)


def _said(error: sqlite3.Error | OSError) -> str:
    if _is_full(error):
        return "the disk is full"
    return (error.strerror if isinstance(error, OSError) else str(error)) or type(error).__name__


def _is_full(error: sqlite3.Error | OSError) -> bool:
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
    return error.errno in (28, 122)
