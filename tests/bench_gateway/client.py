"""The client of the benchmark: one request on a connection of its own, each chunk timed as it comes in.

Touches loopback sockets and the monotonic clock.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import cast

import httptools

from tests.bench_gateway import wire


class StreamError(Exception):
    """A stream was not whole: the figures of this run are worth nothing."""


@dataclass(slots=True)
class Heard:
    """What one stream was: ns from the connect to the first content chunk; ns from stamp to receipt of each."""

    began_ns: int = 0
    ttft_ns: int = 0
    delays_ns: list[int] = field(default_factory=list)
    done: bool = False
    closed_ns: int = 0

    @property
    def later_delays_ns(self) -> list[int]:
        """Delays without the first chunk, whose way is what `ttft_ns` tells."""
        return self.delays_ns[1:]


class Stream(asyncio.Protocol):
    """`over` resolves when the reply is whole, or at `leave_after` chunks, where the client walks out."""

    def __init__(self, request: bytes, leave_after: int | None = None) -> None:
        self.heard = Heard(began_ns=time.monotonic_ns())
        self.over: asyncio.Future[Heard] = asyncio.get_running_loop().create_future()
        self._request = request
        self._leave_after = leave_after
        self._parser = httptools.HttpResponseParser(self)
        self._now_ns = 0
        self._tail = b""
        self._ended = False
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._now_ns = time.monotonic_ns()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"the reply is not HTTP: {error}")
        if self._leave_after is not None and len(self.heard.delays_ns) >= self._leave_after:
            self.leave()
        elif self._ended:
            self._finish()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(f"the connection ended after {len(self.heard.delays_ns)} chunks: {exc}")

    def leave(self) -> None:
        """Close the connection in mid-stream, as an agent does that was told to stop."""
        if not self.over.done():
            self.heard.closed_ns = time.monotonic_ns()
            self.over.set_result(self.heard)
            if self._transport is not None:
                self._transport.close()

    def abort(self) -> None:
        """Close without a result."""
        if self._transport is not None:
            self._transport.abort()

    # httptools

    def on_status(self, status: bytes) -> None:
        if self._parser.get_status_code() != 200:
            self._fail(f"the answer is {self._parser.get_status_code()} {status.decode('latin-1')}")

    def on_body(self, body: bytes) -> None:
        data = self._tail + body
        end = data.rfind(b"\n\n") + 2
        if end < 2:
            self._tail = data
            return
        self._tail = data[end:]
        heard = self.heard
        for number, stamp in wire.STAMP.findall(data, 0, end):
            if int(number) != len(heard.delays_ns):
                self._fail(f"chunk {int(number)} came where {len(heard.delays_ns)} was due")
            heard.delays_ns.append(self._now_ns - int(stamp))
            if not heard.ttft_ns:
                heard.ttft_ns = self._now_ns - heard.began_ns
        if wire.DONE in data:
            heard.done = True

    def on_message_complete(self) -> None:
        self._ended = True

    def _finish(self) -> None:
        if not self.heard.done:
            self._fail("the reply ended without [DONE]")
        if not self.over.done():
            self.over.set_result(self.heard)
        self.abort()

    def _fail(self, why: str) -> None:
        if not self.over.done():
            self.over.set_exception(StreamError(why))
        self.abort()


async def connect(port: int, request: bytes, leave_after: int | None = None) -> Stream:
    """Begin one stream; TTFT counts from here."""
    stream = Stream(request, leave_after)
    await asyncio.get_running_loop().create_connection(lambda: stream, "127.0.0.1", port)
    return stream


async def together(port: int, requests: list[bytes], chunks: int, limit_s: float) -> list[Heard]:
    """Run all requests at once. Raises StreamError unless each brought `chunks` chunks, in order and whole."""
    streams: list[Stream] = []
    try:
        async with asyncio.timeout(limit_s):
            streams += await asyncio.gather(*(connect(port, request) for request in requests))
            heard = await asyncio.gather(*(stream.over for stream in streams))
    except TimeoutError:
        raise StreamError(f"streams on port {port} were not over after {limit_s:.0f} s") from None
    finally:
        for stream in streams:
            stream.abort()
            stream.over.cancel()
    for one in heard:
        if len(one.delays_ns) != chunks:
            raise StreamError(f"{len(one.delays_ns)} chunks came of {chunks}")
    return heard
