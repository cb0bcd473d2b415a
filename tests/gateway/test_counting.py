"""The engine's count: the same as its usage, in its own places, never waited for too long, never guessed."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable
from typing import Any

import pytest

from gateway import counting
from gateway.counting import PER_SEAT, PLACES, TOKENIZE, Counting, body_for, read_count
from gateway.problem import Problem
from gateway.upstream import EngineAddress
from tests.fake_engine.asking import CHAT, COMPLETIONS, MESSAGES, RESPONSES, ask, served
from tests.gateway.scripted import CLOSE, HOLD, OK, RESET, Script, scripted

pytestmark = pytest.mark.anyio
COUNTER = CHAT + "/input_tokens"


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine has a fifth of a second to count."""
    monkeypatch.setattr(counting, "LIMIT_S", 0.2)


def at(url: str) -> EngineAddress:
    return EngineAddress.parse(url)


@pytest.mark.parametrize(
    ("path", "counter"),
    [
        (CHAT, COUNTER),
        (CHAT, TOKENIZE),
        (COMPLETIONS, TOKENIZE),
        (RESPONSES, RESPONSES + "/input_tokens"),
        (MESSAGES, MESSAGES + "/count_tokens"),
    ],
)
async def test_the_count_is_what_usage_says(path: str, counter: str) -> None:
    async with served(key="k") as (engine, client):
        body = json.dumps(ask(path, "hello " * 50, max_tokens=1)).encode()
        counted = await Counting().check("a", at(engine.url), "k", counter, body_for(path, counter, body))
        reply = (await client.post(path, content=body, headers={"authorization": "Bearer k"})).json()["usage"]
        assert counted == reply.get("prompt_tokens", reply.get("input_tokens"))


async def test_a_counter_that_knows_no_items_gets_their_texts() -> None:
    body = json.dumps({"model": "m", "input": [{"role": "user", "content": "hello"}], "instructions": "i"}).encode()
    assert body_for(RESPONSES, RESPONSES + "/input_tokens", body) is body
    assert body_for(CHAT, TOKENIZE, body) is body
    plain = json.loads(body_for(RESPONSES, TOKENIZE, body))
    assert plain == {"model": "m", "prompt": "i\nuser\nhello"}
    async with served(style="vllm") as (engine, _):
        counted = await Counting().check("a", at(engine.url), None, TOKENIZE, json.dumps(plain).encode())
        assert counted == len("i\nuser\nhello") // 4


@pytest.mark.parametrize(
    ("answer", "tokens"),
    [
        (b'{"input_tokens":33}', 33),
        (b'{"count":33,"max_model_len":9}', 33),
        (b'{"object":"response.input_tokens","input_tokens":1}', 1),
        (b'{"tokens":[]}', None),
        (b'{"input_tokens":0}', None),
        (b'{"input_tokens":-1}', None),
        (b'{"input_tokens":true}', None),
        (b'{"input_tokens":"33"}', None),
        (b'{"input_tokens":3.5}', None),
        (b'{"input_tokens":null,"count":5}', 5),
        (b"[33]", None),
        (b"33", None),
        (b"null", None),
        (b"<html>", None),
        (b"", None),
        (b'{"input_tokens":', None),
    ],
)
async def test_what_an_engine_answers(answer: bytes, tokens: int | None) -> None:
    assert read_count(answer) == tokens
    async with scripted([OK + b"content-length: %d\r\n\r\n" % len(answer) + answer]) as script:
        assert await Counting().check("a", at(script.url), None, COUNTER, b"{}") == tokens
        assert await Counting().asked("a", at(script.url), None, COUNTER, b"{}") == tokens


@pytest.mark.parametrize(
    ("pieces", "then"),
    [
        ([], CLOSE),
        ([], RESET),
        ([b"SSH-2.0\r\n"], HOLD),
        ([OK], CLOSE),
        ([OK + b'content-length: 50\r\n\r\n{"input_tokens":3}'], CLOSE),
        ([OK + b'\r\n{"input_tokens":3'], CLOSE),
        ([OK + b"content-length: 3\r\n\r\n\xff\xfe\x00"], CLOSE),
        ([b"HTTP/1.1 204 No\r\n\r\n"], CLOSE),
        ([b"HTTP/1.1 302 No\r\nlocation: /\r\ncontent-length: 0\r\n\r\n"], CLOSE),
        ([b'HTTP/1.1 500 No\r\ncontent-length: 18\r\n\r\n{"input_tokens":3}'], CLOSE),
    ],
)
async def test_no_answer_is_no_number(pieces: list[bytes], then: str) -> None:
    async with scripted(pieces, then) as script:
        assert not isinstance(await Counting().check("a", at(script.url), None, COUNTER, b"{}"), int)
        assert not isinstance(await Counting().asked("a", at(script.url), None, COUNTER, b"{}"), int)


async def test_an_engine_that_is_gone_does_not_count() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening
        address = at(f"http://127.0.0.1:{taken.getsockname()[1]}")
        assert await Counting().check("a", address, None, COUNTER, b"{}") is None
        assert await Counting().asked("a", address, None, COUNTER, b"{}") is None


async def test_a_request_that_the_engine_refuses_is_told_to_who_asked() -> None:
    async with served() as (engine, _):
        body = json.dumps({"messages": 5}).encode()
        problem = await Counting().asked("a", at(engine.url), None, MESSAGES + "/count_tokens", body)
        assert isinstance(problem, Problem)
        assert (problem.status, problem.heals) == (400, False)
        assert await Counting().check("a", at(engine.url), None, MESSAGES + "/count_tokens", body) == problem
    async with served(key="k") as (engine, _):
        assert await Counting().asked("a", at(engine.url), "wrong", COUNTER, b"{}") is None, "not the client's fault"


@pytest.mark.usefixtures("soon")
async def test_an_engine_that_hangs_is_given_up_and_left() -> None:
    async with served(hang_counts=True) as (engine, _):
        assert await Counting().check("a", at(engine.url), None, COUNTER, b"{}") is None
    async with scripted([OK], HOLD) as script:
        assert await Counting().check("a", at(script.url), None, COUNTER, b"{}") is None
        await asyncio.wait_for(script.gone.wait(), 1)


async def held(script: Script, calls: list[Awaitable[Any]]) -> tuple[int, list[Any]]:
    """How many of `calls` the engine sees at once, and how all ended."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    for _ in range(50):
        await asyncio.sleep(0.001)
    return len(script.requests), await asyncio.gather(*tasks)


@pytest.mark.usefixtures("soon")
async def test_few_are_counted_at_a_time_and_who_waits_for_a_place_waits_no_longer_than_the_others() -> None:
    async with scripted([], HOLD) as script:
        desk, address = Counting(), at(script.url)
        began_s = asyncio.get_running_loop().time()
        checks = [desk.check(f"s{n}", address, None, COUNTER, b"{}") for n in range(3 * PLACES)]
        seen, answers = await held(script, list(checks))
        assert (seen, answers) == (PLACES, [None] * 3 * PLACES)
        assert asyncio.get_running_loop().time() - began_s < 1.0


@pytest.mark.usefixtures("soon")
async def test_a_seat_that_only_asks_takes_no_place_of_others() -> None:
    async with scripted([], HOLD) as script:
        desk, address = Counting(), at(script.url)
        began_s = asyncio.get_running_loop().time()
        of_one = [desk.asked("a", address, None, COUNTER, b"{}") for _ in range(20)]
        of_other = [desk.asked("b", address, None, COUNTER, b"{}")]
        checks = [desk.check(f"s{n}", address, None, COUNTER, b"{}") for n in range(PLACES)]
        seen, answers = await held(script, [*of_one, *of_other, *checks])
        assert seen == PER_SEAT + 1 + PLACES
        assert answers == [None] * (21 + PLACES)
        assert asyncio.get_running_loop().time() - began_s < 1.0, "the last of twenty waits no longer than the first"


@pytest.mark.usefixtures("soon")
async def test_places_come_back() -> None:
    desk = Counting()
    async with scripted([], HOLD) as script:
        calls = [desk.asked("a", at(script.url), None, COUNTER, b"{}") for _ in range(20)]
        assert await asyncio.gather(*calls) == [None] * 20
    async with served() as (engine, _):
        body = json.dumps(ask(CHAT)).encode()
        counts = await asyncio.gather(*(desk.asked("a", at(engine.url), None, COUNTER, body) for _ in range(5)))
        assert len(set(counts)) == 1
        assert isinstance(counts[0], int)


async def test_a_seat_has_few_places_and_who_gets_none_soon_is_told_to_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert (PER_SEAT, PLACES, counting.PLACE_S) == (2, 8, 2.0)
    monkeypatch.setattr(counting, "PLACE_S", 0.1)
    monkeypatch.setattr(counting, "LIMIT_S", 0.5)
    async with scripted([], HOLD) as script:
        desk, address = Counting(), at(script.url)
        of_one = [asyncio.create_task(desk.check("a", address, None, COUNTER, b"{}")) for _ in range(6)]
        await asyncio.sleep(0.02)
        assert len(script.requests) == PER_SEAT
        of_other = asyncio.create_task(desk.check("b", address, None, COUNTER, b"{}"))
        await asyncio.sleep(0.02)
        assert len(script.requests) == PER_SEAT + 1, "another seat has its own"
        told, _ = await asyncio.wait([*of_one, of_other], timeout=0.25)
        for task in told:
            problem = task.result()
            assert isinstance(problem, Problem)
            assert (problem.status, problem.code, problem.heals) == (503, "count_failed", True)
        assert told == set(of_one[PER_SEAT:])
        assert await asyncio.gather(*of_one[:PER_SEAT], of_other) == [None] * (PER_SEAT + 1)
        assert len(script.requests) == PER_SEAT + 1


async def test_many_seats_share_the_places_and_who_gets_none_gives_its_own_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(counting, "PLACE_S", 0.1)
    monkeypatch.setattr(counting, "LIMIT_S", 0.3)
    desk = Counting()
    async with scripted([], HOLD) as script:
        address = at(script.url)
        first = [asyncio.create_task(desk.check(f"s{n}", address, None, COUNTER, b"{}")) for n in range(PLACES)]
        await asyncio.sleep(0.02)
        late = await asyncio.gather(*(desk.check("a", address, None, COUNTER, b"{}") for _ in range(3)))
        assert [isinstance(problem, Problem) and problem.code for problem in late] == ["count_failed"] * 3
        assert len(script.requests) == PLACES
        gone = asyncio.create_task(desk.check("a", address, None, COUNTER, b"{}"))
        await asyncio.sleep(0.02)
        gone.cancel()
        await asyncio.gather(*first, gone, return_exceptions=True)
    async with served() as (engine, _):
        body = json.dumps(ask(CHAT)).encode()
        counts = await asyncio.gather(*(desk.check("a", at(engine.url), None, COUNTER, body) for _ in range(5)))
        assert all(isinstance(tokens, int) for tokens in counts)
