"""appliance/engine/probe_show.py, probe_prove.py and warmup.py against the fake engine, with each of its faults."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from appliance.engine.connect import engine_client
from appliance.engine.probe_prove import ANSWER_TOKENS, prove
from appliance.engine.promise import Promise
from appliance.engine.warmup import WarmUp, WarmUpFailed, warm_up
from gateway.state import ProbeResult, Verdict
from tests.fake_engine.knobs import Knobs
from tests.fake_engine.serving import serving

pytestmark = pytest.mark.anyio
QUICK = Knobs(time_scale=0.02)
PROMISE = Promise(kind="vllm", floor_tok_per_s=40.0, streams=4)


async def warmed(knobs: Knobs, promise: Promise = PROMISE) -> WarmUp:
    async with serving(knobs) as engine:
        return await warm_up(engine.url, None, None, lambda step, part: None, promise=promise)


async def rows(knobs: Knobs, promise: Promise = PROMISE) -> dict[str, ProbeResult]:
    return {row.id: row for row in (await warmed(knobs, promise)).results}


async def test_a_healthy_engine_shows_all_that_is_wanted() -> None:
    for style in ("llama", "vllm"):
        shown = await rows(replace(QUICK, style=style))
        assert {name: row.verdict for name, row in shown.items() if row.verdict is not Verdict.OK} == {}
        assert "by its usage" in shown["cache"].observed
        assert "by its metrics" in shown["cache"].observed
        assert "its result was answered" in shown["tools"].observed


async def test_as_many_prompts_as_may_run_are_read_at_once_before_the_pace_is_measured() -> None:
    async with serving(QUICK) as engine:
        await warm_up(engine.url, None, None, lambda step, part: None, promise=PROMISE)
        assert engine.engine.stats.peak_requests == 4
        most = max(range(len(engine.engine.stats.log)), key=lambda at: engine.engine.stats.log[at].tokens)
        assert engine.engine.stats.log[most].tokens >= 64


async def test_a_demo_is_asked_for_nothing_that_takes_long() -> None:
    async with serving(QUICK) as engine:
        warm = await warm_up(engine.url, None, None, lambda step, part: None, promise=Promise(demo=True, tools=False))
        assert engine.engine.stats.peak_requests == 1
        assert max(record.tokens for record in engine.engine.stats.log) <= 16
    assert {row.id for row in warm.results if row.verdict is Verdict.UNKNOWN} == {"tools", "json_object", "json_schema"}


@pytest.mark.parametrize(
    ("knobs", "row", "says"),
    [
        ({"tool_fault": "ignore"}, "tools", "answered without a call"),
        ({"tool_fault": "refuse"}, "tools", "requires --enable-auto-tool-choice"),
        ({"tool_fault": "markup"}, "tools", "<tool_call"),
        ({"json_mode": False, "reply_text": "Paris, of course."}, "json_object", "Paris, of course."),
        ({"json_mode": False, "reply_text": '{"town": "Paris"}'}, "json_schema", "not of the schema"),
        ({"tells_cached": False}, "cached_tokens", "not told"),
        ({"thinks": True}, "thinking", "tokens of thought"),
        ({"cache_tokens": 0}, "cache", "0 by its usage, 0 by its metrics"),
    ],
)
async def test_each_fault_is_seen_and_told_with_what_to_do(knobs: dict[str, Any], row: str, says: str) -> None:
    found = (await rows(replace(QUICK, **knobs)))[row]
    assert found.verdict is Verdict.FAILED
    assert says in found.observed
    assert found.remedy


async def test_a_pace_below_the_floor_is_seen() -> None:
    found = (await rows(QUICK, replace(PROMISE, floor_tok_per_s=1e6)))["pace"]
    assert (found.verdict, found.needed) == (Verdict.FAILED, True)
    assert "over 72 tokens" in found.observed


async def test_a_cache_that_keeps_nothing_is_asked_once_more_with_a_long_prompt() -> None:
    async with serving(replace(QUICK, cache_tokens=0)) as engine:
        await warm_up(engine.url, None, None, lambda step, part: None, promise=PROMISE)
        assert max(record.prompt_tokens for record in engine.engine.stats.log) > 4096


async def test_an_engine_that_lacks_what_it_needs_serves_only_if_it_may() -> None:
    knobs = replace(QUICK, tool_fault="refuse")
    with pytest.raises(WarmUpFailed, match="Tool calls") as caught:
        await warmed(knobs, replace(PROMISE, allow_degraded=False))
    assert caught.value.cause.id == "engine.degraded"
    assert (await rows(knobs))["tools"].needed


async def test_an_engine_that_hangs_in_a_probe_is_not_known_there() -> None:
    async with serving(replace(QUICK, hang=True, only_marker="tool_choice")) as engine:
        ends_s = time.monotonic() + 2.0
        warm = await warm_up(
            engine.url,
            None,
            None,
            lambda step, part: None,
            promise=replace(PROMISE, allow_degraded=False),
            left_s=lambda: ends_s - time.monotonic(),
        )
    shown = {row.id: row.verdict for row in warm.results}
    assert (shown["tools"], shown["pace"]) == (Verdict.UNKNOWN, Verdict.OK)
    assert any("not all was shown" in note for note in warm.notes)


async def test_two_streams_of_the_longest_context_are_proven_on_demand() -> None:
    steps: list[str] = []
    async with serving(replace(QUICK, context_tokens=20_000)) as engine:
        promise = replace(PROMISE, prove=True, longest_tokens=16_000)
        warm = await warm_up(engine.url, None, None, lambda step, part: steps.append(step), promise=promise)
        longest = sorted(record.prompt_tokens + record.tokens for record in engine.engine.stats.log)[-2:]
    row = next(row for row in warm.results if row.id == "prove")
    assert row.verdict is Verdict.OK
    assert steps[-1] == "proving two streams of 16000 tokens"
    assert all(0.95 * 16_000 < tokens <= 16_000 for tokens in longest)


async def proven(knobs: Knobs, tokens: int, limit_s: float = 20.0) -> str:
    async with serving(knobs) as engine, engine_client(engine.url, None, 5.0) as client:
        return (await prove(client, "fake-model", tokens, time.monotonic, limit_s)).failed


async def test_a_prompt_that_does_not_fit_is_made_shorter() -> None:
    assert await proven(replace(QUICK, style="vllm", context_tokens=8_000), 8_200) == ""


@pytest.mark.parametrize(
    ("knobs", "says"),
    [
        ({"error_in_stream": ANSWER_TOKENS // 2}, "did not end"),
        ({"cut_after": ANSWER_TOKENS // 2}, "did not end"),
        ({"truncate_after": ANSWER_TOKENS // 2}, "did not end"),
        ({"stall_after": ANSWER_TOKENS // 2}, "within 2 s"),
        ({"context_tokens": 2_000}, "shorter as well"),
    ],
)
async def test_a_long_stream_that_does_not_end_proves_nothing(knobs: dict[str, Any], says: str) -> None:
    limit_s = 2.0 if "stall_after" in knobs else 20.0
    assert says in await proven(replace(QUICK, **knobs), 6_000, limit_s)
