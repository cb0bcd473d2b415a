"""Composes one gateway process and runs it until it is drained.

Touches everything the gateway touches: sockets, files, signals, the clock.

Order of the end (SIGTERM, or stdin closed by a daemon that died): refuse new work, let running streams go on
for `drain_s` (2 s when the daemon died, because the engine dies with it), end the rest with an honest error,
close, write the last rows of the ledger.

SIGUSR2: a gateway of another version takes over. Nobody new is accepted from then on; who comes waits in the socket's
backlog for the successor. Who is here, in line or streaming, has `RETIRE_MAX_S` at most; then the end as above.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import uvicorn

from gateway import lastgood, unixserver
from gateway.connections import Connections, most_with
from gateway.core import Core, last_good_file
from gateway.engine_watch import engine_of, follow, static_box
from gateway.errors import ConfigError
from gateway.keyfile import HeldFile, parse_admins, parse_seats
from gateway.ledger.view import begun
from gateway.logs import Log
from gateway.observe import note_history
from gateway.overlayfile import OverlayFile
from gateway.pages import site
from gateway.protocol import hardened
from gateway.routes import Application, control_app
from gateway.seats import AdminBook, SeatBook
from gateway.settings import RETIRE_MAX_S, GatewaySettings
from gateway.state import Severity
from gateway.sweep import sweep_all

DAEMON_GONE_DRAIN_S = 2.0
LAST_WORDS_S = 2.0
"""How long ended streams have to get their error event out."""
SWEEP_S = 1.0
RETIRE_LOOK_S = 0.05
FIRST_LOOK_S = 1.0
"""How long a new gateway waits for the daemon to say how the engine is, before it accepts: it would refuse what the
engine could serve."""
KEEP_ALIVE_S = 75


async def run(settings: GatewaySettings, public: socket.socket, log: Log, daemon_pipe: bool) -> None:
    """Serve on `public` until told to stop. `daemon_pipe`: stdin closes when the daemon dies."""
    loop = asyncio.get_running_loop()
    core = _core(settings, log, loop)
    app = Application(core, site.routes(core))
    server = unixserver.Server(_config(app, settings.limits.client_stall_s, core.connections))
    ending = _Ending(core, settings.limits.drain_s)
    ending.listen(loop, daemon_pipe)
    async with begun(core), asyncio.TaskGroup() as group:
        helpers = [group.create_task(_sweep(core)), group.create_task(core.keep_overlay())]
        helpers.append(group.create_task(core.care.learned.run(log)))
        if core.care.keeper is not None:
            helpers.append(group.create_task(core.care.keeper.run()))
        helpers.append(group.create_task(core.prewarm.run()))
        if settings.control_socket is not None:
            helpers.append(group.create_task(follow(core, settings.control_socket)))
        if settings.gateway_socket is not None:
            own = unixserver.bind(settings.gateway_socket)
            helpers.append(group.create_task(unixserver.serve(control_app(core), own, _refused(log))))
        with contextlib.suppress(TimeoutError):  # who connects meanwhile waits in the socket's backlog
            async with asyncio.timeout(FIRST_LOOK_S):
                await core.seen.wait()
        serving = group.create_task(server.serve(sockets=[public]))
        log.info("gateway.started")
        await ending.come(server)
        server.stop()
        await serving
        for task in helpers:
            task.cancel()
    await core.care.keep()


class _Ending:
    """When this process ends, and how long running streams may go on then."""

    def __init__(self, core: Core, drain_s: float) -> None:
        self._core = core
        self._drain_s = drain_s
        self._asked = asyncio.Event()
        self._told = asyncio.Event()

    def listen(self, loop: asyncio.AbstractEventLoop, daemon_pipe: bool) -> None:
        """Take signals, and the end of the daemon."""
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        loop.add_signal_handler(signal.SIGHUP, self._core.look_at_files, True)
        loop.add_signal_handler(signal.SIGUSR2, self._told.set)
        if daemon_pipe:
            loop.add_reader(sys.stdin.fileno(), self._daemon_gone, loop)

    async def come(self, server: uvicorn.Server) -> None:
        """Wait until it is asked for, then drain."""
        await self._told.wait()
        if not self._asked.is_set():
            await self._retire(server)
        core = self._core
        core.log.info("gateway.draining", live=len(core.live), drain_s=self._drain_s)
        core.drain()
        await self._all_done(self._drain_s)
        core.end_all()
        await self._all_done(LAST_WORDS_S)
        core.refusals.tell(core.limiter.loop.time(), all_of_them=True)
        core.log.info("gateway.drained", cut=len(core.live))

    async def _retire(self, server: uvicorn.Server) -> None:
        """Let those who are here be served; a stop that is asked for meanwhile wins."""
        core = self._core
        core.log.info("gateway.retiring", live=len(core.live))
        for listener in server.servers if server.started else ():
            listener.close()  # our copy; the daemon's stays open
        for connection in list(server.server_state.connections):
            connection.shutdown()  # when it has its answer
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(self._drain_s, RETIRE_MAX_S)):
                while core.live and not self._asked.is_set():  # noqa: ASYNC110 - `all_done` is of a drain
                    await asyncio.sleep(RETIRE_LOOK_S)
        if not self._asked.is_set():
            self._drain_s = 0.0

    async def _all_done(self, limit_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._core.all_done.wait()

    def _stop(self) -> None:
        if self._asked.is_set():  # asked twice: in a hurry
            self._core.end_all()
        self._asked.set()
        self._told.set()

    def _daemon_gone(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.remove_reader(sys.stdin.fileno())
        self._core.log.error("gateway.daemon_gone")
        self._drain_s = min(self._drain_s, DAEMON_GONE_DRAIN_S)
        self._asked.set()
        self._told.set()


async def _sweep(core: Core) -> None:
    note_history(core)
    while True:
        await asyncio.sleep(SWEEP_S)
        core.look_at_files()
        sweep_all(core, core.limiter.loop.time())
        note_history(core)


def _core(settings: GatewaySettings, log: Log, loop: asyncio.AbstractEventLoop) -> Core:
    overlay = OverlayFile.load(settings.state_dir)

    def parse(path: Path, raw: bytes | None) -> SeatBook:
        return parse_seats(path, raw).switched_off(overlay.value.off)

    last_good = lastgood.read(last_good_file(settings)).switched_off(overlay.value.off)
    seats = HeldFile(settings.seats_file, parse, last_good)
    admins_file = settings.admins_file or settings.state_dir / "admins.toml"
    admins = HeldFile(admins_file, parse_admins, AdminBook({}, file_missing=True))
    core = Core.make(settings, seats, admins, overlay, log, loop)
    core.connections = _connections(settings)
    if overlay.unread:
        core.events.note("files.overlay", Severity.WARN, f"{overlay.path} was set aside: {overlay.unread}")
    core.look_at_files(force=True)
    if settings.engine is not None:
        box = static_box(settings.engine)
        try:
            engine = engine_of(box.engine)
        except (OSError, ValueError) as error:
            raise ConfigError(f"the engine cannot be used: {error}", "--engine-url, --engine-key-file") from None
        core.engine_changed(box, engine)
    return core


def _connections(settings: GatewaySettings) -> Connections:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = most_with(files, settings.limits.connections)
    return Connections(most, settings.limits.connections_per_address, settings.trusted_proxies)


def _config(app: Any, stall_s: float, connections: Connections) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=hardened(stall_s, connections),
        lifespan="off",
        ws="none",
        access_log=False,
        log_config=None,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=1,
    )


def _refused(log: Log) -> Any:
    def refused(pid: int, uid: int) -> None:
        log.warning("control.refused", pid=pid, uid=uid)

    return refused
