"""One chat completion, streamed and timed, or one request of any kind. Talks HTTP to the engine and reads the clock.

Rule: tokens are counted by the engine's `usage`, never by chunks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import httpx

from appliance.engine.probe_forms import CHAT, Answer, parsed
from appliance.engine.probe_seen import Streamed


async def stream(
    client: httpx.AsyncClient,
    model: str,
    prompt: str,
    max_tokens: int,
    clock: Callable[[], float],
    *,
    silence_s: float | None = None,
) -> Streamed:
    """A streamed answer to a prompt; see `streamed`."""
    body = {"model": model, "messages": [{"role": "user", "content": prompt}], "max_tokens": max_tokens}
    return await streamed(client, body, clock, silence_s=silence_s)


async def streamed(
    client: httpx.AsyncClient,
    body: Mapping[str, Any],
    clock: Callable[[], float],
    *,
    silence_s: float | None = None,
    enough: Callable[[Streamed], bool] = lambda reply: False,
) -> Streamed:
    """A chat completion, streamed to its end, its first error, or until `enough` of it came. Raises httpx.HTTPError.
    `silence_s`: the longest pause of the engine, None = the client's."""
    request = {**body, "stream": True, "stream_options": {"include_usage": True}}
    timeout = client.timeout if silence_s is None else silence_s
    reply = Streamed(clock())
    async with client.stream("POST", CHAT, json=request, timeout=timeout) as response:
        reply.status = response.status_code
        if reply.status != 200:
            reply.refused = await response.aread()
            return reply
        async for line in response.aiter_lines():
            event = parsed(line.removeprefix("data:").encode()) if line.startswith("data:") else None
            if isinstance(event, dict):
                reply.take(event, clock())
            reply.left = enough(reply)
            if reply.refused or reply.left:
                break
    return reply


async def post(client: httpx.AsyncClient, path: str, body: Mapping[str, Any], limit_s: float) -> Answer:
    """What the engine answers within `limit_s` seconds. Raises nothing."""
    try:
        async with asyncio.timeout(limit_s):
            response = await client.post(path, json=body, timeout=limit_s)
    except (TimeoutError, httpx.TimeoutException):
        return Answer(0, why=f"no answer within {limit_s:g} s")
    except httpx.HTTPError as error:
        return Answer(0, why=str(error) or type(error).__name__)
    return Answer(response.status_code, parsed(response.content))


async def metrics(client: httpx.AsyncClient, limit_s: float) -> str:
    """What the engine counts, in Prometheus' words; "" where it does not tell. Raises nothing."""
    try:
        response = await client.get("/metrics", timeout=limit_s)
    except httpx.HTTPError:
        return ""
    return response.text if response.status_code == 200 else ""
