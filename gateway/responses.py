"""Writes plain responses and the headers that every answer carries. Touches the ASGI send channel."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from gateway.problem import Problem

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

JSON = b"application/json"


async def respond(send: Send, status: int, body: bytes, headers: Headers, content_type: bytes = JSON) -> None:
    """One whole response."""
    sized = [*headers, (b"content-type", content_type), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": sized})
    await send({"type": "http.response.body", "body": body})


def problem_headers(problem: Problem) -> Headers:
    """Retry-After, whether to retry at all, and what admission said."""
    headers: Headers = []
    if problem.retry_after_s is not None:
        headers.append((b"retry-after", str(problem.retry_after_s).encode()))
    if not problem.heals:
        headers.append((b"x-should-retry", b"false"))
    if problem.reason is not None:
        headers.append((b"x-moe-reject-reason", str(problem.reason).encode()))
    if problem.depth is not None:
        headers += place_headers(problem.position or 0, problem.depth)
    return headers


def place_headers(position: int, depth: int) -> Headers:
    """Where the request stood in line when this was said; 0 of 0 = it did not wait."""
    return [(b"x-moe-queue-position", str(position).encode()), (b"x-moe-queue-depth", str(depth).encode())]


def stream_headers() -> Headers:
    """Headers of an event stream: no proxy on the way may buffer or cache it."""
    return [
        (b"content-type", b"text/event-stream; charset=utf-8"),
        (b"cache-control", b"no-cache"),
        (b"x-accel-buffering", b"no"),
    ]
