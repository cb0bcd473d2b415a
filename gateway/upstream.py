"""Talks HTTP/1.1 to the engine: one connection per request, on an asyncio protocol and httptools.

Touches the network (the engine's address only). httpx is its oracle in the tests.

Rules:
- Body bytes go through the reply's tap the moment they arrive, so that figures and the end of the reply do
  not depend on how fast the client reads.
- `on_end` is called synchronously when the engine has ended the reply or the connection is gone: that is
  when the ticket comes back. `on_first` likewise, when the first token of a stream has passed.
- The reader wakes for a status, for bytes or for the end, never for a piece of one: what it hears of too early
  would make the client hear of it too.
- A reply whose tap says that it is whole ([DONE]) is over, whether or not the engine ends the body.
- Closing is `abort()`: synchronous, idempotent, and the engine sees it at once.
- One connection per request: a kept-alive one may be closed by the engine just as a request is written, and
  a completion must not be sent twice.
"""

from __future__ import annotations

import asyncio
import functools
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

import httptools

from gateway.problem import Problem, engine_lost, engine_unreachable
from gateway.state import UNIX
from gateway.taps import Tap

CONNECT_TIMEOUT_S = 5.0
BUFFER_HIGH_BYTES = 8 * 1024 * 1024
"""Reply bytes that wait for a slow client before the engine is no longer read."""


class EngineError(Exception):
    """The reply cannot go on; `problem` is what the client is told."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """Where the engine listens. `base_path` is put in front of request paths. `socket`: the path of a Unix socket, in
    place of host and port."""

    host: str
    port: int
    tls: bool
    base_path: str
    socket: str = ""

    @classmethod
    def parse(cls, url: str) -> EngineAddress:
        """From `http://host:port[/path]` or `unix:/path`; raises ValueError when it is neither."""
        if url.startswith(f"{UNIX}/"):
            return cls("engine", 80, False, "", url.removeprefix(UNIX))
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"not an http URL: {url!r}")
        tls = parts.scheme == "https"
        return cls(parts.hostname, parts.port or (443 if tls else 80), tls, parts.path.rstrip("/"))


class EngineReply(asyncio.Protocol):
    """One request to the engine and its reply.

    Until the headers are there `status` is 0. `make_tap(status, content_type)` is called once they are.
    `last_event_s`: when there was last something to send on; an engine's own heartbeats are none.
    """

    def __init__(
        self,
        request: bytes,
        make_tap: Callable[[int, str], Tap],
        on_end: Callable[[], None],
        loop: asyncio.AbstractEventLoop,
        on_first: Callable[[], None] | None = None,
    ) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.tap: Tap | None = None
        self.last_event_s = loop.time()
        self._request = request
        self._make_tap = make_tap
        self._on_end = on_end
        self._on_first = on_first
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._now_s = self.last_event_s
        self._parts: list[bytes] = []
        self._buffer: deque[bytes] = deque()
        self._buffered = 0
        self._paused = False
        self._complete = False
        self._ended = False
        self._problem: Problem | None = None
        self._waiter: asyncio.Future[None] | None = None

    # The reader's side

    async def wait_headers(self, timeout_s: float | None) -> bool:
        """True once the status is known, False after `timeout_s`. Raises EngineError when it will never be."""
        if not self.status and self._problem is None:
            await self._wait(timeout_s)
        if not self.status and self._problem is not None:
            raise EngineError(self._problem)
        return self.status != 0

    async def read(self, timeout_s: float | None = None) -> bytes | None:
        """All bytes that have arrived; b"" after `timeout_s` without any; None when the reply is over and
        whole. Raises EngineError, after the last byte, when it is over and not whole."""
        if not self._buffer and not self._ended:
            await self._wait(timeout_s)
        if self._buffer:
            data = self._buffer[0] if len(self._buffer) == 1 else b"".join(self._buffer)
            self._buffer.clear()
            self._buffered = 0
            if self._paused and self._transport is not None:
                self._paused = False
                self._transport.resume_reading()
            return data
        if not self._ended:
            return b""
        if self._problem is not None:
            raise EngineError(self._problem)
        return None

    async def read_all(self) -> bytes:
        """The rest of the reply, once it is whole. Raises EngineError when it never will be."""
        parts: list[bytes] = []
        while (data := await self.read()) is not None:
            parts.append(data)
        return b"".join(parts)

    def fail(self, problem: Problem) -> None:
        """End the reply now: the engine is told by the closed connection, the reader by EngineError."""
        if not self._ended:
            self._problem = problem
            self._end()
            self.abort()

    def nudge(self) -> None:
        """Let a reader that waits have b"" now."""
        if not self._buffer:
            self._wake()

    def abort(self) -> None:
        """Close the connection to the engine at once."""
        if self._transport is not None:
            self._transport.abort()

    @property
    def ended(self) -> bool:
        """True when no more bytes will come from the engine."""
        return self._ended

    async def _wait(self, timeout_s: float | None) -> None:
        self._waiter = self._loop.create_future()
        if timeout_s is None:
            await self._waiter
            return
        timer = self._loop.call_later(max(0.0, timeout_s), self._wake)
        try:
            await self._waiter
        finally:
            timer.cancel()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit from it
        self._transport.write(self._request)
        self._request = b""

    def data_received(self, data: bytes) -> None:
        self._now_s = self._loop.time()
        broken = ""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            broken = f"it did not answer in HTTP: {error}"
        except httptools.HttpParserUpgrade:
            broken = "it wants to switch protocols"
        if self._parts:
            piece = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
            self._parts.clear()
            self._pass(piece)
        over = self._complete or (self.tap is not None and self.tap.whole)
        if over and not self._ended:  # what follows a whole reply is not ours, broken or not
            self._finish()
            self.abort()
        elif self.tap is not None and self.tap.streamed and self.tap.meter.failed:
            self.fail(engine_lost("it reported an error"))
        elif broken:
            self.fail(engine_lost(broken))

    def eof_received(self) -> None:
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        if self._ended:
            return
        unframed = self.status and "content-length" not in self.headers and "transfer-encoding" not in self.headers
        if unframed and exc is None:
            self._finish(framed=False)
        else:
            detail = "it closed the connection" if exc is None else str(exc)
            self._problem = engine_lost(detail) if self.status else engine_unreachable(detail)
            self._end()

    # httptools

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.status:
            self.headers[name.decode("latin-1").lower()] = value.decode("latin-1").strip(" \t")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if self._complete:
            return
        if status < 200:
            self.headers.clear()
            return
        self.status = status
        self.last_event_s = self._now_s
        self.tap = self._make_tap(status, self.headers.get("content-type", ""))
        self._wake()

    def on_body(self, body: bytes) -> None:
        if not self._complete:
            self._parts.append(body)

    def on_message_complete(self) -> None:
        self._complete = self.status != 0

    # The end

    def _pass(self, piece: bytes) -> None:
        assert self.tap is not None
        out = self.tap.feed(piece, self._now_s)
        if self._on_first is not None and self.tap.meter.first_token_s is not None:
            on_first, self._on_first = self._on_first, None
            on_first()
        if out:
            self.last_event_s = self._now_s
            self._buffer.append(out)
            self._buffered += len(out)
            self._wake()
            if self._buffered > BUFFER_HIGH_BYTES and not self._paused and self._transport is not None:
                self._paused = True
                self._transport.pause_reading()

    def _finish(self, framed: bool = True) -> None:
        assert self.tap is not None
        out = self.tap.finish(self._now_s, framed)
        if out:
            self._buffer.append(out)
        if not self.tap.whole:
            self._problem = engine_lost("its answer ended without an ending")
        self._end()

    def _end(self) -> None:
        self._ended = True
        try:
            self._on_end()
        finally:  # whoever reads must not wait for ever for what went wrong in there
            self._wake()


async def send(
    address: EngineAddress,
    path: str,
    headers: dict[str, str],
    body: bytes,
    make_tap: Callable[[int, str], Tap],
    on_end: Callable[[], None],
    on_first: Callable[[], None] | None = None,
) -> EngineReply:
    """POST `body` to the engine and return the reply, whose headers have not come yet.

    Raises EngineError when the engine cannot be reached within 5 s.
    """
    loop = asyncio.get_running_loop()
    host = f"[{address.host}]" if ":" in address.host else address.host
    lines = [f"POST {address.base_path}{path} HTTP/1.1", f"host: {host}:{address.port}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    lines += ["content-type: application/json", f"content-length: {len(body)}", "connection: close", "", ""]
    request = "\r\n".join(lines).encode("latin-1") + body
    tls = _tls() if address.tls else None

    def new() -> EngineReply:
        return EngineReply(request, make_tap, on_end, loop, on_first)

    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            if address.socket:
                _, reply = await loop.create_unix_connection(new, address.socket)
            else:
                _, reply = await loop.create_connection(new, address.host, address.port, ssl=tls)
    except (OSError, TimeoutError) as error:
        detail = "no connection within 5 s" if isinstance(error, TimeoutError) else str(error)
        raise EngineError(engine_unreachable(detail)) from error
    return reply


@functools.cache
def _tls() -> ssl.SSLContext:
    """Made once: reading the system's certificates takes longer than a token."""
    return ssl.create_default_context()


def is_event_stream(content_type: str) -> bool:
    """Whether a Content-Type names an event stream; media types are compared without case."""
    return content_type.partition(";")[0].strip().lower() == "text/event-stream"
