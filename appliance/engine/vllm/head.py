"""Says when box 0 of several is there and when it has gone, to a box that only helps it. Touches TCP connections to
its master port.

A headless vLLM does not notice: its ranks wait for ever for a box 0 that has ended, and a new one waits for new ranks.
The store behind the master port lives as long as box 0's first rank; it takes connections that say nothing, and they
end with it. Source: tried with vLLM 0.32.0 on the CPU, docs/measurements.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket

CONNECT_S = 10.0
AGAIN_S = 1.0
"""Between two looks whether it is there."""
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 15), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))
"""Whoever lost his power is known to be gone after 30 s."""


async def until_there(address: str, port: int) -> None:
    """Wait for box 0, for ever."""
    while True:
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(CONNECT_S):
                _, writer = await asyncio.open_connection(address, port)
            await _close(writer)
            return
        await asyncio.sleep(AGAIN_S)


async def until_gone(address: str, port: int) -> str:
    """Wait until nobody is there any more; how that was seen, for people."""
    try:
        async with asyncio.timeout(CONNECT_S):
            reader, writer = await asyncio.open_connection(address, port)
    except TimeoutError:
        return f"did not answer within {CONNECT_S:g} s"
    except OSError as error:
        return _said(error)
    try:
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
        while await reader.read(4096):
            pass
        return "closed the connection"
    except OSError as error:
        return _said(error)
    finally:
        await _close(writer)


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def _said(error: OSError) -> str:
    """asyncio's own text repeats the address instead of the reason."""
    return os.strerror(error.errno) if error.errno else type(error).__name__
