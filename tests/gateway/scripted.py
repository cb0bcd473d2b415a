"""A server that answers each connection with bytes from a script, and a transport without a network."""

from __future__ import annotations

import asyncio
import re
import socket
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

CLOSE, RESET, HOLD = "close", "reset", "hold"
"""What the server does after its last byte: FIN, RST, or wait for the client to close."""

OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nX-Note:  two words \r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
REPLIES: dict[str, tuple[bytes, str]] = {
    "content-length": (OK + b"content-length: 5\r\n\r\nhello", CLOSE),
    "content-length, kept alive": (OK + b"Content-Length: 5\r\nconnection: keep-alive\r\n\r\nhello", HOLD),
    "chunked": (CHUNKED + b"5\r\nhello\r\n6;a=b\r\n world\r\n0\r\n\r\n", CLOSE),
    "chunked, kept alive": (CHUNKED + b"0005\r\nhello\r\n0\r\n\r\n", HOLD),
    "chunked, empty": (CHUNKED + b"0\r\n\r\n", HOLD),
    "chunked, trailing headers": (CHUNKED + b"5\r\nhello\r\n0\r\nx-late: 1\r\n\r\n", HOLD),
    "until close": (OK + b"\r\nhello\r\n\r\nworld", CLOSE),
    "until close, empty": (OK + b"\r\n", CLOSE),
    "HTTP/1.0": (b"HTTP/1.0 200 OK\r\ncontent-type: text/plain\r\n\r\nhello", CLOSE),
    "100 first": (b"HTTP/1.1 100 Continue\r\nx-note: no\r\n\r\n" + OK + b"content-length: 2\r\n\r\nok", CLOSE),
    "103 twice": (b"HTTP/1.1 103 Hints\r\nlink: x\r\n\r\n" * 2 + OK + b"content-length: 2\r\n\r\nok", CLOSE),
    "204": (b"HTTP/1.1 204 No Content\r\nx-note: n\r\n\r\n", HOLD),
    "length 0": (OK + b"content-length: 0\r\n\r\n", HOLD),
    "no reason": (b"HTTP/1.1 200 \r\ncontent-length: 2\r\n\r\nok", CLOSE),
    "an error": (b'HTTP/1.1 429 Too Many\r\ncontent-length: 12\r\n\r\n{"error":{}}', CLOSE),
}
"""Whole replies in every framing, and what the server does after them."""


@dataclass
class Script:
    """A running script: its port, the requests that came, and `gone`, set when a client closed."""

    port: int = 0
    requests: list[bytes] = field(default_factory=list)
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


async def _read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
    return head + await reader.readexactly(int(length[1]) if length else 0)


@asynccontextmanager
async def scripted(pieces: Sequence[bytes], then: str = CLOSE, host: str = "127.0.0.1") -> AsyncIterator[Script]:
    """Serve `pieces`, each written by itself, and then `then`."""
    script = Script()
    handlers: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        handlers[task] = writer
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                script.requests.append(await _read_request(reader))
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
                if then == HOLD:
                    with suppress(ConnectionError):
                        await reader.read()
                    script.gone.set()
                if then == RESET:
                    linger = struct.pack("ii", 1, 0)
                    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        finally:
            writer.close()

    server = await asyncio.start_server(handle, host, 0)
    script.port = server.sockets[0].getsockname()[1]
    try:
        yield script
    finally:
        server.close()
        for writer in handlers.values():
            writer.transport.abort()
        await asyncio.gather(*handlers)
        await server.wait_closed()


class FakeTransport(asyncio.Transport):
    """Records what a protocol does with its connection."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.aborts = 0
        self.reading = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def abort(self) -> None:
        self.aborts += 1

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True
