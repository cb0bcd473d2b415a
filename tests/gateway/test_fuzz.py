"""Thousands of requests, whole and broken, on sockets, in front of engines that are well and that are not: nothing is
a 500, nothing hangs, every no is in the route's own shape, and nothing is left behind.

Another set of cases: FUZZ_SEED=7; more of them: FUZZ_CASES=100000.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gateway.counting import PLACES
from tests.fake_engine.knobs import Knobs, merged
from tests.gateway import forms
from tests.gateway.forms import MESSAGES, PATHS, RESPONSES
from tests.gateway.fuzzing import COUNTS, SLOW, Case, fuzz
from tests.gateway.running import FAST, Running, running
from tests.gateway.wire import Answer, Wire, connect

pytestmark = pytest.mark.anyio

SEED = int(os.environ.get("FUZZ_SEED", "20261129"))
CASES = int(os.environ.get("FUZZ_CASES", "5000"))
LANES = 3
BATCH = 70
LIMIT_S = 20.0
"""What takes longer hangs: the queue gives up after 60 s."""
WINDOW = 4000
BODY_MAX = 64 * 1024
HEALTHY: dict[str, Any] = FAST | {"context_tokens": WINDOW, "reply_tokens": 6, "only_marker": SLOW}
TOOL_RULE = json.dumps({"name": "f", "any": True, "arguments": {"x": "y"}})
MODES: tuple[dict[str, Any], ...] = (
    *({} for _ in range(4)),
    {"early_events": False, "headers_delay": True, "bare_events": True},
    {"tool_rules": [TOOL_RULE], "tokens_per_chunk": 3},
    {"style": "vllm", "continues": False},
    {"images": True, "style": "vllm"},
)
"""Engines that are well."""
FAULTS: tuple[dict[str, Any], ...] = (
    *({"reject_status": status} for status in (400, 401, 404, 429, 500, 503)),
    {"error_in_stream": 0, "error_then_done": True},
    {"error_in_stream": 2, "responses_error_event": True},
    {"truncate_after": 0},
    {"truncate_after": 3},
    {"cut_after": 0, "cut_rst": True},
    {"cut_after": 2},
    {"dialects": ["/v1/completions"], "counts": []},
    {"hang_counts": True},
)
"""Engines that are not; each hits every request."""
SLOW_FAULTS: tuple[dict[str, Any], ...] = ({"hang": True}, {"stall_after": 1}, {"silent_s": 0.1}, {})
"""These hit requests with the marker alone."""


async def answered(gateway: Running, case: Case) -> Answer | None:
    """What the client gets; None when it left, or when an odd head got a closed connection for an answer."""
    async with asyncio.timeout(LIMIT_S), connect(gateway) as client:
        client.writer.write(case.request)
        if case.leaves_s is not None:
            await asyncio.sleep(case.leaves_s)
            if case.half:
                client.writer.write_eof()
                with contextlib.suppress(ConnectionError):
                    await client.reader.read()
            return None
        try:
            return await _read(client, case)
        except asyncio.IncompleteReadError:
            assert case.odd_head, "closed without an answer"
            return None


async def _read(client: Wire, case: Case) -> Answer:
    status, headers = await client.head()
    while status < 200:  # 100 Continue
        status, headers = await client.head()
    if case.method == "HEAD" or status in (204, 304):
        return Answer(status, headers, b"", True)
    if "content-length" in headers or "transfer-encoding" in headers:
        body, whole = await client.rest(headers)
    else:  # to an HTTP/1.0 client: the end of the connection is the end of the body
        with contextlib.suppress(ConnectionError):
            body = await client.reader.read()
        whole = True
    return Answer(status, headers, body, whole)


def judge(case: Case, answer: Answer, knobs: Knobs) -> None:
    """Whether an answer is one that the route may give."""
    engine_fails = knobs.reject_status == 500 or knobs.error_in_stream is not None
    assert answer.status != 500 or engine_fails, "the gateway failed"
    kind = answer.headers.get("content-type", "")
    if case.method == "HEAD" or not answer.body:
        assert answer.status < 500 or case.method == "HEAD"
        return
    if kind.startswith("text/plain"):
        assert case.odd_head or case.path not in PATHS
        assert answer.status < 500
    elif case.path in PATHS and answer.status == 200:
        _judge_reply(case, answer)
    elif case.path in COUNTS.values() and answer.status == 200:
        assert answer.json()["input_tokens"] > 0
    elif answer.status >= 400:
        known = case.path in (*PATHS, *COUNTS.values())
        anthropic = not known and b"\r\nanthropic-version:" in case.request
        forms.error(MESSAGES if anthropic else case.path, answer)
        assert answer.headers["x-request-id"]
        assert answer.status not in (429, 503) or int(answer.headers["retry-after"]) > 0


def _judge_reply(case: Case, answer: Answer) -> None:
    if not answer.headers["content-type"].startswith("text/event-stream"):
        assert forms.whole(case.path, answer)
    elif "transfer-encoding" not in answer.headers:  # HTTP/1.0: the last event alone tells
        assert answer.body.endswith(b"\n\n")
    elif answer.whole:
        assert forms.whole(case.path, answer)
    else:
        forms.stream_error(case.path, answer)


@contextmanager
def no_surprises(gateway: Running) -> Iterator[None]:
    """Fail when something was logged as unexpected."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = records.append  # type: ignore[method-assign,assignment]
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
    unexpected = [logging.Formatter().format(record) for record in records if record.exc_info]
    assert not unexpected, f"FUZZ_SEED={SEED}\n{unexpected[0]}"
    failed = [line for line in gateway.log if line["event"] == "request.failed"]
    assert not failed, failed[0].get("exc_info")


async def nothing_left(gateway: Running) -> None:
    """No place, no ticket, no byte of a body, no count, no run under way, nothing at the engine."""
    await gateway.idle(LIMIT_S)
    core = gateway.core
    await gateway.until(lambda: gateway.engine.stats.running == 0, 1.0)
    await gateway.until(lambda: core.bodies._by_seat == {} and core.bodies.used_bytes == 0, 1.0)
    await gateway.until(lambda: (core.counting._checks._value, core.counting._asked._value) == (PLACES, PLACES), 1.0)
    assert not [run for run in core.runs._runs.values() if run.open]
    assert not core.large_bodies._busy


async def batch(gateway: Running, cases: list[Case], knobs: Knobs, seen: Counter[tuple[str, int]]) -> None:
    """Send all of them at once and judge what comes."""

    async def one(case: Case) -> None:
        try:
            answer = await answered(gateway, case)
            if answer is not None:
                seen[case.path, answer.status] += 1
                judge(case, answer, knobs)
        except Exception as error:
            error.add_note(f"FUZZ_SEED={SEED} {case.method} {case.path} {case.request[:3000]!r}")
            error.add_note(f"answered {answer!r:.2000}" if "answer" in locals() else "not answered")
            error.add_note(f"knobs {knobs}")
            raise

    gateway.engine.apply(knobs)
    async with asyncio.TaskGroup() as group:
        for case in cases:
            group.create_task(one(case))
    await nothing_left(gateway)


async def lane(cases: list[Case], dice: random.Random, seen: Counter[tuple[str, int]]) -> None:
    """One gateway and its engine, in one state after the other, for a share of the cases."""
    soon = {"engine_silence_s": 0.15, "unstreamed_s": 0.15}
    limits = {"early_response_s": 0.03, "heartbeat_s": 0.03, "body_timeout_s": 0.2, **soon}
    limits |= {"body_max_bytes": BODY_MAX, "body_budget_bytes": 8 * BODY_MAX, "first_token_s": 2.0}
    admission = {"queue_max": 12, "queue_per_seat": 5, "queue_deadline_s": 60.0}
    async with running(
        HEALTHY, streams=4, sweep_s=0.05, limits=limits, admission=admission, context_tokens=WINDOW
    ) as gateway:
        with no_surprises(gateway):
            for start in range(0, len(cases), BATCH):
                mode = dice.choice(FAULTS) | {"only_marker": ""} if dice.random() < 0.3 else dice.choice(MODES)
                mode = mode if "only_marker" in mode else mode | dice.choice(SLOW_FAULTS)
                await batch(gateway, cases[start : start + BATCH], merged(Knobs(), HEALTHY | mode), seen)


async def test_whatever_is_sent_nothing_is_a_500_nothing_hangs_and_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gateway.counting.LIMIT_S", 0.1)
    cases = fuzz(CASES, SEED)
    seen: Counter[tuple[str, int]] = Counter()
    async with asyncio.TaskGroup() as group:  # several at once, as most of the time goes by in waiting
        for number in range(LANES):
            group.create_task(lane(cases[number::LANES], random.Random(SEED + number), seen))
    print("seen", len(cases), sorted(seen.items()))
    assert len(cases) == CASES
    for path in PATHS:
        got = {status: count for (where, status), count in seen.items() if where == path}
        assert got[200] > CASES / 40, path
        assert got[400] > CASES / 40, path
        assert sum(got.values()) > CASES / 8, path
    assert all(seen[path, 200] for path in COUNTS.values())
    assert {413, 408, 429, 501, 502, 503} <= {status for _, status in seen}
    assert RESPONSES in {path for path, _ in seen}
