"""The fake engine does what its knobs say: pure parts, the scheduler in virtual time, the wire."""

from __future__ import annotations

import asyncio
import base64
import json
import selectors
from collections.abc import Coroutine
from typing import Any

import httpx
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fake_engine import wire
from tests.fake_engine.asking import CHAT, chat, events, served
from tests.fake_engine.cache import BLOCK_BYTES, BLOCK_TOKENS, PrefixCache, block_chain
from tests.fake_engine.knobs import KnobError, Knobs, from_json, merged
from tests.fake_engine.pace import DecodeClock, ms_per_token, prefill_s
from tests.fake_engine.scheduler import Scheduler

TABLE = Knobs().ms_per_token


# Pace


@pytest.mark.parametrize(("running", "ms"), [(0, 7.9), (1, 7.9), (2, 11), (8, 27), (9, 30), (18, 57)])
def test_ms_per_token_follows_the_table_then_its_last_step(running: int, ms: float) -> None:
    assert ms_per_token(TABLE, running) == pytest.approx(ms)


@pytest.mark.parametrize(
    ("prompt", "cached", "seconds"),
    [(128_000, 0, 18.33), (260_000, 0, 45.07), (88_000, 0, 11.8), (91_500, 88_000, 0.54)],
)
def test_prefill_formula_gives_the_measured_times(prompt: int, cached: int, seconds: float) -> None:
    assert prefill_s(prompt, cached) == pytest.approx(seconds, rel=0.01)


def test_prefill_rate_replaces_the_formula() -> None:
    assert prefill_s(3000, 1000, 500) == 4.0


def test_decode_clock_is_continuous_and_its_deadlines_absolute() -> None:
    clock = DecodeClock(10.0, 100.0)
    assert clock.when(50) == pytest.approx(10.5)
    clock.set_rate(10.25, 50.0)
    assert clock.position(10.25) == pytest.approx(25)
    assert clock.when(50) == pytest.approx(10.75)
    clock.set_rate(10.5, 0.0)
    assert clock.when(50) == float("inf")
    assert clock.when(1) <= 10.5


# Cache

_prompts = st.lists(st.sampled_from([b"a", b"b"]), max_size=7).map(lambda p: b"".join(b * BLOCK_BYTES for b in p))


@given(st.integers(0, 6), st.lists(_prompts, max_size=12), _prompts)
def test_cache_holds_no_more_than_capacity_and_hits_only_true_prefixes(
    blocks: int, seen: list[bytes], asked: bytes
) -> None:
    cache = PrefixCache(blocks * BLOCK_TOKENS)
    for prompt in seen:
        cache.insert(block_chain(prompt))
        assert cache.tokens <= blocks * BLOCK_TOKENS
    hit_bytes = cache.hit_tokens(block_chain(asked)) * 4
    assert hit_bytes <= len(asked)
    assert hit_bytes == 0 or any(prompt.startswith(asked[:hit_bytes]) for prompt in seen)


@given(st.binary(max_size=6 * BLOCK_BYTES))
def test_second_identical_prompt_hits_all_full_blocks(prompt: bytes) -> None:
    cache = PrefixCache(6 * BLOCK_TOKENS)
    cache.insert(block_chain(prompt))
    assert cache.hit_tokens(block_chain(prompt)) == len(prompt) // BLOCK_BYTES * BLOCK_TOKENS


def test_least_recently_used_prompt_loses_its_tail_first() -> None:
    cache = PrefixCache(4 * BLOCK_TOKENS)
    old, new = block_chain(b"o" * BLOCK_BYTES * 3), block_chain(b"n" * BLOCK_BYTES * 2)
    cache.insert(old)
    cache.insert(new)
    assert (cache.hit_tokens(old), cache.hit_tokens(new)) == (2 * BLOCK_TOKENS, 2 * BLOCK_TOKENS)
    cache.resize(2 * BLOCK_TOKENS)
    assert (cache.hit_tokens(old), cache.hit_tokens(new)) == (0, 2 * BLOCK_TOKENS)


# Knobs


@pytest.mark.parametrize(
    "text", ["[]", "{", '{"lood_s": 1}', '{"load_s": "1"}', '{"hang": 1}', '{"time_scale": 0}', '{"ms_per_token": []}']
)
def test_wrong_knobs_are_refused(text: str) -> None:
    with pytest.raises(KnobError):
        from_json(text)


def test_knobs_merge_and_every_knob_survives_json() -> None:
    knobs = merged(Knobs(), {"load_s": 2, "ms_per_token": [1, 2], "cut_after": 0})
    assert (knobs.load_s, knobs.ms_per_token, knobs.cut_after) == (2, (1, 2), 0)
    plain = {name: getattr(knobs, name) for name in Knobs.__dataclass_fields__}
    assert from_json(json.dumps(plain)) == knobs


# Scheduler in virtual time


class _Jump(selectors.SelectSelector):
    """Never waits: when nothing is ready, time jumps to the next timer."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready:
            self.now_s += timeout or 0.0
        return ready


def virtual(body: Coroutine[Any, Any, None]) -> None:
    jump = _Jump()
    loop = asyncio.SelectorEventLoop(jump)
    loop.time = lambda: jump.now_s  # type: ignore[method-assign]
    try:
        loop.run_until_complete(body)
    finally:
        loop.close()


def test_prefills_run_one_at_a_time_and_slow_the_others_to_a_twentieth() -> None:
    async def body() -> None:
        now = asyncio.get_running_loop().time
        scheduler = Scheduler(Knobs(prefill_tok_per_s=1000, ms_per_token=(10.0,)), now)
        done: list[float] = []

        async def prefill(letter: bytes) -> None:
            await scheduler.prefill(letter * 4000, 1000)
            done.append(now())

        with scheduler.sequence() as first:
            await scheduler.reached(first + 100)
            assert now() == pytest.approx(1.0, abs=0.003)
            async with asyncio.TaskGroup() as group:
                group.create_task(prefill(b"a"))
                group.create_task(prefill(b"b"))
            assert done == pytest.approx([2.0, 3.0], abs=0.005)
            # 2 s at 5 % speed are 10 tokens, so 90 of the next 100 are still to come.
            await scheduler.reached(first + 200)
            assert now() == pytest.approx(3.9, abs=0.01)

    virtual(body())


def test_pace_follows_the_number_of_sequences_token_by_token() -> None:
    async def body() -> None:
        now = asyncio.get_running_loop().time
        scheduler = Scheduler(Knobs(ms_per_token=(10.0, 20.0)), now)
        with scheduler.sequence() as first:
            await scheduler.reached(first + 10)
            with scheduler.sequence():
                await scheduler.reached(first + 20)
            await scheduler.reached(first + 30)
        assert now() == pytest.approx(0.1 + 0.2 + 0.1, abs=0.004)
        assert scheduler.decoding == 0

    virtual(body())


def test_cancelled_prefill_frees_the_turn_and_caches_nothing() -> None:
    async def body() -> None:
        now = asyncio.get_running_loop().time
        scheduler = Scheduler(Knobs(prefill_tok_per_s=1000), now)
        task = asyncio.create_task(scheduler.prefill(b"a" * 4000, 1000))
        await asyncio.sleep(0.5)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert await scheduler.prefill(b"a" * 4000, 1000) == 0
        assert now() == pytest.approx(1.5, abs=0.005)
        assert await scheduler.prefill(b"a" * 4000, 1000) == 960

    virtual(body())


# Wire


@pytest.mark.anyio
async def test_streamed_chat_has_the_wire_form_of_vllm() -> None:
    async with served() as (engine, client):
        ask = chat(stream=True, max_tokens=5, stream_options={"include_usage": True})
        response = await client.post(CHAT, json=ask, headers={"x-request-id": "r1"})
        role, *texts, finish, used, done = events(response.content)
        assert response.headers["content-type"].startswith("text/event-stream")
        assert role["choices"][0]["delta"] == {"role": "assistant", "content": None}
        prompt = wire.render(ask)
        assert prompt is not None
        assert "".join(t["choices"][0]["delta"]["content"] for t in texts) == wire.words(prompt, 0, 0, 5)
        assert finish["choices"][0]["finish_reason"] == "length"
        assert used["choices"] == []
        assert used["usage"] == wire.usage(len(prompt) // 4, 5, 0)
        assert done == "[DONE]"
        record = engine.engine.stats.log[0]
        assert (record.id, record.outcome, record.tokens) == ("r1", "completed", 5)
        assert record.first_token_s is not None
        assert record.ended_s is not None
        assert record.arrived_s <= record.first_token_s <= record.ended_s


@pytest.mark.anyio
async def test_tokens_are_packed_and_usage_only_when_asked_for() -> None:
    async with served(tokens_per_chunk=4, reply_tokens=10) as (_, client):
        ask = {"prompt": "x", "stream": True}
        chunks = events((await client.post("/v1/completions", json=ask)).content)
        texts = [chunk["choices"][0]["text"] for chunk in chunks[:-1]]
        assert [len(text) // 4 for text in texts] == [4, 4, 2, 0]
        assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
        assert chunks[-1] == "[DONE]"


@pytest.mark.anyio
async def test_the_openai_client_reads_both_forms_and_n_starts_n_sequences() -> None:
    async with served(key="k") as (engine, _):
        http = openai.DefaultAsyncHttpxClient(trust_env=False)
        async with openai.AsyncOpenAI(base_url=f"{engine.url}/v1", api_key="k", http_client=http) as client:
            whole = await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "hi"}], n=3, max_completion_tokens=4
            )
            assert len({choice.message.content for choice in whole.choices}) == 3
            assert whole.usage is not None
            assert whole.usage.completion_tokens == 12
            stream = await client.completions.create(model="m", prompt="hi", stream=True, max_tokens=3)
            assert len("".join([chunk.choices[0].text async for chunk in stream])) == 12
            assert [model.id async for model in client.models.list()] == ["fake-model"]
        stats = engine.engine.stats
        assert (stats.peak_requests, stats.peak_sequences, stats.sequences) == (1, 3, 0)


@pytest.mark.anyio
async def test_the_reply_is_cached_for_the_next_turn() -> None:
    async with served() as (_, client):
        first = await client.post(CHAT, json=chat("x" * 4000, max_tokens=640))
        messages = [
            {"role": "user", "content": "x" * 4000},
            first.json()["choices"][0]["message"],
            {"role": "user", "content": "go on"},
        ]
        second = (await client.post(CHAT, json={"messages": messages, "max_tokens": 1})).json()["usage"]
        assert second["prompt_tokens_details"]["cached_tokens"] == 1600
        assert second["prompt_tokens"] - second["prompt_tokens_details"]["cached_tokens"] <= BLOCK_TOKENS + 8


@pytest.mark.anyio
async def test_a_tier_in_host_ram_gives_back_what_the_cache_was_told_to_drop() -> None:
    async def cached(client: httpx.AsyncClient) -> int:
        usage = (await client.post(CHAT, json=chat("x" * 4000, max_tokens=1))).json()["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    async with served(host_cache_tokens=100_000) as (_, client):
        assert (await client.post("/reset_prefix_cache")).status_code == 404
        await client.post("/_fake/knobs", json={"reset_path": True})
        assert [await cached(client), await cached(client)] == [0, 960]
        assert (await client.post("/reset_prefix_cache")).json() == {"success": True}
        assert await cached(client) == 960
        await client.post("/_fake/knobs", json={"host_fault": "miss"})
        await client.post("/reset_prefix_cache")
        assert await cached(client) == 0


@pytest.mark.anyio
async def test_a_broken_tier_answers_otherwise_or_dies() -> None:
    async def said(client: httpx.AsyncClient) -> str:
        await client.post("/reset_prefix_cache")
        answer = await client.post(CHAT, json=chat("x" * 4000, max_tokens=8))
        return str(answer.json()["choices"][0]["message"]["content"])

    async with served(host_cache_tokens=100_000, reset_path=True, host_fault="text") as (_, client):
        assert len({await said(client), await said(client)}) == 2
    async with served(host_cache_tokens=100_000, reset_path=True, host_fault="crash") as (_, client):
        await said(client)
        with pytest.raises(httpx.HTTPError):
            await said(client)


@pytest.mark.anyio
async def test_loading_key_and_unknown_paths() -> None:
    async with served(key="k", load_s=1000) as (engine, client):
        good = {"authorization": "Bearer k"}
        loading = {"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}}
        for path in ("/health", "/v1/models"):
            response = await client.get(path, headers=good)
            assert (response.status_code, response.json()) == (503, loading)
        response = await client.post("/_fake/knobs", json={"load_s": 0, "echo_body": 1}, headers=good)
        assert response.status_code == 200
        assert (await client.get("/health")).json() == {"status": "ok"}
        assert (await client.get("/v1/models")).status_code == 401
        assert (await client.get("/nothing", headers=good)).status_code == 404
        body = b'{ "messages" : [{"role":"user","content":"hi"}], "max_tokens":1}'
        for _ in range(2):
            await client.post(CHAT, content=body, headers=good)
        (echo,) = (await client.get("/_fake/stats", headers=good)).json()["echoes"]
        assert base64.b64decode(echo["body_b64"]) == body
        assert ["authorization", "Bearer k"] in echo["headers"]
        assert "vllm:generation_tokens_total" in (await client.get("/metrics", headers=good)).text
        assert (await client.post("/tokenize", json={"prompt": "12345678"}, headers=good)).json()["count"] == 2
        await client.post("/_fake/reset", headers=good)
        assert engine.engine.stats.requests == 0
        assert (await client.get("/health")).status_code == 503


@pytest.mark.anyio
async def test_too_long_is_refused_in_the_words_of_vllm() -> None:
    async with served(context_tokens=100, style="vllm") as (engine, client):
        response = await client.post(CHAT, json=chat("x" * 360, max_tokens=20))
        error = response.json()["error"]
        assert response.status_code == 400
        assert error["message"].startswith(
            "This model's maximum context length is 100 tokens. However, you requested 20 output tokens"
        )
        assert (error["type"], error["param"], error["code"]) == ("BadRequestError", "input_tokens", 400)
        assert (await client.post(CHAT, content=b"{")).status_code == 400
        short = (await client.post(CHAT, json=chat("x" * 300))).json()
        assert short["choices"][0]["finish_reason"] == "length"
        assert short["usage"]["total_tokens"] == 100
        assert engine.engine.stats.rejected == 2
