"""gateway.exchange, whole: what engine and client see of requests that go well."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from typing import Any

import httpx
import pytest

from tests.fake_engine import wire as engine_wire
from tests.gateway.running import ENGINE_KEY, Running, key_of, running
from tests.gateway.wire import CHAT, COMPLETIONS, Answer, ask, chat, connect, exchange, post

pytestmark = pytest.mark.anyio

ROUTES = pytest.mark.parametrize("path", [CHAT, COMPLETIONS])


def plain(body: bytes) -> bytes:
    """A reply without the second in which it was made."""
    return re.sub(rb'"created":\d+', b'"created":0', body)


async def direct(gateway: Running, path: str, body: dict[str, Any], id: str) -> bytes:
    """What the engine itself answers."""
    headers = {"authorization": f"Bearer {ENGINE_KEY}", "x-request-id": id}
    async with httpx.AsyncClient(base_url=gateway.engine_url) as client:
        return (await client.post(path, json=body, headers=headers)).content


async def through(gateway: Running, path: str, body: Any, id: str = "same", **more: Any) -> Answer:
    return await exchange(gateway, post(body, path=path, headers={"X-Request-Id": id}, **more))


def echoed(gateway: Running) -> tuple[dict[str, str], bytes]:
    """Headers and body of the last request that the engine got."""
    last = gateway.engine.stats.echoes[-1]
    return dict(last["headers"]), base64.b64decode(last["body_b64"])


# Bytes


@ROUTES
@pytest.mark.parametrize("packed", [1, 3])
async def test_a_stream_is_forwarded_byte_for_byte_when_usage_is_asked_for(path: str, packed: int) -> None:
    async with running({"tokens_per_chunk": packed}) as gateway:
        body = ask(path, stream=True, max_tokens=40, stream_options={"include_usage": True})
        wanted = await direct(gateway, path, body, "same")
        answer = await through(gateway, path, body)
    assert (answer.status, answer.whole) == (200, True)
    assert plain(answer.body) == plain(wanted)
    assert b'"prompt_tokens"' in answer.body
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["x-accel-buffering"] == "no"


@ROUTES
@pytest.mark.parametrize("options", [{}, {"stream_options": {"include_usage": False}}, {"stream_options": None}])
async def test_forced_usage_is_stripped_again_and_still_counted(path: str, options: dict[str, Any]) -> None:
    async with running() as gateway:
        wanted = await direct(gateway, path, ask(path, stream=True, max_tokens=40), "same")
        answer = await through(gateway, path, ask(path, stream=True, max_tokens=40, **options))
        await gateway.idle()
    assert answer.whole
    assert plain(answer.body) == plain(wanted)
    assert b"usage" not in answer.body
    line = gateway.done()[-1]
    assert (line["completion_tokens"], line["estimated"], line["word"]) == (40, False, "ok")


@ROUTES
async def test_a_reply_in_one_piece_is_forwarded_byte_for_byte(path: str) -> None:
    async with running() as gateway:
        wanted = await direct(gateway, path, ask(path, max_tokens=40), "same")
        answer = await through(gateway, path, ask(path, max_tokens=40))
        await gateway.idle()
    assert (answer.status, answer.whole) == (200, True)
    assert plain(answer.body) == plain(wanted)
    assert gateway.done()[-1]["completion_tokens"] == 40


SPACED = b'{ "messages":[{"content":"hi \\u00e9", "role" : "user"}],\n "temperature": 1.0e0, "stream" :true%s }'


@pytest.mark.parametrize(
    ("client", "engine"),
    [
        (b"", None),
        (b', "stream_options": {"include_usage": true}', b', "stream_options": {"include_usage": true}'),
        (b', "stream_options": {"include_usage" : false}', b', "stream_options": {"include_usage" : true}'),
        (b', "stream_options" :null', b', "stream_options" :{"include_usage":true}'),
        (b', "stream_options":{}', b', "stream_options":{"include_usage":true}'),
    ],
)
async def test_the_engine_gets_the_clients_bytes_and_one_splice(client: bytes, engine: bytes | None) -> None:
    async with running({"echo_body": 1}) as gateway:
        answer = await through(gateway, CHAT, SPACED % client)
        _, got = echoed(gateway)
    assert answer.whole
    if engine is None:
        assert got == b'{"stream_options":{"include_usage":true},' + (SPACED % b"")[1:]
    else:
        assert got == SPACED % engine


async def test_a_request_that_does_not_stream_reaches_the_engine_untouched() -> None:
    raw = b'{"messages" : [ {"role":"user","content":"x"} ] , "unknown": [1.50, -0, 1E3], "max_tokens":3}'
    async with running({"echo_body": 1}) as gateway:
        await through(gateway, CHAT, raw)
        assert echoed(gateway)[1] == raw


# Headers


async def test_the_request_id_is_the_same_for_client_engine_and_log() -> None:
    async with running({"echo_body": 1}) as gateway:
        answer = await through(gateway, CHAT, chat(stream=True), "run-7:3.a_b")
        await gateway.idle()
        sent, _ = echoed(gateway)
    assert answer.headers["x-request-id"] == sent["x-request-id"] == "run-7:3.a_b"
    assert gateway.done()[0]["request_id"] == "run-7:3.a_b"
    assert gateway.done()[0]["seat"] == "a"


async def test_a_harmful_request_id_is_replaced() -> None:
    async with running({"echo_body": 1}) as gateway:
        answer = await through(gateway, CHAT, chat(), "x" * 200)
        sent, _ = echoed(gateway)
    assert re.fullmatch("[0-9a-f]{32}", answer.headers["x-request-id"])
    assert sent["x-request-id"] == answer.headers["x-request-id"]


@pytest.mark.parametrize("name", ["Authorization", "x-api-key"])
async def test_the_clients_key_never_reaches_the_engine(name: str) -> None:
    value = ("Bearer " if name == "Authorization" else "") + key_of("b")
    async with running({"echo_body": 1}) as gateway:
        answer = await exchange(
            gateway, post(chat(), seat=None, headers={name: value, "Cookie": "c=1", "X-Other": "o"})
        )
        sent, body = echoed(gateway)
    assert answer.status == 200
    assert sent["authorization"] == f"Bearer {ENGINE_KEY}"
    assert key_of("b") not in json.dumps(sent)
    assert key_of("b").encode() not in body
    assert set(sent) == {
        "host", "x-request-id", "accept", "authorization", "content-type", "content-length", "connection"
    }  # fmt: skip
    assert key_of("b") not in repr(gateway.log)
    assert "hello" not in repr(gateway.log)


async def test_queue_headers_say_where_a_request_stood() -> None:
    async with running({"silent_s": 0.15}, streams=1) as gateway:
        first = asyncio.create_task(exchange(gateway, post(chat(stream=True))))
        await gateway.until(lambda: gateway.core.limiter.running == 1)
        second = asyncio.create_task(exchange(gateway, post(chat(stream=True), seat="b")))
        await gateway.until(lambda: len(gateway.core.limiter.view().waiting) == 1)
        third = await exchange(gateway, post(chat(), seat="c"))
        answers = [await first, await second, third]
    got = [(a.headers["x-moe-queue-position"], a.headers["x-moe-queue-depth"]) for a in answers]
    assert got == [("0", "0"), ("1", "1"), ("2", "2")]
    assert all(answer.whole for answer in answers)


# The ticket


async def test_the_ticket_comes_back_when_the_engine_ends_though_the_client_has_not_read() -> None:
    big = {"tokens_per_chunk": 500, "reply_tokens": 250_000, "time_scale": 0.0001}
    async with running(big, streams=1) as gateway:
        async with connect(gateway, post(chat(stream=True)), small=True) as slow:
            await slow.head()
            slow.writer.transport.pause_reading()
            await gateway.until(lambda: gateway.engine.stats.completed == 1)
            await gateway.until(lambda: gateway.core.limiter.running == 0, 0.5)
            assert len(gateway.core.live) == 1
            other = await exchange(gateway, post(chat(stream=True, max_tokens=5), seat="b"))
            assert other.whole
            slow.writer.transport.resume_reading()
            body, whole = await slow.rest({})
        await gateway.idle()
    assert whole
    text = "".join(json.loads(e[6:])["choices"][0]["delta"].get("content") or "" for e in body.split(b"\n\n")[:-2])
    prompt = engine_wire.render(chat())
    assert prompt is not None
    assert text == engine_wire.words(prompt, 0, 0, 250_000)


async def test_prefill_heartbeats_keep_a_silent_stream_open() -> None:
    limits = {"early_response_s": 0.1, "heartbeat_s": 0.05}
    async with running({"silent_s": 0.4, "headers_delay": True}, limits=limits) as gateway:
        answer = await through(gateway, CHAT, chat(stream=True, max_tokens=3))
    beats = [event for event in answer.events() if event.startswith(b":")]
    assert answer.whole
    assert set(beats) == {b": reading the prompt"}
    assert 3 <= len(beats) <= 8
    assert answer.events()[-1] == b"data: [DONE]"


async def test_nothing_is_sent_before_the_early_response_is_due() -> None:
    async with running({"silent_s": 0.2, "headers_delay": True}) as gateway:
        answer = await through(gateway, CHAT, chat(stream=True, max_tokens=3))
    assert b":" not in [event[:1] for event in answer.events()]


async def test_a_reply_in_one_piece_gets_no_heartbeats() -> None:
    limits = {"early_response_s": 0.05, "heartbeat_s": 0.05}
    async with running({"silent_s": 0.3}, limits=limits) as gateway:
        answer = await through(gateway, CHAT, chat(max_tokens=3))
    assert answer.status == 200
    assert answer.json()["usage"]["completion_tokens"] == 3
