"""gateway.observe: what a running gateway tells of its cold lane, its line, its cache and its last minutes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import httpx
import pytest

from gateway import observe
from gateway.history import GAP_S
from gateway.observe import note_history, snapshot
from gateway.status.compose import view
from gateway.status.views import StatusView
from tests.gateway.forms import CHAT
from tests.gateway.running import ADMIN_TOKEN, Running, key_of, running
from tests.gateway.wire import call
from tests.status_sample import finding

pytestmark = pytest.mark.anyio


def words(seed: int, count: int) -> str:
    """A prompt of about `count` tokens that shares nothing with another seed's."""
    chance = random.Random(seed)
    return " ".join(f"{chance.randrange(10**6):06d}" for _ in range(count))


def look(gateway: Running) -> StatusView:
    """The status as the page has it."""
    return view(gateway.core.box, snapshot(gateway.core), gateway.core.now())


def _here(gateway: Running, number: int) -> bool:
    return len(gateway.core.care.running) + len(gateway.core.limiter.view().waiting) == number


@asynccontextmanager
async def one_is_read_and_one_waits() -> AsyncIterator[Running]:
    """a's long prompt is being read for some seconds; b's waits for that."""
    async with running({"time_scale": 5.0}) as gateway:
        calls = []
        for number, seat in enumerate(("a", "b"), start=1):
            text = words(number, 40_000)
            calls.append(asyncio.create_task(call(gateway, CHAT, text, seat=seat, stream=True, max_tokens=2)))
            await gateway.until(partial(_here, gateway, number))
        yield gateway
        for task in calls:
            task.cancel()
        await asyncio.gather(*calls, return_exceptions=True)


async def test_the_lane_and_the_line_are_told_as_they_are() -> None:
    async with one_is_read_and_one_waits() as gateway:
        found = look(gateway)
        assert found.cold is not None
        assert (found.cold.state, found.cold.reading_seat, found.cold.next_seat) == ("reading", "a", "b")
        assert found.cold.reading_tokens.value is not None
        assert found.cold.reading_tokens.value > 12_000
        (row,) = found.queue.rows
        assert (row.seat, row.kind) == ("b", "reading")
        assert "prompt of a is being read" in row.why
        assert "prompt of another seat is being read" in row.why_said
        assert found.verdict.rule == 17
        assert found.speed is not None
        assert (found.speed.cap.now, found.speed.cap.validated) == (4, 4)
        assert found.cache is not None
        assert found.cache.held.value


async def test_nobody_is_told_when_it_goes_on_while_the_operator_holds_the_line() -> None:
    async with one_is_read_and_one_waits() as gateway:
        assert snapshot(gateway.core).waiting[0].predicted_s is not None
        gateway.core.limiter.hold(True)
        (held,) = snapshot(gateway.core).waiting
        assert (held.predicted_s, held.why) == (None, "held")


async def test_looks_add_up_to_seconds_of_reading_and_of_waiting() -> None:
    async with one_is_read_and_one_waits() as gateway:
        note_history(gateway.core)
        await asyncio.sleep(0.02)
        note_history(gateway.core)
        found = snapshot(gateway.core).history
        assert found is not None
        assert found.reading_share[-1] is not None
        assert 0.01 < found.reading_s <= GAP_S
        assert found.closed_s == 0
        assert found.waited_s == {"reading": found.reading_s}


async def test_page_status_and_metrics_of_one_gateway_say_the_same() -> None:
    async with (
        one_is_read_and_one_waits() as gateway,
        httpx.AsyncClient(base_url=gateway.base_url) as client,
    ):
        admin = {"authorization": f"Bearer {ADMIN_TOKEN}"}
        told = (await client.get("/admin/status.json", headers=admin)).json()
        metrics = (await client.get("/metrics", headers=admin)).text
        own = (await client.get("/seat/status.json", headers={"authorization": f"Bearer {key_of('b')}"})).json()
        assert told["cold"]["state"] == "reading"
        assert 'moe_cold_lane_state{state="reading"} 1.0' in metrics
        assert 'moe_queue_waiting{reason="reading"} 1.0' in metrics
        assert own["queue"][0]["why"] == own["queue"][0]["why_said"]
        assert "cold" not in own


async def test_expected_and_real_hits_of_a_seat_come_from_the_same_requests() -> None:
    async with running() as gateway:
        text = words(3, 4_000)
        for _ in range(2):
            assert (await call(gateway, CHAT, text, stream=True, max_tokens=2)).status == 200
        await gateway.idle()
        row = next(row for row in look(gateway).seats if row.name == "a")
        assert row.expected_share.value == pytest.approx(0.5, abs=0.05)
        assert row.hit_share.value == pytest.approx(0.5, abs=0.05)
        assert row.expected_tokens.value == pytest.approx(row.cached_tokens.value, rel=0.05)


async def test_what_was_expected_is_not_what_was_found() -> None:
    async with running() as gateway:
        assert (await call(gateway, CHAT, words(3, 4_000), stream=True, max_tokens=2)).status == 200
        await gateway.idle()
        hits = gateway.core.care.index.hits["a"]
        hits.expected_tokens, hits.cached_tokens, hits.prompt_tokens = 60, 20, 100
        row = next(row for row in look(gateway).seats if row.name == "a")
        assert row.expected_share.value == pytest.approx(0.6)


async def test_what_guard_watch_and_prewarm_found_is_among_the_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observe, "watch_findings", lambda rows: (finding("prefix.unstable"),))
    async with running() as gateway:
        assert "prefix.unstable" in [row.id for row in look(gateway).findings]
