"""gateway.exchange, whole: what engine and client see of requests that go well, on every route."""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import re
from typing import Any

import httpx
import pytest

from gateway.dialects import Prepared
from tests.fake_engine import wire as engine_wire
from tests.gateway import forms
from tests.gateway.forms import (
    CHAT,
    COMPLETIONS,
    MESSAGES,
    PATHS,
    RESPONSES,
    ROUTES,
    STREAM_OR_NOT,
    WITH_USAGE,
    plain,
)
from tests.gateway.running import ENGINE_KEY, Running, key_of, running
from tests.gateway.wire import Answer, ask, call, chat, connect, exchange, post

pytestmark = pytest.mark.anyio

OPENAI = pytest.mark.parametrize("path", [CHAT, COMPLETIONS], ids=forms.NAMES.get)


async def direct(gateway: Running, path: str, body: dict[str, Any], id: str = "same") -> bytes:
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


KNOBS: tuple[dict[str, Any], ...] = (
    {},
    {"tokens_per_chunk": 3},
    {"early_events": False, "headers_delay": True, "bare_events": True},
    {"style": "vllm", "reply_text": "one two  three\n four\n\ndata: [DONE]\n\n: five"},
    {"tool_rules": ('{"name":"run","arguments":{"cmd":"ls -la /","error":"no"}}',)},
)
TOOL: dict[str, dict[str, Any]] = {
    CHAT: {"type": "function", "function": {"name": "run", "parameters": {}}},
    RESPONSES: {"type": "function", "name": "run", "parameters": {}},
    MESSAGES: {"name": "run", "input_schema": {"type": "object"}},
}


@ROUTES
@pytest.mark.parametrize("knobs", KNOBS, ids=range(len(KNOBS)))
async def test_a_reply_is_forwarded_byte_for_byte(path: str, knobs: dict[str, Any]) -> None:
    tools = {"tools": [TOOL[path]]} if path in TOOL else {}
    asked = WITH_USAGE if path in (CHAT, COMPLETIONS) else {}
    async with running(knobs) as gateway:
        for fields in ({"stream": True, **asked}, {}):
            body = ask(path, max_tokens=40, **fields, **tools)
            wanted = await direct(gateway, path, body)
            answer = await through(gateway, path, body)
            assert forms.whole(path, answer)
            assert plain(answer.body) == plain(wanted)
            assert b"input_tokens" in answer.body or b"prompt_tokens" in answer.body
            streamed = answer.headers["content-type"].startswith("text/event-stream")
            assert streamed == ("stream" in fields)
            assert (answer.headers.get("x-accel-buffering") == "no") == streamed
        await gateway.idle()
    assert [(line["estimated"], line["word"]) for line in gateway.done()] == [(False, "ok")] * 2


@OPENAI
@pytest.mark.parametrize("options", [{}, {"stream_options": {"include_usage": False}}, {"stream_options": None}])
async def test_forced_usage_is_stripped_again_and_still_counted(path: str, options: dict[str, Any]) -> None:
    async with running() as gateway:
        wanted = await direct(gateway, path, ask(path, stream=True, max_tokens=40))
        answer = await through(gateway, path, ask(path, stream=True, max_tokens=40, **options))
        await gateway.idle()
    assert answer.whole
    assert plain(answer.body) == plain(wanted)
    assert b"usage" not in answer.body
    line = gateway.done()[-1]
    assert (line["completion_tokens"], line["estimated"], line["word"]) == (40, False, "ok")


SPACED = b'{ "%s":%s,\n "temperature": 1.0e0, "stream" :true%%s }'
TEXT = b'[{"content":"hi \\u00e9", "role" : "user"}]'


@OPENAI
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
async def test_the_engine_gets_the_clients_bytes_and_one_splice(path: str, client: bytes, engine: bytes | None) -> None:
    spaced = SPACED % (forms.PROMPT[path].encode(), TEXT if path == CHAT else b'"hi \\u00e9"')
    async with running({"echo_body": 1}) as gateway:
        answer = await through(gateway, path, spaced % client)
        _, got = echoed(gateway)
    assert answer.whole
    if engine is None:
        assert got == b'{"stream_options":{"include_usage":true},' + (spaced % b"")[1:]
    else:
        assert got == spaced % engine


ODD = b'"unknown": [1.50, -0, 1E3, "\\ud83d", {"priority": 1, "cache_salt":"x"}], "metadata" :{"id":"i"},"stop": [ ]'
ODD_PROMPT = {
    CHAT: b'[ {"role":"user","content":[{"type":"text","text":"x","cache_control":{"type":"ephemeral"}}]} ]',
    COMPLETIONS: b'"x\\u0000 \\u00e9 \xc3\xa9 \\/"',
    RESPONSES: b'[ {"id":"msg_9","role":"user" , "content":"x"}, {"type":"reasoning","id":"rs_1","summary":[]} ]',
    MESSAGES: b'[ {"role":"user","content":"x"} ,{"role":"system","content":[{"type":"text","text":"mid"}]}]',
}


@ROUTES
@pytest.mark.parametrize("stream", [b"", b', "stream":false', b', "stream" : true'])
async def test_a_body_of_which_nothing_is_taken_reaches_the_engine_untouched(path: str, stream: bytes) -> None:
    options = b', "stream_options":{"include_usage":true}' if b"true" in stream else b""
    raw = b'{"%s" : %s , %s%s%s}' % (forms.PROMPT[path].encode(), ODD_PROMPT[path], ODD, stream, options)
    async with running({"echo_body": 1}) as gateway:
        answer = await through(gateway, path, raw)
        assert forms.whole(path, answer)
        assert echoed(gateway)[1] == raw


CONTROL = b'"%spriority" : -5,"cache_salt":"x", "kv_transfer_params":{"a":[1,{"b":"}"}]} ,"id_slot":3,"rid":"r",'


@ROUTES
@STREAM_OR_NOT
async def test_fields_that_act_on_the_engine_never_reach_it(path: str, stream: bool) -> None:
    options = b',"stream_options":{"include_usage":true}' if stream else b""
    rest = b'"%s":%s,"stream":%s%s' % (
        forms.PROMPT[path].encode(), ODD_PROMPT[path], b"true" if stream else b"false", options
    )  # fmt: skip
    async with running({"echo_body": 1}) as gateway:
        for raw in (
            b"{" + CONTROL % b"" + rest + b"}",
            b"{" + CONTROL % b'\\u0070riority":1,"' + rest + b"}",  # twice, once in disguise
            b"{" + rest + b"," + (CONTROL % b"")[:-1] + b"}",
        ):
            answer = await through(gateway, path, raw)
            assert forms.whole(path, answer)
            assert echoed(gateway)[1] == b"{" + rest + b"}"


async def test_the_billing_block_and_the_vendors_tools_are_taken_out_and_nothing_else() -> None:
    billing = b'{"type":"text","text":"x-anthropic-billing-header: cc_version=2.1; cch=58d"}'
    system = b'{ "text":"You are \\u00e9", "type":"text","cache_control":{"type":"ephemeral"} }'
    hosted, own = b'{"type":"web_search_20250305","name":"web_search"}', b'{"name":"f", "input_schema":{}}'
    raw = b'{"system": [%s],"tools": [%s] , "messages":[{"role":"user","content":"x"}], "stream":true}'
    async with running({"echo_body": 1}) as gateway:
        answer = await through(gateway, MESSAGES + "?beta=true", raw % (billing + b" , " + system, hosted + b"," + own))
        assert forms.whole(MESSAGES, answer)
        assert echoed(gateway)[1] == raw % (system, own)
        same = raw % (system + b" , " + system, own + b" ,\n" + own)
        await through(gateway, MESSAGES, same)
        assert echoed(gateway)[1] == same


@ROUTES
async def test_a_vendors_model_name_becomes_the_engines(path: str) -> None:
    raw = json.dumps(ask(path, stream=False)).encode()
    async with running({"echo_body": 1}) as gateway:
        answer = await through(gateway, path, raw.replace(b'"fake-model"', b'"claude-opus-4-1"'))
        assert forms.whole(path, answer)
        assert echoed(gateway)[1] == raw


# Headers


@ROUTES
async def test_the_request_id_is_the_same_for_client_engine_and_log(path: str) -> None:
    async with running({"echo_body": 1}) as gateway:
        answer = await through(gateway, path, ask(path, stream=True), "run-7:3.a_b")
        await gateway.idle()
        sent, _ = echoed(gateway)
        harmful = await through(gateway, path, ask(path), "x" * 200)
        replaced, _ = echoed(gateway)
    assert answer.headers["x-request-id"] == sent["x-request-id"] == "run-7:3.a_b"
    line = gateway.done()[0]
    assert (line["request_id"], line["seat"], line["route"]) == ("run-7:3.a_b", "a", path)
    assert re.fullmatch("[0-9a-f]{32}", harmful.headers["x-request-id"])
    assert replaced["x-request-id"] == harmful.headers["x-request-id"]


@ROUTES
@pytest.mark.parametrize("name", ["Authorization", "x-api-key"])
async def test_the_clients_key_never_reaches_the_engine(path: str, name: str) -> None:
    value = ("Bearer " if name == "Authorization" else "") + key_of("b")
    headers = {name: value, "Cookie": "c=1", "anthropic-beta": "x", "anthropic-version": "2023-06-01"}
    async with running({"echo_body": 1}) as gateway:
        answer = await exchange(gateway, post(ask(path), path=path + "?beta=1", seat=None, headers=headers))
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


@ROUTES
async def test_queue_headers_say_where_a_request_stood(path: str) -> None:
    async with running({"silent_s": 0.08}, streams=1) as gateway:
        first = asyncio.create_task(call(gateway, path, stream=True))
        await gateway.until(lambda: gateway.core.limiter.running == 1)
        second = asyncio.create_task(call(gateway, path, seat="b", stream=True))
        await gateway.until(lambda: len(gateway.core.limiter.view().waiting) == 1)
        third = await call(gateway, path, seat="c")
        answers = [await first, await second, third]
    got = [(a.headers["x-moe-queue-position"], a.headers["x-moe-queue-depth"]) for a in answers]
    assert got == [("0", "0"), ("1", "1"), ("2", "2")]
    assert all(forms.whole(path, answer) for answer in answers)


# Usage


@ROUTES
@STREAM_OR_NOT
@pytest.mark.parametrize("early", [True, False])
async def test_the_log_line_has_the_engines_own_numbers_cached_ones_too(path: str, stream: bool, early: bool) -> None:
    text = "word " * 300
    async with running({"early_events": early}) as gateway:
        for limit in (7, 9):
            answer = await call(gateway, path, text, stream=stream, max_tokens=limit)
            assert forms.whole(path, answer)
        await gateway.idle()
        seen = [(r.prompt_tokens, r.cached_tokens, r.tokens) for r in gateway.engine.stats.log]
    lines = gateway.done()
    got = [(line["prompt_tokens"], line["cached_tokens"], line["completion_tokens"]) for line in lines]
    assert got == seen
    assert seen[0][1] == 0 < seen[1][1] <= seen[1][0]
    assert all(line["estimated"] is False and line["stream"] is stream for line in lines)
    assert (b"usage" in answer.body) == (not stream or path in (RESPONSES, MESSAGES))


@ROUTES
@pytest.mark.parametrize("packed", [1, 4])
async def test_the_running_count_of_a_stream_that_is_left_is_marked_estimated(path: str, packed: int) -> None:
    knobs = {"reply_tokens": 100_000, "time_scale": 1.0, "tokens_per_chunk": packed, "ms_per_token": [1.0]}
    body = ask(path, stream=True)
    async with running(knobs) as gateway:
        async with connect(gateway, post(body, path=path)) as client:
            await client.head()
            while not gateway.core.live or (meter := next(iter(gateway.core.live)).meter) is None or meter.events < 6:
                await client.chunk()
        await gateway.idle()
    line = gateway.done()[0]
    assert (line["word"], line["estimated"]) == ("client_gone", True)
    assert 6 <= line["completion_tokens"] <= 60
    assert line["ttft_s"] > 0
    assert "prompt_tokens" not in line


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
            for path in PATHS:
                other = await call(gateway, path, seat="b", stream=True, max_tokens=5)
                assert forms.whole(path, other)
            slow.writer.transport.resume_reading()
            body, whole = await slow.rest({})
        await gateway.idle()
    assert whole
    text = "".join(json.loads(e[6:])["choices"][0]["delta"].get("content") or "" for e in body.split(b"\n\n")[:-2])
    prompt = engine_wire.render(chat())
    assert prompt is not None
    assert text == engine_wire.words(prompt, 0, 0, 250_000)


@pytest.mark.parametrize("path", PATHS, ids=forms.NAMES.get)
async def test_once_the_engine_answers_the_body_is_let_go(path: str) -> None:
    async with running({"time_scale": 1.0}) as gateway:
        answer = asyncio.create_task(call(gateway, path, "word " * 50, stream=True, max_tokens=10))
        await gateway.until(lambda: any(live.step == "decode" for live in gateway.core.live))
        gc.collect()
        assert [held for held in gc.get_objects() if isinstance(held, Prepared) and held.body] == []
        assert (await answer).status == 200
