"""What `demo --check` proves: one streamed completion with true usage, and a page that names the seat.

Touches the box's public port.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from pathlib import Path

import httpx
from rich.console import Console

from appliance.errors import MoeError
from gateway.state import BoxState

LIMIT_S = 60.0
READY_S = 15.0
PROMPT = "What is the capital of France?"


async def answers(box: BoxState) -> None:
    """Return once the gateway says that it serves; the engine is READY already. Raises MoeError after 15 s."""
    async with httpx.AsyncClient(base_url=box.public_url, timeout=READY_S, trust_env=False) as client:
        try:
            async with asyncio.timeout(READY_S):
                while (await client.get("/ready")).status_code != 200:  # noqa: ASYNC110 - only time helps
                    await asyncio.sleep(0.05)
        except (TimeoutError, httpx.HTTPError) as error:
            raise _failed(f"the gateway does not say that it is ready: {error!r}") from error


def children(pid: int | None = None) -> list[int]:
    """All processes below this one: those that must be gone after the stop."""
    found = []
    for tasks in Path(f"/proc/{pid or os.getpid()}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, tasks.read_text().split()):
                found += [child, *children(child)]
    return found


async def check_box(box: BoxState, seat_key: str, admin_token: str, seat: str, console: Console) -> None:
    """Run the checks against a READY box. Raises MoeError naming the check that failed."""
    async with httpx.AsyncClient(base_url=box.public_url, timeout=LIMIT_S, trust_env=False) as client:
        text, usage = await _stream(client, box.engine.models[0], seat_key)
        console.print(f"streamed: {text[:60]!r}, {usage['completion_tokens']} tokens out, {usage['prompt_tokens']} in")
        page = await client.get("/admin", headers={"authorization": f"Bearer {admin_token}"})
        if page.status_code != 200 or f">{seat}<" not in page.text:
            raise _failed(f"the admin page (status {page.status_code}) does not name the seat {seat!r}")
        console.print(f"the admin page names the seat {seat!r}")


async def _stream(client: httpx.AsyncClient, model: str, key: str) -> tuple[str, dict[str, int]]:
    body = {
        "model": model,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 24,
        "messages": [{"role": "user", "content": PROMPT}],
    }
    text, usage, done = "", None, False
    headers = {"authorization": f"Bearer {key}"}
    async with client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
        if answer.status_code != 200:
            raise _failed(f"the completion was answered {answer.status_code}: {(await answer.aread()).decode()}")
        async for line in answer.aiter_lines():
            if line == "data: [DONE]":
                done = True
            elif line.startswith("data: "):
                chunk = json.loads(line[6:])
                usage = chunk.get("usage") or usage
                text += "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])
    if not done:
        raise _failed("the stream ended without [DONE]")
    if not text or usage is None or not usage["completion_tokens"] or not usage["prompt_tokens"]:
        raise _failed(f"the stream has no text or no usage: {text!r}, {usage}")
    return text, usage


def _failed(what: str) -> MoeError:
    return MoeError(f"check failed: {what}", "see state/demo.log and state/engine.log in the demo's folder")
