"""Whether a request fits the engine, and what becomes of an answer that is longer than what is left."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest

from gateway import problem as problems
from gateway.care import Prompt
from gateway.counting import TOKENIZE, Counting
from gateway.dialects import Dialect, Prepared
from gateway.dialects.messages import MESSAGES
from gateway.dialects.openai import CHAT, COMPLETIONS
from gateway.dialects.responses import RESPONSES
from gateway.dialects.traits import Traits
from gateway.fit import FLAGGED, fitted, misfit
from gateway.limiter import Request
from gateway.prefix.fingerprint import fingerprint
from gateway.problem import Problem
from gateway.state import EngineAbilities
from tests.fake_engine.asking import ask
from tests.gateway.running import ABILITIES, Running, running
from tests.gateway.wire import exchange, post

DIALECTS: tuple[Dialect, ...] = (CHAT, COMPLETIONS, RESPONSES, MESSAGES)
EACH = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.path)
PLAIN, IMAGE = Traits(), Traits(image_at="messages[0].content[1]")
PARTIAL, FLAGGED_PARTIAL = Traits(continues_at="messages[1]"), Traits(continues_at="messages[1]", continues_asked=True)
C = CHAT.path


@pytest.mark.parametrize(
    ("abilities", "traits", "code"),
    [
        ({}, PLAIN, None),
        ({"dialects": None}, PLAIN, None),
        ({"dialects": (C,)}, PLAIN, None),
        ({"dialects": ("/v1/responses",)}, PLAIN, "dialect_not_served"),
        ({"dialects": ()}, PLAIN, "dialect_not_served"),
        ({"images": None}, IMAGE, None),
        ({"images": True}, IMAGE, None),
        ({"images": False}, IMAGE, "images_not_supported"),
        ({"images": False}, PLAIN, None),
        ({}, PARTIAL, "continuation_not_supported"),
        ({"continuation": ("/v1/messages",)}, PARTIAL, "continuation_not_supported"),
        ({"continuation": (C,)}, PARTIAL, None),
        ({"continuation": (C,)}, FLAGGED_PARTIAL, "continuation_not_supported"),
        ({"continuation": (C + FLAGGED,)}, FLAGGED_PARTIAL, None),
        ({"continuation": (C + FLAGGED,)}, PARTIAL, "continuation_not_supported"),
        ({"continuation": (C,)}, Traits(continues_asked=True), "continuation_not_supported"),
        ({"dialects": (), "images": False}, IMAGE, "dialect_not_served"),
    ],
)
def test_what_the_engine_showed_at_its_start_decides(
    abilities: dict[str, Any], traits: Traits, code: str | None
) -> None:
    problem = misfit(Prepared(b"{}", True, "m", traits), C, EngineAbilities(**abilities))
    assert (problem.code if problem else None) == code
    if problem is not None:
        assert problem.heals is False
        assert problem.param in (None, traits.image_at, traits.continues_at, "continue_final_message")
        assert (problem.param or C) in problem.message


def prepared(dialect: Dialect, text: str, max_tokens: int | None = None, **fields: Any) -> Prepared:
    raw = json.dumps(ask(dialect.path, text, max_tokens=max_tokens, **fields)).encode()
    result = dialect.prepare(raw, json.loads(raw))
    assert isinstance(result, Prepared)
    return result


def see(gateway: Running, **fields: Any) -> None:
    """The engine as the gateway sees it from now on."""
    core = gateway.core
    core.box = core.box.model_copy(update={"engine": core.engine_state.model_copy(update=fields)})


def prompt(gateway: Running, text: str = "") -> Prompt:
    """Of a request of the seat a."""
    of = fingerprint({"messages": [{"role": "user", "content": text}]})
    return Prompt(gateway.core.care, of, "a", CHAT.path, True, lambda: None)


async def fit(gateway: Running, dialect: Dialect, request: Prepared, text: str = "") -> Prepared | Problem:
    assert gateway.core.engine is not None
    return await fitted(gateway.core, gateway.core.engine, dialect, request, prompt(gateway, text))


def counted(gateway: Running) -> int:
    """How often the engine has counted."""
    return sum(gateway.engine.stats.paths[path] for path in ABILITIES.counters.values())


async def tokens_of(gateway: Running, dialect: Dialect, request: Prepared) -> int:
    assert gateway.core.engine is not None
    engine, counter = gateway.core.engine, ABILITIES.counters[dialect.path]
    tokens = await gateway.core.counting.check("a", engine.address, engine.key, counter, request.body)
    assert tokens is not None
    return tokens


TEXT = "some words of a prompt " * 400


@pytest.mark.anyio
@EACH
async def test_a_prompt_must_leave_room_for_an_answer(dialect: Dialect) -> None:
    async with running() as gateway:
        request = prepared(dialect, TEXT)
        tokens = await tokens_of(gateway, dialect, request)
        for window, fits in ((tokens - 1, False), (tokens, False), (tokens + 1, True)):
            see(gateway, context_tokens=window)
            gateway.set_knobs(context_tokens=window)
            result = await fit(gateway, dialect, request)
            if fits:
                assert result is request
            else:
                assert isinstance(result, Problem)
                assert (result.status, result.tokens, result.window) == (400, tokens, window)
            answer = await exchange(gateway, post(request.body, path=dialect.path))
            assert (answer.status == 200) is fits, "as the engine itself would have it"


@pytest.mark.anyio
@EACH
async def test_an_answer_that_is_too_long_is_shortened_to_what_is_left(dialect: Dialect) -> None:
    async with running() as gateway:
        request = prepared(dialect, TEXT, max_tokens=500)
        tokens = await tokens_of(gateway, dialect, request)
        field = "max_output_tokens" if dialect is RESPONSES else "max_tokens"
        for left, given in ((1, 1), (499, 499), (500, 500), (501, 500)):
            see(gateway, context_tokens=tokens + left)
            result = await fit(gateway, dialect, request)
            assert isinstance(result, Prepared)
            assert json.loads(result.body) == json.loads(request.body) | {field: given}
            assert result.body == request.body.replace(b"500", b"%d" % given)
            assert (result is request) is (given == 500)


@pytest.mark.anyio
async def test_of_two_bounds_the_one_that_counts_is_shortened() -> None:
    async with running() as gateway:
        request = prepared(CHAT, TEXT, max_tokens=700, max_completion_tokens=500)
        tokens = await tokens_of(gateway, CHAT, request)
        see(gateway, context_tokens=tokens + 9)
        result = await fit(gateway, CHAT, request)
        assert isinstance(result, Prepared)
        bounds = {name: value for name, value in json.loads(result.body).items() if name.startswith("max")}
        assert bounds == {"max_tokens": 700, "max_completion_tokens": 9}


@pytest.mark.anyio
async def test_what_nobody_knows_is_let_through_uncounted() -> None:
    async with running() as gateway:
        request = prepared(CHAT, TEXT, max_tokens=500)
        see(gateway, context_tokens=None)
        assert await fit(gateway, CHAT, request) is request
        see(gateway, context_tokens=10, abilities=ABILITIES.model_copy(update={"counters": {}}))
        assert await fit(gateway, CHAT, request) is request
        assert counted(gateway) == 0


@pytest.mark.anyio
async def test_an_engine_that_does_not_count_lets_the_request_through() -> None:
    async with running({"counts": []}) as gateway:
        see(gateway, context_tokens=1000)
        request = prepared(CHAT, TEXT, max_tokens=500)
        assert await fit(gateway, CHAT, request) is request
        assert counted(gateway) == 1
    gone = prepared(CHAT, TEXT)
    async with running(context_tokens=1000) as gateway:
        engine = gateway.core.engine
        assert engine is not None
        nobody = type(engine)(type(engine.address)("127.0.0.1", 1, False, ""), None, "x")
        assert await fitted(gateway.core, nobody, CHAT, gone, prompt(gateway)) is gone


@pytest.mark.anyio
async def test_only_what_may_not_fit_is_counted_and_a_full_box_counts_more() -> None:
    async with running(streams=1) as gateway, contextlib.AsyncExitStack() as stack:
        request = prepared(CHAT, TEXT)
        see(gateway, context_tokens=len(request.body))
        assert await fit(gateway, CHAT, request) is request
        assert counted(gateway) == 0, "a third of a token a byte leaves room"
        stack.enter_context(gateway.core.limiter.enter(Request("b", None, 1, lambda _: None)))
        assert await fit(gateway, CHAT, request) is request
        assert counted(gateway) == 1, "its 200 goes out before the engine sees it"
        small = prepared(CHAT, "x")
        assert await fit(gateway, CHAT, small) is small
        assert counted(gateway) == 1


@pytest.mark.anyio
async def test_what_waits_though_a_ticket_is_free_is_counted_too() -> None:
    async with running(streams=4) as gateway, contextlib.AsyncExitStack() as stack:
        request = prepared(CHAT, TEXT)
        see(gateway, context_tokens=len(request.body))
        cold = "cold " * 40_000
        assert await fit(gateway, CHAT, request, cold) is request
        assert counted(gateway) == 0, "nothing runs, and it goes to the engine at once"
        stack.enter_context(gateway.core.limiter.enter(Request("b", None, 1, lambda _: None)))
        assert await fit(gateway, CHAT, request, "warm") is request
        assert counted(gateway) == 0, "one of few new tokens does not wait"
        assert await fit(gateway, CHAT, request, cold) is request
        assert counted(gateway) == 1, "a cold one may wait for the lane"
        gateway.core.limiter.hold(True)
        assert await fit(gateway, CHAT, request, "warm") is request
        assert counted(gateway) == 2, "the box is paused"
        gateway.core.limiter.hold(False)


@pytest.mark.anyio
async def test_a_count_teaches_the_estimate_unless_there_is_an_image() -> None:
    async with running() as gateway:
        before = gateway.core.estimate.tok_per_byte
        see(gateway, context_tokens=3000, abilities=ABILITIES.model_copy(update={"images": True}))
        gateway.set_knobs(images=True)
        parts = [{"type": "text", "text": TEXT}, {"type": "image_url", "image_url": {"url": "data:"}}]
        raw = json.dumps({"messages": [{"role": "user", "content": parts}]}).encode()
        image = CHAT.prepare(raw, json.loads(raw))
        assert isinstance(image, Prepared)
        await fit(gateway, CHAT, image)
        assert (counted(gateway), gateway.core.estimate.tok_per_byte) == (1, before)
        await fit(gateway, CHAT, prepared(CHAT, TEXT))
        assert counted(gateway) == 2
        assert gateway.core.estimate.tok_per_byte < before


@pytest.mark.anyio
async def test_a_misfit_is_told_without_counting() -> None:
    async with running(context_tokens=10, abilities=EngineAbilities(dialects=())) as gateway:
        result = await fit(gateway, CHAT, prepared(CHAT, TEXT))
        assert isinstance(result, Problem)
        assert (result.status, counted(gateway)) == (501, 0)


# Counters as vLLM has them


@pytest.mark.anyio
@pytest.mark.parametrize(("by_text", "told"), [(9000, 9000), (3000, 4097), (None, 4097)])
async def test_a_counter_that_refuses_what_is_too_long_is_replaced_by_the_texts_alone(
    monkeypatch: pytest.MonkeyPatch, by_text: int | None, told: int
) -> None:
    """vLLM 0.26 answers 500 at /v1/messages/count_tokens beyond its window, and counts any text at /tokenize."""
    asked: list[tuple[str, bytes]] = []

    async def check(self: Counting, seat: str, *where: object) -> int | Problem | None:
        _, _, path, body = where
        assert isinstance(path, str)
        assert isinstance(body, bytes)
        asked.append((path, body))
        return by_text if path == TOKENIZE else problems.context_too_long(4097, 4096)

    monkeypatch.setattr(Counting, "check", check)
    async with running(context_tokens=4096) as gateway:
        request = prepared(MESSAGES, "word " * 9000)
        result = await fit(gateway, MESSAGES, request)
    assert [path for path, _ in asked] == ["/v1/messages/count_tokens", TOKENIZE]
    assert "word word" in json.loads(asked[1][1])["prompt"]
    assert result == problems.context_too_long(told, 4096)


@pytest.mark.anyio
async def test_an_answer_is_not_shortened_by_a_count_that_is_too_low() -> None:
    """/v1/responses by its texts lacks what the template adds; without a bound vLLM takes exactly what is left."""
    abilities = ABILITIES.model_copy(update={"counters": {RESPONSES.path: TOKENIZE}})
    async with running(context_tokens=4096, abilities=abilities) as gateway:
        result = await fit(gateway, RESPONSES, prepared(RESPONSES, "word " * 100, max_tokens=5000))
    assert isinstance(result, Prepared)
    assert "max_output_tokens" not in json.loads(result.body)
