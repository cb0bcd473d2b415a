"""Accepted connections: no delay, and clients that vanish are noticed by the kernel. And the daemon's own 503."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Any

import pytest
import uvicorn
import uvloop

from appliance.listener import ABSENT_ANSWER, answer_absent, open_public
from gateway.protocol import hardened
from gateway.unixserver import Server

STALL_S = 12.0


async def options_of_accepted(public: socket.socket) -> dict[str, int]:
    """Serve one request as the gateway does and read the options of its connection."""
    seen: dict[str, int] = {}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        sock = scope["moe.abort"].__self__.get_extra_info("socket")
        for level, name in (
            (socket.IPPROTO_TCP, "TCP_NODELAY"),
            (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT"),
            (socket.SOL_SOCKET, "SO_KEEPALIVE"),
        ):
            seen[name] = sock.getsockopt(level, getattr(socket, name))
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    config = uvicorn.Config(app, http=hardened(STALL_S), lifespan="off", log_config=None)
    server = Server(config)
    serving = asyncio.create_task(server.serve(sockets=[public]))
    reader, writer = await asyncio.open_connection(*public.getsockname())
    writer.write(b"GET / HTTP/1.1\r\nhost: box\r\nconnection: close\r\n\r\n")
    assert b"204" in await reader.readline()
    writer.close()
    await writer.wait_closed()
    server.stop()
    await serving
    return seen


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_accepted_connections_have_no_delay_and_a_user_timeout(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    with open_public("127.0.0.1", 0) as public, asyncio.Runner(loop_factory=new_loop) as runner:
        seen = runner.run(options_of_accepted(public))
    assert seen == {"TCP_NODELAY": 1, "TCP_USER_TIMEOUT": int(STALL_S * 1000), "SO_KEEPALIVE": 1}


@pytest.mark.anyio
async def test_a_connection_that_the_daemon_accepted_gets_its_503_when_the_gateway_is_back() -> None:
    with open_public("127.0.0.1", 0) as public:
        answering = asyncio.create_task(answer_absent(public))
        reader, writer = await asyncio.open_connection(*public.getsockname())
        writer.write(b"POST / HTTP/1.1\r\n")
        await writer.drain()
        await asyncio.sleep(0.05)  # accepted, the head not whole yet
        answering.cancel()
        await asyncio.sleep(0.05)
        writer.write(b"content-length: 9\r\n\r\nx")
        assert await reader.read() == ABSENT_ANSWER
        writer.close()
        await writer.wait_closed()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait_for(answering, 3)
