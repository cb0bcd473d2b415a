"""gateway.ledger.file: totals never change by folding, and what is written twice is there once."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.ledger import file as ledger_file
from gateway.ledger import reading
from gateway.ledger.file import LedgerFile, aside_of
from gateway.ledger.rows import Row
from gateway.ledger.schema import values_of, values_of_event
from gateway.state import Event, Severity
from tests.gateway.ledgers import DAY_S, NOW_S, row, rows_of


def opened(path: Path) -> contextlib.closing[LedgerFile]:
    file = LedgerFile(path)
    file.prepare()
    return contextlib.closing(file)


ODD_NUMBERS = st.one_of(st.none(), st.integers(-(2**80), 2**80))
ODD_FLOATS = st.one_of(st.none(), st.floats())
ODD_TEXT = st.text(st.characters(), max_size=300)
ROWS = st.builds(
    Row,
    at_s=st.floats(),
    request_id=ODD_TEXT,
    seat=ODD_TEXT,
    route=ODD_TEXT,
    word=ODD_TEXT,
    status=st.integers(-(2**70), 2**70),
    code=ODD_TEXT,
    queue_s=st.floats(),
    ttft_s=ODD_FLOATS,
    duration_s=st.floats(),
    prompt_tokens=ODD_NUMBERS,
    cached_tokens=ODD_NUMBERS,
    completion_tokens=st.integers(-(2**70), 2**70),
    tok_per_s=ODD_FLOATS,
    estimated=st.booleans(),
    stream=st.booleans(),
    body_bytes=st.integers(0, 2**70),
    run=ODD_TEXT,
    turn=ODD_NUMBERS,
    helper=st.booleans(),
)


@given(rows=st.lists(ROWS, min_size=1, max_size=5))
@settings(max_examples=60, deadline=None)
def test_no_row_keeps_the_others_from_being_written(rows: list[Row], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("ledger") / "ledger.db"
    with opened(path) as file:
        assert file.insert([values_of(odd, 1, n) for n, odd in enumerate(rows)], []) == len(rows)
        file.months_at(NOW_S)
        file.fold(1e12)
    reading.months(path)
    reading.usage(path, 0, 1e10)


REQUESTS = st.lists(
    st.builds(
        row,
        at_s=st.integers(0, 100).map(lambda day: NOW_S - day * DAY_S),
        seat=st.sampled_from(["ana", "ben", "cleo"]),
        word=st.sampled_from(["ok", "refused", "client_gone", "engine_lost"]),
        prompt_tokens=st.one_of(st.none(), st.integers(0, 10_000)),
        cached_tokens=st.one_of(st.none(), st.integers(0, 10_000)),
        completion_tokens=st.integers(0, 1000),
        estimated=st.booleans(),
    ),
    max_size=40,
)


@given(requests=REQUESTS, cuts=st.lists(st.integers(0, 100), max_size=4), size=st.integers(1, 50))
@settings(max_examples=40, deadline=None)
def test_folding_never_changes_a_total(
    requests: list[Row], cuts: list[int], size: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("ledger") / "ledger.db"
    with pytest.MonkeyPatch.context() as patch, opened(path) as file:
        patch.setattr(ledger_file, "FOLD_ROWS", size)
        file.insert([values_of(request, 1, n) for n, request in enumerate(requests)], [])
        before, month = reading.months(path), file.months_at(NOW_S)
        assert sum(usage.requests for _, usage in before) == len(requests)
        for cut in cuts:
            while file.fold(NOW_S - cut * DAY_S):
                assert reading.months(path) == before, "in the middle of it too"
            while file.shrink():
                pass
            assert file.months_at(NOW_S) == month


def test_events_are_kept_as_long_as_requests(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    old, new = (Event(id=f"{at_s}", at_s=at_s, kind="k", severity=Severity.INFO, text="t") for at_s in (10.0, NOW_S))
    with opened(path) as file:
        file.insert([values_of(row(at_s=10.0), 1, 1)], [values_of_event(event) for event in (old, new)])
        assert file.fold(NOW_S - DAY_S) == 1
    assert reading.events(path, 0, 10) == [new]


def test_a_batch_that_is_written_again_after_an_unclear_end_is_there_once(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    batch = [values_of(row(request_id=f"r{n}"), 7, n) for n in range(10)]
    with opened(path) as file:
        assert file.insert(batch, []) == 10
        assert file.insert(batch, []) == 0
    assert len(rows_of(path)) == 10


def test_what_raised_in_the_middle_has_left_nothing(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with opened(path) as file:
        broken: Any = [(1,)]
        with pytest.raises(sqlite3.IntegrityError):
            file.insert([values_of(row(), 1, 1)], broken)
        assert rows_of(path) == []
        assert file.insert([values_of(row(), 1, 1)], []) == 1


def test_pages_that_are_free_go_back_to_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with opened(path) as file:
        file.insert([values_of(row(at_s=NOW_S - 100 * DAY_S), 1, n) for n in range(20_000)], [])
    full_bytes = path.stat().st_size
    with opened(path) as file:
        while file.fold(NOW_S - 10 * DAY_S):
            pass
        while file.shrink():
            pass
    assert path.stat().st_size < full_bytes / 20
    assert reading.months(path)[0][1].requests == 20_000


def test_a_broken_file_is_moved_only_by_who_holds_the_lock_and_only_while_it_is_there(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    path.write_bytes(b"broken")
    mine, other = LedgerFile(path), LedgerFile(path)
    with ledger_file._alone(path), pytest.raises(BlockingIOError):
        mine.set_aside()
    assert path.exists()
    moved = mine.set_aside()
    assert moved is not None
    assert moved.read_bytes() == b"broken"
    with opened(path):
        assert other.set_aside() is None, "what lies there now is another file"
    assert path.exists()


def test_the_log_of_writes_goes_with_the_broken_file(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    path.write_bytes(b"broken")
    broken = LedgerFile(path)
    path.with_name("ledger.db-wal").write_bytes(b"of the broken one")
    moved = broken.set_aside()
    assert moved is not None
    assert moved.with_name(moved.name + "-wal").read_bytes() == b"of the broken one"
    assert {found.name for found in tmp_path.iterdir()} == {moved.name, f"{moved.name}-wal", "ledger.db.lock"}


@pytest.mark.parametrize(
    ("code", "damage"),
    [("CORRUPT", True), ("CORRUPT_INDEX", True), ("NOTADB", True), ("FULL", False), ("IOERR", False)],
)
def test_damage_is_what_no_waiting_mends(code: str, damage: bool) -> None:
    error = sqlite3.DatabaseError(code)
    assert not ledger_file.is_damage(error), "nothing is known of it"
    error.sqlite_errorcode = getattr(sqlite3, f"SQLITE_{code}")
    assert ledger_file.is_damage(error) is damage


def test_a_commit_waits_for_no_disk_and_no_power_cut_breaks_the_file(tmp_path: Path) -> None:
    with opened(tmp_path / "ledger.db") as file:
        told = {name: file._db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("synchronous", "journal_mode")}
    assert told == {"synchronous": 1, "journal_mode": "wal"}


def test_a_disk_that_breaks_each_file_does_not_fill_up_as_well(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    sizes = [5000, 10, 3000, 20, 30]
    for size in sizes:
        path.write_bytes(b"x" * size)
        LedgerFile(path).set_aside()
    kept = sorted(found.stat().st_size for found in tmp_path.glob("*.broken-*"))
    assert kept == [30, 3000, 5000]
    latest = aside_of(path)
    assert latest is not None
    assert latest.stat().st_size == 30
