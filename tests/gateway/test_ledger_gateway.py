"""The ledger behind a gateway: a row of each request of a seat, on every route, and no request that minds."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.ledger import reading
from gateway.ledger import writing as module
from gateway.ledger.file import LedgerFile
from gateway.ledger.rows import LedgerState, SeatMonth
from gateway.ledger.view import begun, found, month_of
from gateway.ledger.writing import Ledger
from gateway.observe import snapshot
from gateway.settings import LedgerSettings
from gateway.state import Severity
from gateway.status.compose import view
from tests.gateway import forms
from tests.gateway.forms import ROUTES, STREAM_OR_NOT
from tests.gateway.ledgers import hurried, rows_of
from tests.gateway.running import Running, key_of, running
from tests.gateway.wire import ask, exchange, post

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    hurried(monkeypatch)


@asynccontextmanager
async def kept(knobs: dict[str, object] | None = None, **overrides: Any) -> AsyncIterator[tuple[Running, Ledger]]:
    """A gateway with a ledger."""
    async with running(knobs, **overrides) as gateway, begun(gateway.core):
        assert gateway.core.ledger is not None
        yield gateway, gateway.core.ledger


async def settled(gateway: Running, ledger: Ledger, rows: int) -> list[tuple[Any, ...]]:
    await gateway.idle()
    await gateway.until(lambda: ledger.state.rows == rows and not ledger.state.waiting)
    return rows_of(ledger.path, "seat, route, word, status, code, prompt_tokens, completion_tokens, estimated, stream")


@ROUTES
@STREAM_OR_NOT
async def test_a_served_request_is_one_row_with_the_engine_s_own_figures(path: str, stream: bool) -> None:
    async with kept() as (gateway, ledger):
        answer = await exchange(gateway, post(ask(path, stream=stream, max_tokens=5), path=path))
        assert forms.whole(path, answer) if stream else answer.status == 200
        [row] = await settled(gateway, ledger, 1)
        [record] = gateway.engine.stats.log
        assert row == ("a", path, "ok", 200, "", record.prompt_tokens, record.tokens, 0, int(stream))
        [line] = gateway.done()
        assert rows_of(ledger.path, "request_id") == [(line["request_id"],)]


@ROUTES
async def test_refused_requests_of_a_seat_are_kept_and_strangers_are_not(path: str) -> None:
    async with kept() as (gateway, ledger):
        await exchange(gateway, post(b"{", path=path))
        await exchange(gateway, post(ask(path, model="nobody"), path=path))
        await exchange(gateway, post(ask(path), path=path, seat="nobody"))
        rows = await settled(gateway, ledger, 2)
        assert sorted((row[0], row[2], row[3]) for row in rows) == [("a", "refused", 400), ("a", "refused", 404)]
        assert all(row[6:8] == (0, 0) for row in rows), "nothing is estimated where nothing was made"


async def test_counting_tokens_is_no_row() -> None:
    async with kept() as (gateway, ledger):
        await exchange(gateway, post(ask("/v1/messages"), path="/v1/messages/count_tokens"))
        await exchange(gateway, post(ask("/v1/messages", max_tokens=2), path="/v1/messages"))
        assert len(await settled(gateway, ledger, 1)) == 1


async def test_no_text_of_a_prompt_or_an_answer_is_in_the_file() -> None:
    async with kept({"reply_text": "tellnobody tellnobody"}) as (gateway, ledger):
        body = ask(
            "/v1/chat/completions", messages=[{"role": "user", "content": "psst-secret-prompt"}], user="psst-user"
        )
        await exchange(gateway, post(body))
        await settled(gateway, ledger, 1)
        raw = b"".join(path.read_bytes() for path in ledger.path.parent.glob("ledger.db*"))
        for word in (b"psst", b"tellnobody", key_of("a").encode()):
            assert word not in raw


async def test_a_full_disk_loses_rows_counted_and_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_ROWS", 5)
    prepare, insert = LedgerFile.prepare, LedgerFile.insert
    room = [False]

    def small(self: LedgerFile) -> None:
        prepare(self)
        self._db.execute("PRAGMA max_page_count = 1")  # as it is, and no more

    def bounded(self: LedgerFile, *values: Any) -> int:
        if room[0]:
            self._db.execute("PRAGMA max_page_count = 10000")
        rows = [(*row[:3], "x" * 3000, *row[4:]) for row in values[0]]  # more than a page has left
        return insert(self, rows, values[1])

    monkeypatch.setattr(LedgerFile, "prepare", small)
    monkeypatch.setattr(LedgerFile, "insert", bounded)
    async with kept() as (gateway, ledger):
        for _ in range(9):
            answer = await exchange(gateway, post(ask("/v1/chat/completions", max_tokens=2)))
            assert answer.status == 200
        await gateway.idle()
        await gateway.until(lambda: ledger.state.error == "the disk is full")
        kept_rows = ledger.state.rows
        assert (ledger.state.waiting, ledger.state.lost) == (5, 9 - 5 - kept_rows)
        ids = [row.id for row in view(gateway.core.box, snapshot(gateway.core), gateway.core.now()).findings]
        assert "ledger.broken" in ids
        room[0] = True
        await gateway.until(lambda: ledger.state.rows == kept_rows + 5 and not ledger.state.error)
        shown = {row.id: row for row in view(gateway.core.box, snapshot(gateway.core), gateway.core.now()).findings}
        assert "ledger.broken" not in shown
        assert shown["ledger.lost"].title == f"{4 - kept_rows} requests are missing from the ledger"


async def test_a_drain_writes_the_last_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COMMIT_S", 60.0)
    async with running() as gateway:
        async with begun(gateway.core):
            ledger = gateway.core.ledger
            assert ledger is not None
            await exchange(gateway, post(ask("/v1/chat/completions", max_tokens=2)))
            await gateway.idle()
        assert len(rows_of(ledger.path)) == 1


async def test_events_are_kept_also_those_from_before_the_ledger_began() -> None:
    async with running() as gateway:
        gateway.core.events.note("operator.mode", Severity.INFO, "before")
        async with begun(gateway.core):
            gateway.core.events.note("operator.mode", Severity.INFO, "after", "eve")
        kept_events = reading.events(gateway.core.settings.state_dir / module.NAME, 0, 10)
        assert [event.text for event in kept_events][-2:] == ["before", "after"]


async def test_without_a_ledger_everything_else_is_as_ever() -> None:
    async with running(ledger=LedgerSettings(enabled=False)) as gateway, begun(gateway.core):
        assert gateway.core.ledger is None
        assert (await exchange(gateway, post(ask("/v1/chat/completions", max_tokens=2)))).status == 200
        shown = snapshot(gateway.core)
        assert shown.ledger is None
        assert shown.seats[0].month_tokens is None
        assert month_of(gateway.core, "a", 5) is None


async def test_the_page_tells_what_a_seat_used_this_month_beside_its_budget() -> None:
    async with kept() as (gateway, ledger):
        text = gateway.seats_file.read_text().replace("[seats.a]\n", "[seats.a]\ntokens_per_month = 3\n")
        gateway.write_seats(text)
        await exchange(gateway, post(ask("/v1/chat/completions", max_tokens=5)))
        await settled(gateway, ledger, 1)
        shown = {seat.name: seat for seat in snapshot(gateway.core).seats}
        [usage] = reading.usage(ledger.path, 0, gateway.core.now() + 1)
        counted = usage.prompt_tokens - usage.cached_tokens + usage.completion_tokens
        assert (shown["a"].month_tokens, shown["a"].budget_tokens, shown["a"].over_budget) == (counted, 3, True)
        assert (shown["b"].month_tokens, shown["b"].budget_tokens, shown["b"].over_budget) == (0, None, False)
        assert shown["a"].model_dump() != shown["b"].model_dump()
        state = snapshot(gateway.core).ledger
        assert state is not None
        assert state.rows == 1


def test_a_budget_is_of_output_and_uncached_prompt_tokens() -> None:
    assert not SeatMonth(1000, 900, 50, 1, budget_tokens=150).over
    assert SeatMonth(1000, 900, 51, 1, budget_tokens=150).over
    assert not SeatMonth(10**9, 0, 10**9, 1).over


def test_findings_name_the_file_and_a_command() -> None:
    state = LedgerState(lost=1, error="the disk is full", waiting=2, aside="ledger.db.broken-x")
    broken, lost, damaged = found(state, "/var/lib/moe-appliance/ledger.db")
    assert (
        broken.observed == "/var/lib/moe-appliance/ledger.db: the disk is full; 2 requests wait in memory to be written"
    )
    assert lost.title == "1 request is missing from the ledger"
    assert lost.depends_on == "ledger.broken"
    assert "rm /var/lib/moe-appliance/ledger.db.broken-x*" in damaged.remedy
    assert all(finding.remedy and finding.severity is Severity.WARN for finding in (broken, lost, damaged))
    assert found(LedgerState(), "x") == ()


def test_what_cannot_be_tidied_is_a_finding_of_its_own() -> None:
    [untidy] = found(LedgerState(upkeep_error="the disk is full"), "/x/ledger.db")
    assert (untidy.id, untidy.severity) == ("ledger.upkeep", Severity.WARN)
    assert "the disk is full" in untidy.observed
    both = found(LedgerState(error="the disk is full", upkeep_error="the disk is full"), "/x/ledger.db")
    assert [finding.id for finding in both] == ["ledger.broken"], "one cause is said once"


async def test_the_loop_never_waits_for_a_disk_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stuck = threading.Event()

    def hangs(self: LedgerFile, *values: Any) -> int:
        stuck.wait(20)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(LedgerFile, "insert", hangs)
    async with running() as gateway, begun(gateway.core):
        async with asyncio.timeout(10):
            for _ in range(5):
                assert (await exchange(gateway, post(ask("/v1/chat/completions", max_tokens=2)))).status == 200
            assert snapshot(gateway.core).ledger is not None
        stuck.set()
