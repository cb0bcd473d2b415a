"""For tests: an HTTP/1.1 client on a raw socket, which sees what httpx hides: chunks, the ending, the close.

Touches the network. Rules: one `Wire` is one connection; leaving it resets nothing, it closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tests.fake_engine.asking import CHAT, COMPLETIONS, ask, chat
from tests.gateway.running import Running, key_of

__all__ = [
    "CHAT",
    "COMPLETIONS",
    "Answer",
    "Wire",
    "ask",
    "call",
    "chat",
    "connect",
    "exchange",
    "head",
    "post",
    "scripted",
]

LIMIT_S = 20.0


def head(
    path: str, seat: str | None, headers: Mapping[str, str] | None = None, method: str = "POST", version: str = "1.1"
) -> bytes:
    """A request head without its empty line's successor: `headers` come after host and key; `Host` among them
    is said instead of ours."""
    lines = [f"{method} {path} HTTP/{version}", *(() if headers and "Host" in headers else ("Host: box",))]
    if seat is not None:
        lines.append(f"Authorization: Bearer {key_of(seat)}")
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def post(
    body: Any,
    *,
    path: str = CHAT,
    seat: str | None = "a",
    headers: Mapping[str, str] | None = None,
    version: str = "1.1",
) -> bytes:
    """A whole request; a body that is not bytes is sent as JSON."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    sized = {"Content-Type": "application/json", "Content-Length": str(len(raw)), **(headers or {})}
    return head(path, seat, sized, version=version) + raw


@dataclass(frozen=True, slots=True)
class Answer:
    """One response. `whole` is False when the connection ended before the response did."""

    status: int
    headers: dict[str, str]
    body: bytes
    whole: bool

    def json(self) -> Any:
        return json.loads(self.body)

    def error(self) -> dict[str, Any]:
        """The OpenAI error object; checks its shape."""
        assert self.headers["content-type"] == "application/json"
        error: dict[str, Any] = self.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert isinstance(error["message"], str)
        assert error["message"]
        return error

    def events(self) -> list[bytes]:
        """The events of a stream, without their boundaries."""
        assert self.body.endswith(b"\n\n") or not self.body
        return self.body.split(b"\n\n")[:-1]

    def stream_error(self) -> dict[str, Any]:
        """The error object in the last event of a stream that is not whole."""
        assert not self.whole
        assert b"[DONE]" not in self.body
        last = self.events()[-1]
        assert last.startswith(b"data: ")
        error: dict[str, Any] = json.loads(last[6:])["error"]
        return error


class Wire:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self) -> tuple[int, dict[str, str]]:
        """Status and headers. Raises IncompleteReadError when the connection ends first."""
        try:
            async with asyncio.timeout(LIMIT_S):
                text = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except (
            ConnectionError
        ):  # a reset behind an answer that has come: asyncio forgets the answer, the kernel did not
            text = bytes(self.reader._buffer).decode("latin-1")  # type: ignore[attr-defined]
            assert text.endswith("\r\n\r\n")
        first, *lines = text.rstrip("\r\n").split("\r\n")
        pairs = (line.split(": ", 1) for line in lines)
        return int(first.split(" ")[1]), {name.lower(): value for name, value in pairs}

    async def chunk(self) -> bytes | None:
        """The next chunk; b"" for the terminating one, None when the connection ended instead."""
        try:
            async with asyncio.timeout(LIMIT_S):
                size = int(await self.reader.readuntil(b"\r\n"), 16)
                return (await self.reader.readexactly(size + 2))[:-2]
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def rest(self, headers: Mapping[str, str]) -> tuple[bytes, bool]:
        """Body, and whether it was whole."""
        if "content-length" in headers:
            body = await self.reader.readexactly(int(headers["content-length"]))
            return body, True
        parts: list[bytes] = []
        while data := await self.chunk():
            parts.append(data)
        return b"".join(parts), data is not None

    async def answer(self) -> Answer:
        """One whole response, as far as it comes."""
        status, headers = await self.head()
        body, whole = await self.rest(headers)
        return Answer(status, headers, body, whole)

    async def closed(self, limit_s: float = LIMIT_S) -> bool:
        """Wait for the end of the connection; False when bytes come first."""
        try:
            async with asyncio.timeout(limit_s):
                return await self.reader.read(1) == b""
        except ConnectionError:
            return True

    def vanish(self) -> None:
        """Close at once."""
        self.writer.transport.abort()


@asynccontextmanager
async def connect(gateway: Running, data: bytes = b"", *, small: bool = False) -> AsyncIterator[Wire]:
    """A connection on which `data` was sent. `small`: this side buffers a few kilobytes at most."""
    sock = socket.socket()
    sock.setblocking(False)
    if small:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await asyncio.get_running_loop().sock_connect(sock, (gateway.host, gateway.port))
    reader, writer = await asyncio.open_connection(sock=sock, limit=1024 if small else 2**16)
    wire = Wire(reader, writer)
    try:
        if data:
            await wire.send(data)
        yield wire
    finally:
        writer.transport.abort()
        await asyncio.sleep(0)


async def exchange(gateway: Running, data: bytes) -> Answer:
    """Send one request on a fresh connection and read the answer."""
    async with connect(gateway, data) as wire:
        return await wire.answer()


async def call(gateway: Running, path: str, text: str = "hello", *, seat: str = "a", **fields: Any) -> Answer:
    """A small request on any route, and its answer; `max_tokens` under the route's own name."""
    return await exchange(gateway, post(ask(path, text, **fields), path=path, seat=seat))


@asynccontextmanager
async def scripted(answer: Callable[[asyncio.StreamWriter, bytes], Awaitable[None]]) -> AsyncIterator[str]:
    """An engine that reads a request and then does what `answer(connection, body)` does; yields its URL."""
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, RuntimeError):
            text = await reader.readuntil(b"\r\n\r\n")
            size = int(text.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            await answer(writer, await reader.readexactly(size))
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
        await asyncio.sleep(0.001)
