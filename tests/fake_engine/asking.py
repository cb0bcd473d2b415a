"""What tests of the engine itself have in common: a served engine with a client, requests, and replies read."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from tests.fake_engine.knobs import Knobs, merged
from tests.fake_engine.serving import Served, serving

FAST = 0.001
"""A `time_scale` at which decoding takes no time worth naming."""
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"


def chat(text: str = "hello", **fields: Any) -> dict[str, Any]:
    """A chat request with one message."""
    return {"model": "fake-model", "messages": [{"role": "user", "content": text}], **fields}


def ask(path: str, text: str = "hello", *, max_tokens: int | None = None, **fields: Any) -> dict[str, Any]:
    """A request with one text of the user, for any of the four paths."""
    limit = {} if max_tokens is None else {"max_output_tokens" if path == RESPONSES else "max_tokens": max_tokens}
    if path in (CHAT, MESSAGES):
        return chat(text, **limit, **fields)
    return {"model": "fake-model", "input" if path == RESPONSES else "prompt": text, **limit, **fields}


@asynccontextmanager
async def served(key: str | None = None, **knobs: Any) -> AsyncIterator[tuple[Served, httpx.AsyncClient]]:
    """An engine with `knobs` and a client of it."""
    values: dict[str, Any] = {"time_scale": FAST, **knobs}
    async with (
        serving(merged(Knobs(), values), key=key) as engine,
        httpx.AsyncClient(base_url=engine.url, trust_env=False) as client,
    ):
        yield engine, client


def events(body: bytes) -> list[Any]:
    """The data of each event of a stream, parsed; the ending stays text. A name must be that of the data."""
    parts = body.decode().split("\n\n")
    assert parts.pop() == ""
    values: list[Any] = []
    for part in parts:
        name, _, data = part.rpartition("\n")
        assert data.startswith("data: ")
        values.append(data[6:] if data == "data: [DONE]" else json.loads(data[6:]))
        assert name == (f"event: {values[-1]['type']}" if name else "")
    return values


def texts(path: str, stream: list[Any]) -> list[str]:
    """The text pieces of a parsed stream, one for each chunk that has any."""
    return list(_texts(path, stream))


def _texts(path: str, stream: list[Any]) -> Iterator[str]:
    for value in stream:
        if path in (CHAT, COMPLETIONS):
            choices = value.get("choices", []) if isinstance(value, dict) else []
            pieces = [choice["delta"].get("content") if path == CHAT else choice["text"] for choice in choices]
            yield from (piece for piece in pieces if piece)
        elif value["type"] == "content_block_delta" and value["delta"]["type"] == "text_delta":
            yield value["delta"]["text"]
        elif value["type"] == "response.output_text.delta":
            yield value["delta"]
