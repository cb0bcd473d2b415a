"""What tests of the engine itself have in common: a served engine with a client, requests, and replies read."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from tests.fake_engine.knobs import Knobs, merged
from tests.fake_engine.serving import Served, serving

FAST = 0.001
"""A `time_scale` at which decoding takes no time worth naming."""
CHAT = "/v1/chat/completions"


def chat(text: str = "hello", **fields: Any) -> dict[str, Any]:
    """A chat request with one message."""
    return {"model": "fake-model", "messages": [{"role": "user", "content": text}], **fields}


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
    """The data of each event of a stream, parsed; the ending stays text."""
    parts = body.decode().split("\n\n")
    assert parts.pop() == ""
    assert all(part.startswith("data: ") for part in parts)
    return [part[6:] if part == "data: [DONE]" else json.loads(part[6:]) for part in parts]
