"""Counting for clients: right, in the dialect's form, and never behind admission."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway import counting
from gateway.dialects.rewrite import BILLING
from gateway.limiter import Request
from gateway.state import BoxState, EngineAbilities, Phase
from tests.fake_engine.asking import MESSAGES, RESPONSES, ask
from tests.gateway.running import ABILITIES, Running, running, seats_toml
from tests.gateway.wire import Answer, connect, exchange, head, post

pytestmark = pytest.mark.anyio
COUNT_TOKENS, INPUT_TOKENS = MESSAGES + "/count_tokens", RESPONSES + "/input_tokens"
BOTH = pytest.mark.parametrize("path", [COUNT_TOKENS, INPUT_TOKENS])
TEXT = "some words " * 40


def dialect_of(path: str) -> str:
    return path.rpartition("/")[0]


def body(path: str, text: str = TEXT, **fields: Any) -> dict[str, Any]:
    return ask(dialect_of(path), text, **fields)


async def asked(gateway: Running, path: str, content: Any = None, **more: Any) -> Answer:
    return await exchange(gateway, post(body(path) if content is None else content, path=path, **more))


def said(path: str, answer: Answer) -> dict[str, Any]:
    """The error, in the form of the path."""
    value = answer.json()
    assert set(value["error"]) == (
        {"type", "message"} if path == COUNT_TOKENS else {"message", "type", "param", "code"}
    )
    assert answer.headers["x-request-id"]
    error: dict[str, Any] = value["error"]
    return error


@contextlib.asynccontextmanager
async def full(gateway: Running) -> AsyncIterator[None]:
    """Every stream and every place in line is taken."""
    with contextlib.ExitStack() as stack:
        for seat in "abcdeabcdeabcde":
            stack.enter_context(gateway.core.limiter.enter(Request(seat, None, 1, lambda _: None)))
        yield


@BOTH
async def test_the_number_is_that_of_the_usage(path: str) -> None:
    async with running() as gateway:
        answer = await asked(gateway, path, headers={"X-Request-Id": "mine"})
        reply = await exchange(gateway, post(body(path, max_tokens=1), path=dialect_of(path)))
        more = {} if path == COUNT_TOKENS else {"object": "response.input_tokens"}
        assert (answer.status, answer.json()) == (200, {"input_tokens": reply.json()["usage"]["input_tokens"], **more})
        assert answer.headers["x-request-id"] == "mine"
        assert (await asked(gateway, path + "?beta=true")).status == 200


async def test_counted_is_what_the_engine_would_get() -> None:
    async with running() as gateway:
        plain = await asked(gateway, COUNT_TOKENS, body(COUNT_TOKENS, system="x"))
        billed = await asked(gateway, COUNT_TOKENS, body(COUNT_TOKENS, system=f"{BILLING} a\nx", model="claude-x"))
    assert plain.json() == billed.json()


@BOTH
async def test_a_full_box_and_a_full_line_count_all_the_same(path: str) -> None:
    async with running(streams=1, admission={"queue_max": 8}) as gateway:
        async with full(gateway):
            assert (await exchange(gateway, post(body(path), path=dialect_of(path)))).status == 429
            answers = await asyncio.gather(*(asked(gateway, path, seat=seat) for seat in "abcde"))
            assert [answer.status for answer in answers] == [200] * 5
        await gateway.idle()


@BOTH
async def test_only_seats_may_ask(path: str) -> None:
    async with running(seats=seats_toml(disabled="d")) as gateway:
        missing, disabled = await asked(gateway, path, seat=None), await asked(gateway, path, seat="d")
        assert (missing.status, said(path, missing)["type"]) == (401, "authentication_error")
        assert (disabled.status, said(path, disabled)["type"]) == (403, "permission_error")
        assert missing.headers["x-should-retry"] == disabled.headers["x-should-retry"] == "false"
        assert gateway.engine.stats.paths[path] == 0


@BOTH
async def test_an_engine_without_a_counter_is_a_501(path: str) -> None:
    async with running(abilities=ABILITIES.model_copy(update={"counters": {}})) as gateway:
        answer = await asked(gateway, path)
        assert (answer.status, answer.headers["x-should-retry"]) == (501, "false")
        assert path in said(path, answer)["message"]
    async with running(abilities=EngineAbilities()) as gateway:
        assert (await asked(gateway, path)).status == 501


@BOTH
async def test_an_engine_that_is_not_ready_is_a_503(path: str) -> None:
    async with running() as gateway:
        state = gateway.core.engine_state.model_copy(update={"phase": Phase.STARTING})
        gateway.core.engine_changed(BoxState(revision=2, engine=state), None)
        answer = await asked(gateway, path)
        assert (answer.status, answer.headers["x-moe-reject-reason"]) == (503, "engine_not_ready")
        assert 10 <= int(answer.headers["retry-after"]) <= 59
        gateway.core.drain()
        draining = await asked(gateway, path)
        assert (draining.status, draining.headers["x-moe-reject-reason"]) == (503, "draining")
        assert "restarted" in said(path, draining)["message"]


@BOTH
@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"{", "JSON"),
        (b"[]", "object"),
        (b"{}", "missing"),
        (b"", "no body"),
        (b'{"model":5,"messages":[1],"input":"x"}', "model"),
    ],
)
async def test_a_bad_body_is_a_400(path: str, content: bytes, word: str) -> None:
    async with running() as gateway:
        answer = await asked(gateway, path, content)
        assert (answer.status, said(path, answer)["type"]) == (400, "invalid_request_error")
        assert word in said(path, answer)["message"]
        assert answer.headers["x-should-retry"] == "false"


@BOTH
async def test_another_model_is_a_404(path: str) -> None:
    async with running() as gateway:
        answer = await asked(gateway, path, body(path) | {"model": "gpt"})
        assert (answer.status, said(path, answer)["type"]) == (404, "not_found_error")


@BOTH
async def test_a_client_that_goes_away_in_its_body_leaves_nothing_behind(path: str) -> None:
    async with running() as gateway:
        raw = post(body(path), path=path)
        async with connect(gateway, raw[:-5]):
            await gateway.until(lambda: gateway.core.bodies.used_bytes > 0)
        await gateway.until(lambda: gateway.core.bodies.used_bytes == 0)
        assert gateway.engine.stats.paths[path] == 0


@BOTH
async def test_a_body_that_is_too_large_or_too_slow_is_told(path: str) -> None:
    async with running(limits={"body_max_bytes": 2048, "body_timeout_s": 0.1}) as gateway:
        large = await asked(gateway, path, body(path, "x" * 3000))
        assert large.status == 413
        async with connect(gateway, head(path, "a", {"Content-Length": "100"}) + b"{") as client:
            assert (await client.answer()).status == 408
        assert gateway.core.bodies.used_bytes == 0


@BOTH
async def test_a_counter_that_hangs_is_a_503_and_takes_no_stream_from_anybody(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "LIMIT_S", 0.6)
    async with running({"hang_counts": True}) as gateway:
        waiting = [asyncio.create_task(asked(gateway, path)) for _ in range(6)]
        await gateway.until(lambda: gateway.engine.stats.paths[path] == counting.PER_SEAT)
        reply = await exchange(gateway, post(body(path, max_tokens=1), path=dialect_of(path)))
        assert reply.status == 200
        assert gateway.engine.stats.paths[path] == counting.PER_SEAT
        for answer in await asyncio.gather(*waiting):
            assert (answer.status, answer.headers["retry-after"]) == (503, "10")
            assert "did not count" in said(path, answer)["message"]
        assert gateway.core.bodies.used_bytes == 0


@BOTH
async def test_a_client_that_goes_away_while_it_is_counted_leaves_nothing(path: str) -> None:
    async with running({"hang_counts": True}) as gateway:
        async with connect(gateway, post(body(path), path=path)):
            await gateway.until(lambda: gateway.engine.stats.paths[path] == 1)
            assert gateway.core.bodies.used_bytes > 0
        await gateway.until(lambda: not gateway.core.bodies.used_bytes, 0.5)


async def test_what_the_engine_finds_wrong_is_the_clients_to_mend() -> None:
    image = {"type": "image", "source": {"type": "base64", "data": ""}}
    content = {"model": "fake-model", "messages": [{"role": "user", "content": [image]}]}
    async with running() as gateway:
        answer = await asked(gateway, COUNT_TOKENS, content)
    assert (answer.status, answer.headers["x-should-retry"]) == (400, "false")
    assert "text only" in said(COUNT_TOKENS, answer)["message"]


async def test_half_characters_are_counted() -> None:
    raw = json.dumps({"model": "fake-model", "messages": [{"role": "user", "content": "x\ud83d"}]}).encode()
    async with running() as gateway:
        assert (await asked(gateway, COUNT_TOKENS, raw)).status == 200
