"""A box that helps another learns that it has gone."""

from __future__ import annotations

import asyncio
import socket

import pytest

from appliance.engine.vllm import head

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Store:
    """Listens as box 0's first rank does: takes connections, says nothing."""

    def __init__(self) -> None:
        self.taken: list[asyncio.StreamWriter] = []
        self.came = asyncio.Event()

    async def take(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.taken.append(writer)
        self.came.set()


@pytest.mark.parametrize("reset", [False, True])
async def test_it_waits_as_long_as_box_0_is_there_and_tells_how_it_went(reset: bool) -> None:
    store = Store()
    server = await asyncio.start_server(store.take, "127.0.0.1", 0)
    async with server:
        waiting = asyncio.create_task(head.until_gone("127.0.0.1", server.sockets[0].getsockname()[1]))
        await store.came.wait()
        store.taken[0].write(b"words that nobody asked for")
        await store.taken[0].drain()
        await asyncio.sleep(0)
        assert not waiting.done()
        if reset:
            store.taken[0].transport.abort()
        else:
            store.taken[0].close()
        said = await waiting
    assert said in ("closed the connection", "Connection reset by peer")


async def test_nobody_there_is_gone() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        assert "refused" in (await head.until_gone("127.0.0.1", free.getsockname()[1])).lower()


async def test_who_does_not_answer_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(head, "CONNECT_S", 0.01)
    monkeypatch.setattr(asyncio, "open_connection", never)
    assert await head.until_gone("10.0.0.1", 29501) == "did not answer within 0.01 s"


async def test_whoever_stops_waiting_leaves_no_connection() -> None:
    store = Store()
    server = await asyncio.start_server(store.take, "127.0.0.1", 0)
    async with server:
        waiting = asyncio.create_task(head.until_gone("127.0.0.1", server.sockets[0].getsockname()[1]))
        await store.came.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        store.taken[0].close()


async def test_box_0_is_waited_for_until_it_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    store = Store()
    opened, tried = asyncio.open_connection, asyncio.Event()

    async def watched(address: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        tried.set()
        return await opened(address, port)

    monkeypatch.setattr(head, "AGAIN_S", 0.01)
    monkeypatch.setattr(asyncio, "open_connection", watched)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        waiting = asyncio.create_task(head.until_there("127.0.0.1", port))
        await tried.wait()
    # when
    server = await asyncio.start_server(store.take, "127.0.0.1", port)
    async with server:
        await waiting
        await store.came.wait()
        store.taken[0].close()
