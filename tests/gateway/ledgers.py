"""For tests of the ledger: rows with little to say, and a ledger that writes at once."""

from __future__ import annotations

import contextlib
import io
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway import logs
from gateway.ledger import writing as module
from gateway.ledger.rows import Row
from gateway.ledger.writing import Ledger

NOW_S = 1_790_000_000.0
"""2026-09-21, in the middle of a month."""
DAY_S = 86400.0
_PLAIN = Row(
    at_s=NOW_S,
    request_id="r",
    seat="ana",
    route="/v1/chat/completions",
    word="ok",
    status=200,
    code="",
    queue_s=0.5,
    ttft_s=1.0,
    duration_s=10.0,
    prompt_tokens=1000,
    cached_tokens=800,
    completion_tokens=50,
    tok_per_s=40.0,
    estimated=False,
    stream=True,
    body_bytes=4000,
    run="run",
    turn=1,
    helper=False,
)


def row(**fields: Any) -> Row:
    """A served request of ana's, but for these fields."""
    values = {name: getattr(_PLAIN, name) for name in Row.__slots__} | fields
    return Row(**values)


def until(true: Callable[[], object], limit_s: float = 10.0) -> None:
    """Wait until the ledger's thread has made it so."""
    give_up_s = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < give_up_s, "it did not become so"
        time.sleep(0.002)


def rows_of(path: Path, what: str = "*", table: str = "requests") -> list[tuple[Any, ...]]:
    """What the file has, by arrival."""
    order = "at_us" if table != "months" else "month, seat"
    with contextlib.closing(sqlite3.connect(path)) as db:
        return db.execute(f"SELECT {what} FROM {table} ORDER BY {order}").fetchall()


@contextlib.contextmanager
def running_ledger(
    path: Path, keep_days: int = 0, now_s: float = NOW_S, log: io.StringIO | None = None
) -> Iterator[Ledger]:
    """A ledger whose clock stands; closed at the end."""
    ledger = Ledger(path, keep_days, logs.configure("gateway", log or io.StringIO()), now=lambda: now_s)
    ledger.start()
    try:
        yield ledger
    finally:
        ledger.close(10)
        assert not ledger._thread.is_alive()


def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits, tidies up, and tries after a failure, every few milliseconds."""
    monkeypatch.setattr(module, "COMMIT_S", 0.005)
    monkeypatch.setattr(module, "UPKEEP_S", 0.005)
    monkeypatch.setattr(module, "RETRY_MAX_S", 0.01)
