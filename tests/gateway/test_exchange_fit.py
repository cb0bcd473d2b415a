"""gateway.exchange, whole: requests that the engine cannot serve are told so before a 200, in their own form."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest

from tests.fake_engine.cache import BYTES_PER_TOKEN
from tests.gateway import forms
from tests.gateway.checks import EARLY, busy, ended, refused
from tests.gateway.forms import (
    CHAT,
    COMPLETIONS,
    LIMIT,
    MESSAGES,
    PATHS,
    RESPONSES,
    ROUTES,
    STREAM_OR_NOT,
    WITH_USAGE,
)
from tests.gateway.running import ABILITIES, Running, running
from tests.gateway.wire import Answer, ask, call, exchange, post

pytestmark = pytest.mark.anyio

WINDOW = 1000
LONG = "word " * 1200
"""1500 tokens and a few: counted by the gateway on its own accord."""
STYLES = pytest.mark.parametrize("style", ["llama", "vllm"])


async def true_length(gateway: Running, path: str, text: str) -> int:
    """Tokens of a request as the engine counts them."""
    from tests.fake_engine.counts import count

    counter = ABILITIES.counters[path]
    said = count(json.dumps(ask(path, text)).encode(), counter, gateway.engine.knobs)
    assert isinstance(said, dict)
    return int(said.get("input_tokens", said.get("count")))


async def too_long(path: str, answer: Answer, gateway: Running, tokens: int, window: int = WINDOW) -> None:
    """Check the 400 in the words that the agents of the dialect look for."""
    said = await refused(path, answer, gateway, 400, "context_length_exceeded")
    if path == MESSAGES:
        assert said.message == f"prompt is too long: {tokens} tokens > {window} maximum"
    else:
        assert said.message.startswith(
            f"This model's maximum context length is {window} tokens. However, your messages resulted in {tokens} tok"
        )
    assert said.type == "invalid_request_error"
    assert answer.headers["x-should-retry"] == "false"


# Too long


@ROUTES
@STREAM_OR_NOT
@STYLES
@pytest.mark.parametrize("full", [False, True], ids=["idle", "full"])
async def test_a_prompt_that_does_not_fit_is_a_400_with_its_length_also_on_a_full_box(
    path: str, stream: bool, style: str, full: bool
) -> None:
    knobs = {"context_tokens": WINDOW, "silent_s": 0.06, "style": style}
    async with (
        running(knobs, streams=1, limits=EARLY, context_tokens=WINDOW) as gateway,
        asyncio.TaskGroup() as group,
    ):
        if full:
            await busy(gateway, group)
        answer = await call(gateway, path, LONG, stream=stream)
        await too_long(path, answer, gateway, await true_length(gateway, path, LONG))
        assert gateway.engine.stats.requests == full, "the engine was not asked to answer it"


@ROUTES
@pytest.mark.parametrize("over", [-1, 0, 1])
async def test_the_border_is_the_engines_own(path: str, over: int) -> None:
    """An engine needs room for one token behind the prompt. What waits in line must be told so before its 200."""
    text = "word " * 200
    async with running({"silent_s": 0.06}, streams=1, limits=EARLY, context_tokens=None) as gateway:
        window = await true_length(gateway, path, text) - over
        gateway.set_knobs(context_tokens=window)
        state = gateway.core.engine_state.model_copy(update={"context_tokens": window})
        gateway.core.box = gateway.core.box.model_copy(update={"engine": state})
        async with asyncio.TaskGroup() as group:
            await busy(gateway, group)
            answer = await call(gateway, path, text, stream=True, max_tokens=1)
        if over < 0:
            assert forms.whole(path, answer)
        else:
            assert answer.status == 400
            assert (await refused(path, answer, gateway, 400, "context_length_exceeded")).message


@ROUTES
@STREAM_OR_NOT
@STYLES
async def test_a_length_that_the_engine_knows_only_roughly_is_counted(path: str, stream: bool, style: str) -> None:
    """The gateway was told of a larger window than there is: it hears of the matter from the engine."""
    text, window = "word " * 200, 220
    async with running({"context_tokens": window, "style": style}, context_tokens=WINDOW) as gateway:
        answer = await call(gateway, path, text, stream=stream)
        await too_long(path, answer, gateway, await true_length(gateway, path, text), window)
        assert gateway.engine.stats.rejected == 1


@ROUTES
@STYLES
async def test_an_engine_that_does_not_count_answers_in_its_own_numbers(path: str, style: str) -> None:
    abilities = ABILITIES.model_copy(update={"counters": {}})
    knobs = {"context_tokens": WINDOW, "style": style}
    async with running(knobs, context_tokens=WINDOW, abilities=abilities) as gateway:
        answer = await call(gateway, path, LONG, stream=True)
        length = await true_length(gateway, path, LONG)
        await too_long(path, answer, gateway, length if style == "llama" else WINDOW + 1)
        assert gateway.engine.stats.rejected == 1


@ROUTES
async def test_a_prompt_found_too_long_behind_the_200_is_an_error_that_nobody_tries_again(path: str) -> None:
    text, window = "word " * 200, 220
    knobs = {"context_tokens": window, "silent_s": 0.1, "style": "vllm"}
    async with running(knobs, streams=1, limits=EARLY, context_tokens=2000) as gateway, asyncio.TaskGroup() as group:
        await busy(gateway, group)
        answer = await call(gateway, path, text, stream=True)
        said = await ended(path, answer, gateway, "context_length_exceeded", heals=False)
        assert str(await true_length(gateway, path, text)) in said.message
    assert path != RESPONSES or said.code == "context_length_exceeded"


@ROUTES
@STREAM_OR_NOT
@STYLES
async def test_an_answer_longer_than_what_is_left_is_shortened_and_nothing_else(
    path: str, stream: bool, style: str
) -> None:
    fields = WITH_USAGE if path in (CHAT, COMPLETIONS) and stream else {}
    body = json.dumps(ask(path, LONG[:2400], stream=stream, max_tokens=32_000, **fields)).encode()
    knobs = {"context_tokens": WINDOW, "echo_body": 1, "style": style}
    async with running(knobs, context_tokens=WINDOW) as gateway:
        left = WINDOW - await true_length(gateway, path, LONG[:2400])
        answer = await exchange(gateway, post(body, path=path))
        assert forms.whole(path, answer)
        got = base64.b64decode(gateway.engine.stats.echoes[-1]["body_b64"])
        await gateway.idle()
    assert got == body.replace(b'"%s": 32000' % LIMIT[path].encode(), b'"%s": %d' % (LIMIT[path].encode(), left))
    assert gateway.done()[0]["completion_tokens"] == left
    assert len(forms.text_of(path, answer)) == left * BYTES_PER_TOKEN


@ROUTES
async def test_a_counter_that_hangs_lets_the_request_through(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.counting.LIMIT_S", 0.05)
    async with running({"context_tokens": WINDOW, "hang_counts": True}, context_tokens=WINDOW) as gateway:
        answer = await call(gateway, path, LONG, stream=True)
        assert (await refused(path, answer, gateway, 400, "context_length_exceeded")).message
        assert gateway.engine.stats.rejected == 1


@ROUTES
@STREAM_OR_NOT
async def test_a_seat_that_has_its_counts_under_way_is_told_to_come_back_and_others_are_counted(
    path: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.counting.PLACE_S", 0.05)
    knobs = {"context_tokens": WINDOW, "hang_counts": True}
    counter = ABILITIES.counters[path]
    async with running(knobs, context_tokens=WINDOW) as gateway, asyncio.TaskGroup() as group:
        counted = [group.create_task(call(gateway, path, LONG, stream=stream)) for _ in range(2)]
        await gateway.until(lambda: gateway.engine.stats.paths[counter] == 2)
        answer = await call(gateway, path, LONG, stream=stream)
        await refused(path, answer, gateway, 503, "count_failed")
        assert "x-should-retry" not in answer.headers
        assert gateway.engine.stats.paths[counter] == 2
        gateway.set_knobs(hang_counts=False)
        await too_long(path, await call(gateway, path, LONG, seat="b"), gateway, await true_length(gateway, path, LONG))
        assert not any(task.done() for task in counted)
        for task in counted:
            task.cancel()


BYTES_OF_A_TOKEN = 16
"""As a number: no prompt that fits has more."""


@ROUTES
@STREAM_OR_NOT
async def test_a_body_far_beyond_the_window_is_refused_without_a_count(path: str, stream: bool) -> None:
    def sized(size: int) -> bytes:
        fields = WITH_USAGE if path in (CHAT, COMPLETIONS) and stream else {}
        empty = json.dumps(ask(path, "", stream=stream, **fields)).encode()
        return json.dumps(ask(path, "x" * (size - len(empty)), stream=stream, **fields)).encode()

    counter, most = ABILITIES.counters[path], BYTES_OF_A_TOKEN * WINDOW
    async with running({"context_tokens": WINDOW}, context_tokens=WINDOW) as gateway:
        for size, counts in ((most, 1), (most + 1, 1), (50 * most, 1)):
            body = sized(size)
            assert len(body) == size
            answer = await exchange(gateway, post(body, path=path))
            said = await refused(path, answer, gateway, 400, "context_length_exceeded")
            assert str(WINDOW) in said.message
            assert gateway.engine.stats.paths[counter] == counts, size
        assert gateway.engine.stats.requests == 0


# Images


PICTURE: dict[str, Any] = {
    CHAT: {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    RESPONSES: {"type": "input_image", "image_url": "data:image/png;base64,AAAA"},
    MESSAGES: {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
}
TALKS = pytest.mark.parametrize("path", list(PICTURE), ids=forms.NAMES.get)


def with_picture(path: str, **fields: Any) -> dict[str, Any]:
    message = {"role": "user", "content": [{"type": "text", "text": "look"}, PICTURE[path]]}
    return ask(path, **fields) | {forms.PROMPT[path]: [{"role": "user", "content": "first"}, message]}


@TALKS
@STREAM_OR_NOT
@STYLES
async def test_an_image_for_a_model_that_reads_text_is_a_400(path: str, stream: bool, style: str) -> None:
    body = post(with_picture(path, stream=stream), path=path)
    async with running({"style": style}) as gateway:
        answer = await exchange(gateway, body)
        said = await refused(path, answer, gateway, 400, "images_not_supported")
        assert f"{forms.PROMPT[path]}[1].content[1]" in said.message
        assert gateway.engine.stats.requests == 0
    async with running({"style": style}, abilities=ABILITIES.model_copy(update={"images": None})) as gateway:
        answer = await exchange(gateway, body)  # the engine says so
        assert "image" in (await refused(path, answer, gateway, 400, "images_not_supported")).message
        assert answer.headers["x-should-retry"] == "false"


@TALKS
async def test_an_image_for_a_model_with_eyes_is_passed_on(path: str) -> None:
    async with running({"images": True}, abilities=ABILITIES.model_copy(update={"images": True})) as gateway:
        assert forms.whole(path, await exchange(gateway, post(with_picture(path, stream=True), path=path)))


# A partial assistant turn at the end


PARTIAL = [{"role": "user", "content": "count"}, {"role": "assistant", "content": "one two"}]
FLAGS = {"continue_final_message": True, "add_generation_prompt": False}
CONTINUES = pytest.mark.parametrize("path", [CHAT, MESSAGES], ids=forms.NAMES.get)


@CONTINUES
@STREAM_OR_NOT
async def test_a_partial_turn_is_continued_only_by_an_engine_that_showed_that_it_does(path: str, stream: bool) -> None:
    body = post(ask(path, stream=stream) | {"messages": PARTIAL}, path=path)
    async with running({"continues": False}, abilities=ABILITIES.model_copy(update={"continuation": ()})) as gateway:
        answer = await exchange(gateway, body)
        said = await refused(path, answer, gateway, 400, "continuation_not_supported")
        assert "messages[1]" in said.message
        assert gateway.engine.stats.requests == 0
    async with running({"echo_body": 1}) as gateway:
        assert forms.whole(path, await exchange(gateway, body))
        prompt = gateway.engine.stats.log[0].prompt_tokens
        calls = [*PARTIAL[:1], {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}]
        assert forms.whole(path, await exchange(gateway, post(ask(path) | {"messages": calls}, path=path)))
    assert prompt == len("<|user|>\ncount\n<|assistant|>\none two") // BYTES_PER_TOKEN


async def test_a_partial_turn_that_is_asked_for_by_a_field_has_its_own_proof() -> None:
    body = post(ask(CHAT) | {"messages": PARTIAL} | FLAGS)
    for continuation, status in (((CHAT,), 400), ((CHAT + "#continue_final_message",), 200)):
        abilities = ABILITIES.model_copy(update={"continuation": continuation})
        async with running({"style": "vllm"}, abilities=abilities) as gateway:
            assert (await exchange(gateway, body)).status == status


# A dialect that is not there


@ROUTES
@STREAM_OR_NOT
@STYLES
async def test_a_dialect_that_the_engine_lacks_is_a_501(path: str, stream: bool, style: str) -> None:
    others = tuple(other for other in PATHS if other != path)
    abilities = ABILITIES.model_copy(update={"dialects": others})
    async with running({"style": style}, abilities=abilities) as gateway:
        answer = await call(gateway, path, stream=stream)
        said = await refused(path, answer, gateway, 501, "dialect_not_served")
        assert all(other in said.message for other in others)
        assert gateway.engine.stats.requests == 0
    unknown = ABILITIES.model_copy(update={"dialects": None})
    async with running({"style": style, "dialects": others}, abilities=unknown) as gateway:
        answer = await call(gateway, path, stream=stream)
        assert path in (await refused(path, answer, gateway, 501, "dialect_not_served")).message
        assert answer.headers["x-should-retry"] == "false"
