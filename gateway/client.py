"""The client's side of one exchange: what it was sent, and whether it takes it.

Touches the ASGI send channel and the loop's clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from gateway.responses import JSON, Headers, Scope, Send, respond, stream_headers


@dataclass(slots=True)
class Client:
    """`started`: the 200 of a stream is out. `sent_s`: when it was last sent something."""

    scope: Scope
    asgi_send: Send
    loop: asyncio.AbstractEventLoop
    started: bool = False
    sent_s: float = 0.0
    _sending: bool = False
    _since_s: float = 0.0
    _unsent_bytes: int = 0

    @property
    def sending(self) -> bool:
        """True while a write waits for the client to read."""
        return self._sending

    async def start(self, headers: Headers) -> None:
        """Begin a stream: its 200 and headers."""
        self.started = True
        head = [*headers, *stream_headers()]
        await self.asgi_send({"type": "http.response.start", "status": 200, "headers": head})

    async def put(self, data: bytes, more: bool = True) -> None:
        """A piece of the stream; `more` False ends it cleanly."""
        self.sent_s = self._since_s = self.loop.time()
        self._sending = True
        await self.asgi_send({"type": "http.response.body", "body": data, "more_body": more})
        self._sending = False

    async def answer(self, status: int, body: bytes, headers: Headers, content_type: bytes = JSON) -> None:
        """A response in one piece."""
        self._since_s = self.loop.time()
        self._sending = True
        await respond(self.asgi_send, status, body, headers, content_type)
        self._sending = False

    def stalled_s(self, now_s: float) -> float:
        """For how long it has taken nothing. One write may be megabytes: it reads while they get fewer."""
        if not self._sending:
            return 0.0
        unsent: Callable[[], int] | None = self.scope.get("moe.unsent")
        before, self._unsent_bytes = self._unsent_bytes, unsent() if unsent is not None else 0
        if self._unsent_bytes < before:
            self._since_s = now_s
        return now_s - self._since_s

    def abort(self) -> None:
        """Close its connection now."""
        abort: Callable[[], None] | None = self.scope.get("moe.abort")
        if abort is not None:
            abort()
