"""Asks the engine how many tokens a body has. Touches the engine's address and the loop's clock.

Rules:
- Counting is no stream: it is never behind admission, and a box that is full still counts.
- Few at a time. What decides whether a prompt fits has its own places, so that clients that only ask cannot
  take them.
- An engine that does not count in time, or not at all, gives None. Nobody guesses in its place. The time for a
  place counts too: who asked does not wait longer than that.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import orjson

from gateway.dialects.responses import RESPONSES
from gateway.engine_errors import read_error
from gateway.meter import chat_usage
from gateway.parsing import parse
from gateway.problem import Problem, count_failed
from gateway.taps import JsonTap
from gateway.upstream import EngineAddress, EngineError, send

PLACES = 8
PER_SEAT = 2
PLACE_S = 2.0
LIMIT_S = 5.0
"""An engine counts 200,000 tokens in half a second. Source: vLLM 0.26, measured."""
TOKENIZE = "/tokenize"
"""vLLM's counter of chat bodies and of plain prompts."""


class Counting:
    """The places of one process: those that decide whether a prompt fits, and those of clients that want to know."""

    def __init__(self) -> None:
        self._checks = asyncio.Semaphore(PLACES)
        self._checks_of: dict[str, asyncio.Semaphore] = {}
        self._asked = asyncio.Semaphore(PLACES)
        self._asked_of: dict[str, asyncio.Semaphore] = {}

    async def check(
        self, seat: str, address: EngineAddress, key: str | None, path: str, body: bytes
    ) -> int | Problem | None:
        """Tokens of a request that waits to be let in, or what is wrong with it. A client hears nothing meanwhile: one
        that gets no place soon is told to come back."""
        of_seat = self._checks_of.setdefault(seat, asyncio.Semaphore(PER_SEAT))
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(PLACE_S):
                    for places in (of_seat, self._checks):
                        await stack.enter_async_context(places)
            except TimeoutError:
                return count_failed()
            return await _in_time(address, key, path, body)

    async def asked(
        self, seat: str, address: EngineAddress, key: str | None, path: str, body: bytes
    ) -> int | Problem | None:
        """Tokens for a client that wants to know, or what is wrong with its request."""
        of_seat = self._asked_of.setdefault(seat, asyncio.Semaphore(PER_SEAT))
        try:
            async with asyncio.timeout(LIMIT_S), of_seat, self._asked:
                return await _in_time(address, key, path, body)
        except TimeoutError:
            return None


async def _in_time(address: EngineAddress, key: str | None, path: str, body: bytes) -> int | Problem | None:
    try:
        async with asyncio.timeout(LIMIT_S):
            return await count(address, key, path, body)
    except (TimeoutError, EngineError):
        return None


async def count(address: EngineAddress, key: str | None, path: str, body: bytes) -> int | Problem | None:
    """What the engine answers at its counter `path`: the number, a refusal of this body, or nothing of use. Raises
    EngineError."""
    headers = {"accept": "application/json"} | ({"authorization": f"Bearer {key}"} if key is not None else {})
    reply = await send(address, path, headers, body, lambda status, _: JsonTap(status, chat_usage), lambda: None)
    try:
        await reply.wait_headers(None)
        answer = await reply.read_all()
    finally:
        reply.abort()
    if reply.status == 200:
        return read_count(answer)
    problem = read_error(reply.status, answer, path)
    return None if problem.heals else problem


def read_count(answer: bytes) -> int | None:
    """The number in a counter's answer: `input_tokens` (OpenAI, Anthropic), or `count` (vLLM)."""
    try:
        said = orjson.loads(answer)
    except orjson.JSONDecodeError:
        return None
    for name in ("input_tokens", "count"):
        value: Any = said.get(name) if isinstance(said, dict) else None
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def is_exact(path: str, counter: str) -> bool:
    """False for the one pair whose number lacks what the template adds: /v1/responses by its texts."""
    return path != RESPONSES.path or counter != TOKENIZE


def body_for(path: str, counter: str, body: bytes) -> bytes:
    """What the counter gets to count a `body` of the dialect at `path`: the same, but for the one form that
    `/tokenize` does not know, whose texts are put together."""
    return body if is_exact(path, counter) else plain_text(body)


def plain_text(raw: bytes) -> bytes:
    """A completions body with all texts of a request put together, for a counter that knows no better: the
    template's own tokens are missing."""
    body = parse(raw)
    texts = list(_texts([body.get(field) for field in ("instructions", "system", "tools", "messages", "input")]))
    return json.dumps({"model": body.get("model"), "prompt": "\n".join(texts)}).encode()


def _texts(value: Any) -> Iterator[str]:
    """Every string in a JSON value, in order."""
    pending = [value]
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            pending.extend(reversed(value.values()))
        elif isinstance(value, list):
            pending.extend(reversed(value))
