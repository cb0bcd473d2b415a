"""What a client hears while it waits: heartbeats in the form of its route, no sooner and no later than due."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import anthropic
import openai
import pytest

from tests.gateway import forms
from tests.gateway.checks import EARLY, busy, ended, line_of
from tests.gateway.forms import CHAT, COMPLETIONS, MESSAGES, RESPONSES, together
from tests.gateway.running import Running, key_of, running
from tests.gateway.wire import Answer, ask, call, connect, exchange, post, scripted

pytestmark = pytest.mark.anyio

SWEEP_S = 0.02
EVENTS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
SILENCES: dict[str, dict[str, Any]] = {
    "no headers": {"silent_s": 0.2, "headers_delay": True},
    "headers alone": {"silent_s": 0.2, "early_events": False},
    "early events": {"silent_s": 0.2},
}


def opened(path: str, answer: Answer) -> None:
    """A stream of the Responses form begins with `response.created`, once, whatever else it waits for."""
    values = forms.values(answer)
    if path == RESPONSES:
        assert [value["type"] for value in values].count("response.created") == 1
        assert values[0]["type"] == "response.created"
        numbers = [value["sequence_number"] for value in values if "sequence_number" in value]
        assert numbers == sorted(set(numbers))
    if path == MESSAGES:
        assert [value["type"] for value in values].count("message_start") == 1


# When


@together
async def test_a_stream_that_waits_in_line_gets_its_200_and_heartbeats_and_then_its_reply(path: str) -> None:
    async with running({"silent_s": 0.2}, streams=1, limits=EARLY) as gateway, asyncio.TaskGroup() as group:
        await busy(gateway, group)
        answer = await call(gateway, path, stream=True, max_tokens=3)
    assert forms.whole(path, answer)
    beats = forms.beats(path, answer)
    assert len(beats) >= 3
    told = b": queued position=1 of=1, all streams are busy, the next is free in about "
    assert path in (RESPONSES, MESSAGES) or any(beat.startswith(told) for beat in beats)
    assert answer.headers["x-moe-queue-reason"] == "streams_busy"
    assert forms.is_beat(path, answer.events()[path == RESPONSES])
    assert len(forms.text_of(path, answer).split()) == 3
    opened(path, answer)


@together
@pytest.mark.parametrize("knobs", SILENCES.values(), ids=SILENCES)
async def test_heartbeats_fill_a_silent_prefill(path: str, knobs: dict[str, Any]) -> None:
    async with running(knobs, limits=EARLY, sweep_s=SWEEP_S) as gateway:
        answer = await call(gateway, path, stream=True, max_tokens=3)
    assert forms.whole(path, answer)
    assert 2 <= len(forms.beats(path, answer)) <= 6
    assert path in (RESPONSES, MESSAGES) or set(forms.beats(path, answer)) == {b": reading the prompt"}
    assert len(forms.text_of(path, answer).split()) == 3
    opened(path, answer)


@together
async def test_heartbeats_come_at_their_pace(path: str) -> None:
    limits = {"early_response_s": 0.05, "heartbeat_s": 0.1}
    async with (
        running({"silent_s": 0.5}, limits=limits, sweep_s=SWEEP_S) as gateway,
        connect(gateway, post(ask(path, stream=True), path=path)) as client,
    ):
        loop = asyncio.get_running_loop()
        status, _ = await client.head()
        times = [loop.time()]
        while len(times) < 4:
            if forms.is_beat(path, (await client.chunk() or b"").rstrip(b"\n")):
                times.append(loop.time())
    assert status == 200
    assert all(later - earlier < 0.1 + 2 * SWEEP_S + 0.05 for earlier, later in itertools.pairwise(times))
    assert all(later - earlier > 0.08 for earlier, later in itertools.pairwise(times[1:]))


@together
async def test_heartbeats_fill_a_silence_in_the_middle_of_the_answer(path: str) -> None:
    async def stutter(writer: asyncio.StreamWriter, _: bytes) -> None:
        token, cut = forms.TOKEN[path], len(forms.TOKEN[path]) // 2
        writer.write(EVENTS + forms.OPENING[path] + token)
        await asyncio.sleep(0.15)
        writer.write(token + token[:cut])  # silent in the middle of an event
        await asyncio.sleep(0.15)
        writer.write(token[cut:] + forms.DONE[path])

    async with (
        scripted(stutter) as url,
        running(engine_url=url, limits={"early_response_s": 9.0, "heartbeat_s": 0.04}, sweep_s=SWEEP_S) as gateway,
    ):
        answer = await call(gateway, path, stream=True)
    assert forms.whole(path, answer)
    events = answer.events()
    kinds = "".join(
        "b" if forms.is_beat(path, event) else "t" if event in forms.TOKEN[path] else "" for event in events
    )
    assert kinds.replace("bb", "b").replace("bb", "b") == "tbtbt"
    assert b"".join(event + b"\n\n" for event in events if not forms.is_beat(path, event)) == (
        forms.OPENING[path] + forms.TOKEN[path] * 3 + forms.DONE[path]
    )


COMMENTS = (b":\n\n", b": ping - 2026\n\n", b":\r\n\r\n", b": a\n: b\n\n")


@together
@pytest.mark.parametrize("early", [True, False])
async def test_an_engines_own_comments_are_no_heartbeats_and_no_sign_of_life(path: str, early: bool) -> None:
    async def comment(writer: asyncio.StreamWriter, _: bytes) -> None:
        writer.write(EVENTS + (forms.OPENING[path] + forms.TOKEN[path] if early else b""))
        for beat in COMMENTS * 1000:
            writer.write(beat)
            await asyncio.sleep(0.01)
            await writer.drain()

    limits = {"early_response_s": 0.02, "heartbeat_s": 0.05, "engine_silence_s": 0.2}
    async with scripted(comment) as url, running(engine_url=url, limits=limits, sweep_s=SWEEP_S) as gateway:
        answer = await call(gateway, path, stream=True)
        await ended(path, answer, gateway, "engine_lost")
        assert (await line_of(gateway, answer))["duration_s"] < 0.4
    assert 2 <= len(forms.beats(path, answer)) <= 6
    assert not {beat.strip() for beat in COMMENTS} & set(answer.events())


@together
async def test_nothing_is_sent_before_the_early_response_is_due(path: str) -> None:
    async with running({"silent_s": 0.1, "headers_delay": True}) as gateway:
        answer = await call(gateway, path, stream=True, max_tokens=3)
    assert forms.whole(path, answer)
    assert not forms.beats(path, answer)


@together
async def test_a_reply_in_one_piece_gets_no_heartbeats(path: str) -> None:
    async with running({"silent_s": 0.15}, streams=1, limits=EARLY, sweep_s=SWEEP_S) as gateway:
        first = asyncio.create_task(call(gateway, path, seat="b"))
        await gateway.until(lambda: gateway.engine.stats.running == 1)
        async with connect(gateway, post(ask(path), path=path)) as client:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await client.reader.read(1)
            answer = await client.answer()
        assert forms.whole(path, answer)
        assert forms.whole(path, await first)
        assert "content-length" in answer.headers


# How long


@together
@pytest.mark.parametrize("knobs", SILENCES.values(), ids=SILENCES)
async def test_a_first_token_that_is_late_ends_a_stream_so_that_agents_try_again(
    path: str, knobs: dict[str, Any]
) -> None:
    limits = EARLY | {"first_token_s": 0.15}
    async with running(knobs | {"silent_s": 9.0}, limits=limits, sweep_s=SWEEP_S) as gateway:
        answer = await call(gateway, path, stream=True)
        said = await ended(path, answer, gateway, "first_token_late")
        await gateway.idle()
        await gateway.until(lambda: gateway.engine.stats.aborted == 1)
    assert (path == MESSAGES) == (said.type == "overloaded_error")
    assert path != RESPONSES or said.code == "rate_limit_exceeded"
    assert gateway.done()[0]["word"] == "ended"
    opened(path, answer) if knobs.get("early_events", True) and "headers_delay" not in knobs else None


@together
async def test_the_wait_in_line_counts_for_the_first_token(path: str) -> None:
    limits = EARLY | {"first_token_s": 0.12}
    async with running({"silent_s": 0.25}, streams=1, limits=limits, sweep_s=SWEEP_S) as gateway:
        patient = asyncio.create_task(call(gateway, path, seat="b"))  # nobody who waits for the whole is told sooner
        await gateway.until(lambda: gateway.engine.stats.running == 1)
        answer = await call(gateway, path, stream=True)
        await ended(path, answer, gateway, "first_token_late")
        assert (await line_of(gateway, answer))["duration_s"] < 0.22
        assert gateway.engine.stats.requests == 1
        assert forms.whole(path, await patient)


@together
async def test_once_a_token_has_come_nothing_is_late(path: str) -> None:
    knobs = {"reply_tokens": 20, "time_scale": 1.0, "ms_per_token": [10.0]}
    async with running(knobs, limits={"first_token_s": 0.1}, sweep_s=SWEEP_S) as gateway:
        answer = await call(gateway, path, stream=True)
    assert forms.whole(path, answer)


# What SDKs make of it


def openai_sdk(gateway: Running) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{gateway.base_url}/v1", api_key=key_of("a"), max_retries=0)


async def openai_chat(gateway: Running) -> str:
    async with openai_sdk(gateway) as sdk:
        stream = await sdk.chat.completions.create(
            model="fake-model", messages=[{"role": "user", "content": "hi"}], stream=True
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])


async def openai_completions(gateway: Running) -> str:
    async with openai_sdk(gateway) as sdk:
        stream = await sdk.completions.create(model="fake-model", prompt="hi", stream=True)
        return "".join([chunk.choices[0].text async for chunk in stream])


async def openai_responses(gateway: Running) -> str:
    async with openai_sdk(gateway) as sdk:
        stream = await sdk.responses.create(model="fake-model", input="hi", stream=True)
        return "".join([event.delta async for event in stream if event.type == "response.output_text.delta"])


async def openai_responses_helper(gateway: Running) -> str:
    async with openai_sdk(gateway) as sdk, sdk.responses.stream(model="fake-model", input="hi") as stream:
        async for _ in stream:
            pass
        return (await stream.get_final_response()).output_text


async def anthropic_messages(gateway: Running) -> str:
    async with anthropic.AsyncAnthropic(base_url=gateway.base_url, api_key=key_of("a"), max_retries=0) as sdk:
        asked: Any = {"model": "claude-x", "max_tokens": 99, "messages": [{"role": "user", "content": "hi"}]}
        async with sdk.messages.stream(**asked) as stream:
            text = "".join([piece async for piece in stream.text_stream])
            assert (await stream.get_final_message()).stop_reason == "end_turn"
            return text


SDKS = pytest.mark.parametrize(
    "sdk", [openai_chat, openai_completions, openai_responses, openai_responses_helper, anthropic_messages]
)
Sdk = Callable[[Running], Awaitable[str]]
SAID = "one two  three four"


@SDKS
async def test_an_sdk_waits_through_line_and_prefill(sdk: Sdk) -> None:
    async def waits(knobs: dict[str, Any]) -> None:
        knobs = knobs | {"reply_text": SAID, "silent_s": 0.08}
        async with running(knobs, streams=1, limits=EARLY, sweep_s=SWEEP_S) as gateway, asyncio.TaskGroup() as group:
            await busy(gateway, group)
            assert await sdk(gateway) == SAID

    async with asyncio.TaskGroup() as all_silences:
        for knobs in SILENCES.values():
            all_silences.create_task(waits(knobs))


@SDKS
async def test_an_sdk_takes_no_broken_answer_for_a_whole_one(sdk: Sdk) -> None:
    async with running({"reply_text": SAID}, limits=EARLY, sweep_s=SWEEP_S) as gateway:
        for wait_s in (0.0, 0.04):
            for fault in ({"cut_after": 2}, {"error_in_stream": 2}, {"truncate_after": 4}):
                no_fault = {"cut_after": None, "error_in_stream": None, "truncate_after": None}
                gateway.set_knobs(silent_s=wait_s, **no_fault | fault)
                try:
                    text = await sdk(gateway)
                except (openai.OpenAIError, anthropic.AnthropicError, RuntimeError):
                    continue
                assert sdk is openai_responses, "which hands the failure over as an event"
                assert text in SAID


async def test_a_heartbeat_is_no_chunk_for_those_who_break_on_one() -> None:
    """opencode, Cline and llm take each data event of these two for a chunk."""
    for path in (CHAT, COMPLETIONS):
        async with running({"silent_s": 0.1}, limits=EARLY, sweep_s=SWEEP_S) as gateway:
            answer = await exchange(gateway, post(ask(path, stream=True), path=path))
        assert all(value == "[DONE]" or value["choices"] for value in forms.values(answer))
        assert forms.beats(path, answer)
