"""The upstream of the benchmark: an event stream server that costs next to nothing. A process of its own.

Touches one loopback socket, stdin (it ends when that closes) and stdout: the port, then one line
`gone ID NS` for each request whose connection was closed before its reply was whole.

All streams of one interval are written in the same tick, as an engine's step gives every sequence a token.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
import time
from typing import cast

import uvloop

from tests.bench_gateway import wire

_LENGTH = re.compile(rb"(?im)^content-length:\s*(\d+)")
_CLOSE = re.compile(rb"(?im)^connection:\s*close")
_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"
    b"transfer-encoding: chunked\r\n%s\r\n"
)
_NOT_OURS = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class Ticker:
    """Calls every stream of one interval together."""

    def __init__(self, interval_s: float) -> None:
        self.streams: dict[Connection, None] = {}
        self._interval_s = interval_s
        self._loop = asyncio.get_running_loop()
        self._next_s = 0.0

    def add(self, stream: Connection) -> None:
        """Serve `stream` from the next tick on."""
        if not self.streams:
            self._next_s = self._loop.time() + self._interval_s
            self._loop.call_at(self._next_s, self._tick)
        self.streams[stream] = None

    def _tick(self) -> None:
        for stream in tuple(self.streams):
            stream.step()
        if self.streams:
            self._next_s = max(self._next_s + self._interval_s, self._loop.time())
            self._loop.call_at(self._next_s, self._tick)


class Connection(asyncio.Protocol):
    """One connection, kept alive; requests one after the other."""

    def __init__(self, tickers: dict[int, Ticker]) -> None:
        self._tickers = tickers
        self._ticker: Ticker | None = None
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._whole_bytes = 0
        self._close = False
        self._order: wire.Order | None = None
        self._with_usage = False
        self._number = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if not self._whole_bytes:
            end = self._received.find(b"\r\n\r\n")
            if end < 0:
                return
            head = bytes(self._received[:end])
            length = _LENGTH.search(head)
            self._close = _CLOSE.search(head) is not None
            self._whole_bytes = end + 4 + (int(length.group(1)) if length else 0)
            del self._received[: end + 4]
            self._whole_bytes -= end + 4
        if len(self._received) >= self._whole_bytes:
            body = bytes(self._received)
            self._received.clear()
            self._whole_bytes = 0
            self._begin(body)

    def eof_received(self) -> None:
        self._gone()

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone()

    def _gone(self) -> None:
        if self._order is not None:
            print("gone", self._order.id, time.monotonic_ns(), flush=True)
            self._stop()

    def _stop(self) -> None:
        self._order = None
        if self._ticker is not None:
            self._ticker.streams.pop(self, None)
            self._ticker = None

    def _begin(self, body: bytes) -> None:
        assert self._transport is not None
        found = wire.order_of(body)
        if found is None:
            self._transport.write(_NOT_OURS)
            self._transport.close()
            return
        self._order, self._with_usage = found
        self._number = 0
        if self._order.silent_ms:
            asyncio.get_running_loop().call_later(self._order.silent_ms / 1000, self._speak, self._order)
        else:
            self._speak(self._order)

    def _speak(self, order: wire.Order) -> None:
        if self._order is not order or self._transport is None:
            return
        connection = b"connection: close\r\n" if self._close else b""
        self._transport.write(_HEAD % connection + wire.framed(wire.role_event()))
        if order.interval_ms:
            self._ticker = self._tickers.get(order.interval_ms)
            if self._ticker is None:
                self._ticker = self._tickers[order.interval_ms] = Ticker(order.interval_ms / 1000)
            self._ticker.add(self)
            self.step()
        while self._order is order and not order.interval_ms:
            self.step()

    def step(self) -> None:
        """Write the next content chunk, and the ending after the last."""
        order, transport = self._order, self._transport
        assert order is not None
        assert transport is not None
        transport.write(wire.framed(wire.content_event(self._number, time.monotonic_ns())))
        self._number += 1
        if self._number < order.chunks:
            return
        for event in wire.ending_events(order.chunks, self._with_usage):
            transport.write(wire.framed(event))
        transport.write(b"0\r\n\r\n")
        self._stop()
        if self._close:
            transport.close()


async def serve() -> None:
    """Serve until stdin closes."""
    loop = asyncio.get_running_loop()
    tickers: dict[int, Ticker] = {}
    server = await loop.create_server(lambda: Connection(tickers), "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    over = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), over.set)
    await over.wait()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(serve())
