"""The app behind a TCP socket: uvicorn's HTTP protocol without its server, so that start and stop take no time.

Touches sockets and the running loop. Rules: replies reach their transport through `scope["state"]`; leaving
`serving` closes every connection at once; a dead engine keeps no connection that was being accepted when it died.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from tests.fake_engine.knobs import Knobs
from tests.fake_engine.server import FakeEngine


class _State(ServerState):
    """`dead`: the engine has no connections and gets none."""

    dead = False


class _Protocol(HttpToolsProtocol):
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if isinstance(self.server_state, _State) and self.server_state.dead:  # accepted before, told of only now
            transport.abort()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"]["transport"] = self.transport


@dataclass(frozen=True, slots=True)
class Door:
    """An engine's listening socket."""

    listener: asyncio.Server
    state: _State

    def slam(self) -> None:
        """What the kernel does when the process dies: refuse new connections, close the others."""
        self.state.dead = True
        self.listener.close()
        for connection in list(self.state.connections):
            connection.transport.abort()


def bind(host: str, port: int) -> socket.socket:
    """A bound socket that refuses connections until it is served. Raises OSError when the port is taken."""
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
    except OSError:
        sock.close()
        raise
    return sock


async def listen(engine: FakeEngine, sock: socket.socket) -> Door:
    """Serve `engine` on a bound socket, which then belongs to the listener."""
    config = Config(engine, lifespan="off", ws="none", log_config=None, access_log=False)
    config.timeout_keep_alive = engine.knobs.keep_alive_s  # type: ignore[assignment]  # a float does as well
    config.load()
    state = _State()
    engine.arm_death()
    listener = await asyncio.get_running_loop().create_server(
        lambda: _Protocol(config=config, server_state=state, app_state={}), sock=sock, backlog=2048
    )
    return Door(listener, state)


@dataclass(frozen=True, slots=True)
class Served:
    """An engine in the test's own loop."""

    engine: FakeEngine
    url: str


@asynccontextmanager
async def serving(
    knobs: Knobs | None = None, *, key: str | None = None, now: Callable[[], float] = time.monotonic
) -> AsyncIterator[Served]:
    """Serve an engine on a free port of the loopback in the running loop; death closes its sockets. `now`: a clock."""
    doors: list[Door] = []

    def die(_: Knobs) -> None:
        for door in doors:
            door.slam()

    engine = FakeEngine(knobs, key=key, on_death=die, now=now)
    sock = bind("127.0.0.1", 0)
    port = sock.getsockname()[1]
    door = await listen(engine, sock)
    doors.append(door)
    try:
        yield Served(engine, f"http://127.0.0.1:{port}")
    finally:
        door.slam()
        engine.disarm()
        for task in list(door.state.tasks):
            task.cancel()
        await asyncio.gather(*door.state.tasks, return_exceptions=True)
        await door.listener.wait_closed()
