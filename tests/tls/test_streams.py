"""A stream through each proxy: the same bytes, at the same time, heartbeats too, also across a reload."""

from __future__ import annotations

import asyncio
import os
import re
import statistics
import time
from functools import partial
from typing import Any

import pytest

from tests.fake_engine.stats import Stats
from tests.gateway.wire import Wire
from tests.tls.conftest import Front, Fronted, ask, fronted_by
from tests.tls.forms import EVERY_FORM, SERVED, Form, without_chance
from tests.tls.proxies import Certificate, haproxy

pytestmark = pytest.mark.anyio

STREAMS = 4
CHUNKS = int(os.environ.get("MOE_TLS_CHUNKS", "20"))
STEADY = {"time_scale": 1.0, "ms_per_token": (12.0,) * 8, "reply_tokens": CHUNKS, "cache_tokens": 0}
"""A chunk every 12 ms in each stream, as many streams as there are. MOE_TLS_CHUNKS=200 gives better figures."""
MEDIAN_ADDED_S = 0.03
MOST_ADDED_S = 0.1
"""What the assertions allow on a loaded machine of two cores; HAProxy's default adds 0.1 to 0.2 to every chunk."""


@pytest.fixture
def sent_at(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[float]]:
    """By request id: when the engine sent each token."""
    times: dict[str, list[float]] = {}
    sent = Stats.sent

    def noted(self: Stats, record: Any, tokens: int, now: float) -> None:
        times.setdefault(record.id, []).extend([time.monotonic()] * tokens)
        sent(self, record, tokens, now)

    monkeypatch.setattr(Stats, "sent", noted)
    return times


async def pieces(wire: Wire) -> list[tuple[float, bytes]]:
    """The chunks of a whole stream with the times at which they came."""
    status, _ = await wire.head()
    assert status == 200
    found: list[tuple[float, bytes]] = []
    while data := await wire.chunk():
        found.append((time.monotonic(), data))
    assert data == b"", "the stream was not whole"
    return found


def arrivals(form: Form, found: list[tuple[float, bytes]]) -> list[float]:
    """When each text of the answer was whole at the client."""
    times: list[float] = []
    body = b""
    for at_s, data in found:
        body += data
        times += [at_s] * (form.texts(body) - len(times))
    return times


async def delays_s(front: Front, form: Form, sent_at: dict[str, list[float]], *, direct: bool) -> list[float]:
    """From the engine's send to the client's receipt, of every chunk of some streams at once."""

    async def one(number: int) -> list[float]:
        id = f"{'direct' if direct else 'proxy'}-{number}"
        data = ask(form, "abcd"[number], {"X-Request-Id": id}, tokens=CHUNKS)
        async with front.connect(data, direct=direct) as wire:
            came = arrivals(form, await pieces(wire))
        assert len(came) == len(sent_at[id]) == CHUNKS
        return [there - here for here, there in zip(sent_at[id], came, strict=True)]

    return [delay for some in await asyncio.gather(*map(one, range(STREAMS))) for delay in some]


def figures(delays: list[float]) -> tuple[float, float, float]:
    """Median, and the 95th and 99th percentile."""
    of_100 = statistics.quantiles(delays, n=100)
    return statistics.median(delays), of_100[94], of_100[98]


def said(values: tuple[float, ...]) -> str:
    return " ".join(f"{1000 * value:.2f}" for value in values)


@EVERY_FORM
async def test_no_delay_is_added_to_a_chunk(fronted: Fronted, form: Form, sent_at: dict[str, list[float]]) -> None:
    async with fronted(STEADY, streams=2 * STREAMS) as front:
        both = (delays_s(front, form, sent_at, direct=direct) for direct in (True, False))
        direct, through = map(figures, await asyncio.gather(*both))
    print("MEASURED", front.proxy.name, form.path, f"chunk delay ms: direct {said(direct)}, through {said(through)}")
    assert through[0] - direct[0] < MEDIAN_ADDED_S
    assert through[1] - direct[1] < MOST_ADDED_S


async def test_such_a_delay_is_seen_where_haproxy_adds_it(
    certificate: Certificate, sent_at: dict[str, list[float]]
) -> None:
    """Without the option and without TLS, as somebody may set it up for a network of his own."""

    def spoilt(text: str) -> str:
        plain, tls = re.subn(r"(?m)^( +bind \S+) ssl .*$", r"\1", text)
        plain, options = re.subn(r"(?m)^ +option http-no-delay\n", "", plain)
        assert (tls, options) == (1, 1)
        return plain

    start = partial(haproxy, change=spoilt)
    async with fronted_by(start, certificate, tls=False)(STEADY) as front:
        found = figures(await delays_s(front, SERVED[0], sent_at, direct=False))
    print(f"MEASURED plain haproxy without http-no-delay, chunk delay ms: {said(found)}")
    assert found[0] > 2 * MEDIAN_ADDED_S
    assert found[1] > 1.5 * MOST_ADDED_S


@EVERY_FORM
async def test_a_stream_is_whole_and_the_same_as_without_the_proxy(
    fronted: Fronted, form: Form, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fronted({"cache_tokens": 0}) as front:
        now_s = time.time()
        monkeypatch.setattr(time, "time", lambda: now_s)  # it stands in the events
        data = ask(form, headers={"X-Request-Id": "same"})
        direct = await front.exchange(data, direct=True)
        through = await front.exchange(data)
    assert direct.whole
    assert through.whole
    assert form.texts(direct.body) > 20
    assert without_chance(through.body) == without_chance(direct.body)
    for name in ("content-type", "cache-control", "x-request-id", "x-moe-queue-position"):
        assert through.headers[name] == direct.headers[name]


@EVERY_FORM
async def test_heartbeats_come_on_time_while_it_waits(fronted: Fronted, form: Form) -> None:
    every_s = 0.1
    limits = {"early_response_s": every_s, "heartbeat_s": every_s}
    async with fronted({"silent_s": 30.0}, streams=1, limits=limits) as front, front.connect(ask(form, "b")):
        await front.gateway.until(lambda: front.gateway.engine.stats.running == 1)
        async with front.connect(ask(form)) as waiting:
            last_s = time.monotonic()
            await waiting.head()
            beats = 0
            while beats < 3:
                beat = await waiting.chunk()
                gap_s, last_s = time.monotonic() - last_s, time.monotonic()
                assert beat
                assert form.texts(beat) == 0
                assert gap_s < every_s + 0.15
                beats += gap_s > every_s / 2  # an opening may come as a chunk of its own


async def test_a_reload_lets_running_streams_end(fronted: Fronted) -> None:
    form = SERVED[0]
    knobs = {"time_scale": 1.0, "ms_per_token": (20.0,), "reply_tokens": 40}
    async with fronted(knobs) as front, front.connect(ask(form, tokens=40)) as running:
        status, headers = await running.head()
        assert status == 200
        first = await running.chunk()
        front.proxy.reload()
        await asyncio.sleep(0.2)
        another = await front.exchange(ask(form, "b", tokens=1))
        assert another.whole
        assert front.gateway.engine.stats.running == 1, "the reload took longer than the stream"
        rest, whole = await running.rest(headers)
    assert first
    assert whole
    assert form.texts(first + rest) == 40
