"""How near the estimate comes to an engine that keeps a prompt in each of four sequences and shares none: llama.cpp.

Its blocks are not shared as the index believes; what the engine says mends that often enough (measured)."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import httpx
import pytest

from appliance.engine.embedded_child import CONTEXT_TOKENS
from gateway.meter import Usage, chat_usage
from gateway.prefix.fingerprint import fingerprint
from gateway.prefix.index import PrefixIndex
from tests.appliance.test_embedded import Running, prepared, started
from tests.fake_engine.asking import CHAT
from tests.gateway.prefix.traffic import Mix, Reply

REQUESTS = 100


async def asked(client: httpx.AsyncClient, body: dict[str, Any], max_tokens: int) -> tuple[str, Usage]:
    answer = await client.post(CHAT, json={**body, "max_tokens": max_tokens})
    assert answer.status_code == 200, answer.text
    value = answer.json()
    usage = chat_usage(value["usage"])
    assert usage is not None
    return value["choices"][0]["message"]["content"], usage


async def errors(running: Running) -> list[float]:
    """Per request, as shares of the prompt. Prompts are short: a box may read 50 tokens a second."""
    index, mix, draw = PrefixIndex(CONTEXT_TOKENS), Mix(6, scale=0.02, agents=8, paths=(CHAT,)), random.Random(6)
    found: list[float] = []
    headers = {"Authorization": f"Bearer {running.key}"}
    async with httpx.AsyncClient(base_url=running.url, headers=headers, timeout=120, trust_env=False) as client:
        for now in range(REQUESTS):
            one = mix.next()
            body = one.body()
            reading = index.begin(fingerprint(body), one.seat, now)
            text, usage = await asked(client, body, draw.randrange(1, 6))
            index.end(reading, usage, read=True, now_s=now)
            one.answered(Reply(text), now)
            one.busy = False
            assert usage.cached_tokens is not None
            found.append(abs(reading.expected.cached_tokens - usage.cached_tokens) / usage.prompt_tokens)
    return found


@pytest.mark.slow
def test_half_of_all_estimates_are_within_ten_percent_with_the_embedded_engine(tmp_path: Path) -> None:
    engine = prepared(tmp_path)
    with started(engine, tmp_path) as running:
        found = sorted(asyncio.run(errors(running)))
    print(f"embedded: median {found[REQUESTS // 2]:.2%}, p95 {found[REQUESTS * 95 // 100]:.2%}")
    assert found[REQUESTS // 2] <= 0.10
