"""gateway.ledger.reading: sums, months, events and turns, read beside a writer or without one."""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gateway.errors import MoeError
from gateway.ledger import reading
from gateway.ledger.months import NOTHING, Month, Months
from gateway.ledger.rows import Row, SeatMonth, Served, Usage
from gateway.ledger.schema import values_of, values_of_event
from gateway.state import Event, Severity
from tests.gateway.ledgers import DAY_S, NOW_S, row
from tests.gateway.test_ledger_file import opened


def written(path: Path, rows: list[Row], events: list[Event] | None = None) -> Path:
    with opened(path) as file:
        file.insert([values_of(row, 1, n) for n, row in enumerate(rows)], [values_of_event(e) for e in events or ()])
    return path


def test_what_a_seat_used_is_summed_by_what_became_of_it(tmp_path: Path) -> None:
    path = written(
        tmp_path / "ledger.db",
        [
            row(),
            row(
                word="refused",
                status=429,
                ttft_s=None,
                queue_s=0.0,
                prompt_tokens=None,
                cached_tokens=None,
                completion_tokens=0,
            ),
            row(word="client_gone", completion_tokens=7, estimated=True, cached_tokens=None),
            row(word="engine_lost", completion_tokens=3, estimated=True, cached_tokens=0),
            row(seat="ben", at_s=NOW_S + 5),
        ],
    )
    ana, ben = reading.usage(path, 0, NOW_S + 10)
    assert (ana.seat, ana.requests, ana.served, ana.refused, ana.left, ana.failed) == ("ana", 4, 1, 1, 1, 1)
    assert (ana.prompt_tokens, ana.cached_tokens, ana.completion_tokens, ana.estimated) == (3000, 800, 60, 2)
    assert ana.hit_share == 0.4, "of the two requests where the engine told both"
    assert ben.requests == 1
    assert reading.usage(path, 0, NOW_S + 10, "ben") == [ben]
    assert reading.usage(path, 0, NOW_S + 5) == [ana], "the end is left out"
    rows, total = reading.usage_and_total(path, 0, NOW_S + 10)
    assert rows == (ana, ben)
    assert (total.seat, total.requests, total.completion_tokens) == ("", 5, 110)
    assert reading.usage(path, 0, 1) == []
    assert reading.usage_and_total(path, 0, 1)[1] == Usage("")


def test_percentiles_are_within_half_a_per_cent(tmp_path: Path) -> None:
    chance = random.Random(5)
    waits = [chance.choice([0.0, chance.expovariate(0.1)]) for _ in range(3000)]
    paces = [chance.uniform(20, 90) for _ in waits]
    path = written(
        tmp_path / "ledger.db",
        [
            row(at_s=NOW_S - n, queue_s=w, tok_per_s=p, ttft_s=w + 1)
            for n, (w, p) in enumerate(zip(waits, paces, strict=True))
        ],
    )
    [usage] = reading.usage(path, 0, NOW_S + 1)
    assert usage.wait_p95_s == pytest.approx(sorted(waits)[2849], rel=0.006)
    assert usage.tok_per_s_p50 == pytest.approx(statistics.median_low(paces), rel=0.006)
    assert usage.ttft_p50_s == pytest.approx(statistics.median_low(waits) + 1, rel=0.01)


def test_only_who_got_a_ticket_has_waited(tmp_path: Path) -> None:
    refused = row(word="refused", queue_s=0.0, ttft_s=None, tok_per_s=None)
    path = written(tmp_path / "ledger.db", [refused, refused])
    [usage] = reading.usage(path, 0, NOW_S + 1)
    assert (usage.wait_p50_s, usage.ttft_p50_s, usage.tok_per_s_p50, usage.hit_share) == (None, None, None, 0.8)


def test_turns_are_told_in_order_and_helpers_and_refusals_are_not(tmp_path: Path) -> None:
    rows = [
        row(at_s=NOW_S + 2, seat="ben", queue_s=3.0, duration_s=20.0),
        row(at_s=NOW_S, queue_s=0.0, word="client_gone", ttft_s=0.5),
        row(helper=True),
        row(word="refused", queue_s=0.0, ttft_s=None),
        row(at_s=NOW_S + 3, word="engine_lost", queue_s=1.0, ttft_s=None, duration_s=2.0),
    ]
    path = written(tmp_path / "ledger.db", rows)
    assert list(reading.intervals(path, NOW_S - 1, NOW_S + 10)) == [
        Served(NOW_S, 0.0, NOW_S + 10, "ana"),
        Served(NOW_S + 2, 3.0, NOW_S + 22, "ben"),
        Served(NOW_S + 3, 1.0, NOW_S + 5, "ana"),
    ]


def test_months_are_those_of_utc_and_of_arrival(tmp_path: Path) -> None:
    new_year_s = datetime(2027, 1, 1, tzinfo=UTC).timestamp()
    path = written(tmp_path / "ledger.db", [row(at_s=new_year_s - 0.001), row(at_s=new_year_s)])
    assert [(month, usage.requests) for month, usage in reading.months(path)] == [("2026-12", 1), ("2027-01", 1)]
    assert reading.months(path, "nobody") == []
    assert Month.of(new_year_s - 0.001).end_s == Month.of(new_year_s).start_s == new_year_s


def test_a_month_is_whole_also_when_its_first_days_are_folded(tmp_path: Path) -> None:
    """keep_days below 31."""
    month = Month.of(NOW_S)
    path = written(tmp_path / "ledger.db", [row(at_s=month.start_s + day * DAY_S) for day in range(-30, 20)])
    times = (month.start_s, NOW_S)
    before, other = reading.usage(path, *times), reading.usage(path, month.start_s + 10 * DAY_S, NOW_S)
    ages = reading.usage(path, -1e10, NOW_S), reading.usage(path, 0, NOW_S, "ana"), reading.usage(path, 0, NOW_S, "ben")
    assert before[0].requests == 20
    with opened(path) as file:
        file.fold(month.start_s + 10 * DAY_S)
        assert reading.usage(path, *times) == before
        assert reading.usage(path, month.start_s + 10 * DAY_S, NOW_S) == other, "what is folded came before it"
        assert reading.usage(path, month.start_s + 1, NOW_S)[0].requests == 10, "half a month is not known"
        assert reading.usage(path, month.start_s, month.start_s) == []
        while file.fold(NOW_S + DAY_S):
            pass
    assert reading.usage(path, *times)[0].completion_tokens == before[0].completion_tokens
    assert [usage.requests for [usage] in ages[:2]] == [50, 50]
    assert ages[2] == []
    assert reading.usage(path, 0, month.start_s)[0].requests == 30
    assert reading.usage_and_total(path, *times)[1].requests == 20


def test_hours_are_of_turns_that_got_a_ticket(tmp_path: Path) -> None:
    midnight_s = NOW_S // DAY_S * DAY_S
    rows = [row(at_s=midnight_s + hour * 3600) for hour in (0, 9, 9.99, 23.99, 33)]
    rows += [row(at_s=midnight_s, helper=True), row(at_s=midnight_s, word="refused", queue_s=0.0, ttft_s=None)]
    hours = reading.hours(written(tmp_path / "ledger.db", rows), 0, NOW_S + 2 * DAY_S)
    assert hours == tuple({0: 1, 9: 3, 23: 1}.get(hour, 0) for hour in range(24))


def test_the_month_in_memory_begins_anew_with_the_month() -> None:
    months = Months(Month.of(NOW_S))
    months.add(row())
    months.add(row(at_s=NOW_S - 40 * DAY_S))
    assert months.of("ana", NOW_S) == SeatMonth(1000, 800, 50, 1)
    later_s = NOW_S + 30 * DAY_S
    assert months.of("ana", later_s) == NOTHING
    months.add(row(at_s=later_s))
    months.add(row())
    assert months.of("ana", later_s).requests == 1, "a late one of the month before is left to the file"


def test_events_are_the_latest_oldest_first_and_kept_once(tmp_path: Path) -> None:
    made = [
        Event(id=f"e{n}", at_s=NOW_S + n, kind="k", severity=Severity.WARN, text="ü" * n, who="eve") for n in range(9)
    ]
    path = written(tmp_path / "ledger.db", [], [*made, *made])
    assert reading.events(path, NOW_S, 3) == made[-3:]
    assert reading.events(path, NOW_S + 6, 100) == made[7:]
    assert reading.events(path, 0, 0) == []


@pytest.mark.parametrize("content", [None, b"", b"no ledger" * 500])
def test_what_is_no_ledger_is_said_with_what_to_do(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "ledger.db"
    if content is not None:
        path.write_bytes(content)
    asks: tuple[Callable[[], object], ...] = (
        lambda: reading.usage(path, 0, 1),
        lambda: reading.months(path),
        lambda: reading.events(path, 0, 1),
        lambda: list(reading.intervals(path, 0, 1)),
    )
    for ask in asks:
        with pytest.raises(MoeError) as caught:
            ask()
        assert str(path) in caught.value.message
        assert caught.value.remedy


def test_a_damaged_page_is_found_by_the_check(tmp_path: Path) -> None:
    path = written(tmp_path / "ledger.db", [row(at_s=NOW_S + n) for n in range(3000)])
    reading.check(path)
    raw = bytearray(path.read_bytes())
    raw[4096 * 20 : 4096 * 21] = b"\xee" * 4096
    path.write_bytes(raw)
    with pytest.raises(MoeError):
        reading.check(path)


def test_it_is_read_while_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with opened(path) as file:
        file.insert([values_of(row(), 1, 1)], [])
        with file.transaction():
            [usage] = reading.usage(path, 0, NOW_S + 1)
        assert usage.requests == 1
        copied = tmp_path / "copy.db"
        reading.copy(path, copied)
        assert reading.usage(copied, 0, NOW_S + 1) == [usage]


@pytest.fixture
def short_tmp() -> Iterator[Path]:
    """A folder that others may enter."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


READ = """
import os, sys
from pathlib import Path
from gateway.ledger import reading
from gateway.errors import MoeError
os.setgid(65534), os.setuid(65534)
try:
    print(reading.usage(Path(sys.argv[1]), 0, 1e10)[0].requests)
except MoeError as error:
    print(error.message, error.remedy)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become somebody else")
def test_who_may_read_but_not_write_gets_the_whole_truth_or_an_error(short_tmp: Path) -> None:
    path = written(short_tmp / "ledger.db", [row()])
    path.chmod(0o644)

    def seen() -> str:
        done = subprocess.run([sys.executable, "-c", READ, str(path)], capture_output=True, text=True, timeout=30)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert seen() == "1\n", "stopped: nothing is beside the file"
    with opened(path) as file:
        file.insert([values_of(row(), 1, 2)], [])
        for beside in short_tmp.glob("ledger.db-*"):
            beside.chmod(0o600)
        assert "cannot be read" in seen(), "running: never the stale half"
