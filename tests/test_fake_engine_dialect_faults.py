"""Every fault of one reply works on all four paths, in the shape that the path's wire has for it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import httpx
import pytest

from tests.fake_engine.asking import CHAT, COMPLETIONS, MESSAGES, RESPONSES, ask, events, served, texts
from tests.fake_engine.knobs import COUNT_PATHS, INFERENCE_PATHS, merged

PATHS = pytest.mark.parametrize("path", INFERENCE_PATHS)
COMPLETE = {CHAT: "[DONE]", COMPLETIONS: "[DONE]", MESSAGES: "message_stop", RESPONSES: "response."}


@pytest.mark.anyio
@PATHS
async def test_an_error_in_the_stream_comes_after_so_many_tokens(path: str) -> None:
    async with served(error_in_stream=2, error_then_done=True) as (engine, client):
        *stream, last = events((await client.post(path, json=ask(path, stream=True))).content)
        if path in (CHAT, COMPLETIONS):
            assert last == "[DONE]"
            assert stream.pop()["error"]["code"] == 500
        elif path == MESSAGES:
            assert last["type"] == "error"
            assert last["error"].keys() == {"type", "message"}
        else:
            assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
            assert last["response"]["error"]["code"] == "server_error"
        assert len(texts(path, stream)) == 2
        whole = await client.post(path, json=ask(path))
        assert (whole.status_code, whole.json()["error"]["code"]) == (500, 500)
        engine.engine.apply(merged(engine.engine.knobs, {"responses_error_event": True}))
        if path == RESPONSES:
            stream = events((await client.post(path, json=ask(path, stream=True))).content)
            assert (stream[-1]["type"], stream[-1]["sequence_number"]) == ("error", len(stream) - 1)


@pytest.mark.anyio
@PATHS
async def test_a_truncated_stream_ends_without_its_ending(path: str) -> None:
    async with served(truncate_after=2) as (engine, client):
        body = (await client.post(path, json=ask(path, stream=True))).content
        assert len(texts(path, events(body))) == 2
        assert not any(word in body for word in (b"[DONE]", b"message_delta", b"response.completed", b"_done"))
        half = (await client.post(path, json=ask(path))).content
        with pytest.raises(ValueError, match="Unterminated string"):
            json.loads(half)
        assert [record.outcome for record in engine.engine.stats.log] == ["truncated"] * 2


@pytest.mark.anyio
@PATHS
@pytest.mark.parametrize("stream", [False, True])
async def test_a_cut_closes_the_connection(path: str, stream: bool) -> None:
    async with served(cut_after=2, cut_rst=stream) as (engine, client):
        with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
            await client.post(path, json=ask(path, stream=stream))
        assert engine.engine.stats.log[0].outcome == "cut"


@pytest.mark.anyio
@PATHS
@pytest.mark.parametrize("knobs", [{"stall_after": 1}, {"silent_s": 1000.0}, {"headers_delay": True, "silent_s": 9.0}])
async def test_early_events_come_before_the_silence_and_a_client_that_leaves_is_noticed(
    path: str, knobs: dict[str, Any]
) -> None:
    async with served(**knobs) as (engine, client):
        received = b""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.1), client.stream("POST", path, json=ask(path, stream=True)) as response:
                async for data in response.aiter_raw():
                    received += data
        early = path in (MESSAGES, RESPONSES) and not knobs.get("headers_delay")
        assert (b"start" in received or b"in_progress" in received) == early
        assert bool(texts(path, events(received)) if received else []) == ("stall_after" in knobs)
        async with asyncio.timeout(5):
            while engine.engine.stats.running:
                await asyncio.sleep(0.001)
        assert engine.engine.stats.aborted == 1


@pytest.mark.anyio
@PATHS
async def test_late_events_come_with_the_first_token(path: str) -> None:
    async with served(early_events=False, silent_s=0.05) as (_, client):
        async with client.stream("POST", path, json=ask(path, stream=True, max_tokens=3)) as response:
            first = await anext(response.aiter_raw())
        assert texts(path, events(first))


@pytest.mark.anyio
@PATHS
async def test_rejection_and_death(path: str) -> None:
    async with served(reject_status=429, only_marker="bad") as (engine, client):
        refused = await client.post(path, json=ask(path, "bad"))
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, 429)
        assert (await client.post(path, json=ask(path))).status_code == 200
        engine.engine.apply(merged(engine.engine.knobs, {"style": "vllm"}))
        said = (await client.post(path, json=ask(path, "bad"))).json()
        assert said.keys() == ({"type", "error"} if path == MESSAGES else {"error"})
        engine.engine.apply(merged(engine.engine.knobs, {"die_after_tokens": 1, "reject_status": None}))
        with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
            await client.post(path, json=ask(path, stream=True))


@pytest.mark.anyio
@PATHS
async def test_too_long_in_the_words_of_llama_and_of_vllm(path: str) -> None:
    async with served(context_tokens=100) as (engine, client):
        body = ask(path, "x" * 800, stream=True)
        said = (await client.post(path, json=body)).json()["error"]
        count = said["n_prompt_tokens"]
        assert count in range(200, 207)
        assert said == {
            "code": 400,
            "message": f"request ({count} tokens) exceeds the available context size (100 tokens), try increasing it",
            "type": "exceed_context_size_error",
            "n_prompt_tokens": count,
            "n_ctx": 100,
        }
        # llama.cpp does not look at the limit: the reply ends where the context does.
        reply = (await client.post(path, json=ask(path, "x" * 200, max_tokens=32_000))).json()
        assert reply["usage"].get("output_tokens", reply["usage"].get("completion_tokens")) in range(40, 51)
        engine.engine.apply(merged(engine.engine.knobs, {"style": "vllm"}))
        response = await client.post(path, json=body)
        said = response.json()
        message = "maximum context length is 100 tokens. However, your request has at least 101 input tokens"
        assert (response.status_code, message in said["error"]["message"]) == (400, True)
        if path == MESSAGES:
            assert (said["type"], said["error"]["type"]) == ("error", "BadRequestError")
        else:
            assert (said["error"]["param"], said["error"]["code"]) == ("input_tokens", 400)
        assert (await client.post(path, json=ask(path, max_tokens=101))).status_code == 400


@pytest.mark.anyio
async def test_counts_can_hang_while_replies_come() -> None:
    async with served(hang_counts=True) as (engine, client):
        for path in COUNT_PATHS:
            with pytest.raises(httpx.ReadTimeout):
                await client.post(path, json=ask(CHAT), timeout=0.02)
        assert (await client.post(CHAT, json=ask(CHAT))).status_code == 200
        assert [engine.engine.stats.paths[path] for path in COUNT_PATHS] == [1] * 4
