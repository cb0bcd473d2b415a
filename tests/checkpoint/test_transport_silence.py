"""A server that never comes to its answer, over a bare socket: given up in time, and named."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from appliance.checkpoint.transport import Transport, TransportError
from tests.checkpoint.naps import Naps
from tests.checkpoint.range_server import RangeServer

DATA = bytes(range(256)) * 40
NAME = "/file.bin"
pytestmark = pytest.mark.anyio


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RangeServer]:
    (tmp_path / "file.bin").write_bytes(DATA)
    with RangeServer(tmp_path) as running:
        yield running


async def endless_1xx(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while not reader.at_eof():
        writer.write(b"HTTP/1.1 102 Processing\r\n\r\n")
        await writer.drain()
        await asyncio.sleep(0)


async def headers_without_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nX: ")
    while await reader.read(1000):
        pass


@contextlib.asynccontextmanager
async def answering(answer: Callable[..., Awaitable[None]]) -> AsyncIterator[str]:
    """A server that does this with every connection; its address."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            await answer(reader, writer)
        writer.close()

    running = await asyncio.start_server(connected, "127.0.0.1", 0)
    async with running:
        yield f"http://127.0.0.1:{running.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize("answer", [endless_1xx, headers_without_end])
async def test_a_server_that_never_comes_to_its_answer_is_given_up_at_once_and_named(
    answer: Callable[..., Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("appliance.checkpoint.transport.ANSWER_S", 0.1)
    naps = Naps()
    async with answering(answer) as url, Transport(sleep=naps) as transport:
        with pytest.raises(TransportError, match=rf"{url}{NAME}: .* response headers within 0\.1 s") as caught:
            await transport.span(url + NAME, 0, 99)

    assert naps.taken == []
    assert caught.value.pause_s is not None


async def test_the_wait_for_a_connection_is_not_the_servers(
    server: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("appliance.checkpoint.transport.ANSWER_S", 1.0)
    async with Transport(concurrency=1) as transport:
        async with transport.stream(server.url + NAME, 0):
            waiting = asyncio.create_task(transport.span(server.url + NAME, 0, 9))
            done, _ = await asyncio.wait([waiting], timeout=1.2)
            assert not done
        found = await waiting
    assert found is not None
    assert found.body == DATA[:10]
