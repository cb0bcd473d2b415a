"""Composes one gateway process and runs it until it is drained.

Touches everything the gateway touches: sockets, files, signals, the clock.

Order of the end (SIGTERM, or stdin closed by a daemon that died): refuse new work, let running streams go on
for `drain_s` (2 s when the daemon died, because the engine dies with it), end the rest with an honest error,
close.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import uvicorn
from starlette.requests import Request

from gateway import lastgood, unixserver
from gateway.admin import AdminPages, admin_routes
from gateway.core import Core, last_good_file
from gateway.engine_watch import engine_of, follow, static_box
from gateway.files import replace_file
from gateway.keyfile import HeldFile, parse_admins, parse_seats
from gateway.logs import Log
from gateway.observe import snapshot
from gateway.protocol import hardened
from gateway.routes import Application, control_app
from gateway.seats import AdminBook
from gateway.settings import GatewaySettings

DAEMON_GONE_DRAIN_S = 2.0
LAST_WORDS_S = 2.0
"""How long ended streams have to get their error event out."""
SWEEP_S = 1.0
FIRST_LOOK_S = 1.0
"""How long a new gateway waits for the daemon to say how the engine is, before it accepts: it would refuse what the
engine could serve."""
KEEP_ALIVE_S = 75


async def run(settings: GatewaySettings, public: socket.socket, log: Log, daemon_pipe: bool) -> None:
    """Serve on `public` until told to stop. `daemon_pipe`: stdin closes when the daemon dies."""
    loop = asyncio.get_running_loop()
    core = _core(settings, log, loop)
    app = Application(core, admin_routes(_pages(core)))
    server = unixserver.Server(_config(app, settings.limits.client_stall_s))
    ending = _Ending(core, settings.limits.drain_s)
    ending.listen(loop, daemon_pipe)
    async with asyncio.TaskGroup() as group:
        helpers = [group.create_task(_sweep(core))]
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
        await ending.come()
        server.should_exit = True
        await serving
        for task in helpers:
            task.cancel()


class _Ending:
    """When this process ends, and how long running streams may go on then."""

    def __init__(self, core: Core, drain_s: float) -> None:
        self._core = core
        self._drain_s = drain_s
        self._asked = asyncio.Event()

    def listen(self, loop: asyncio.AbstractEventLoop, daemon_pipe: bool) -> None:
        """Take signals, and the end of the daemon."""
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        loop.add_signal_handler(signal.SIGHUP, self._core.look_at_files, True)
        if daemon_pipe:
            loop.add_reader(sys.stdin.fileno(), self._daemon_gone, loop)

    async def come(self) -> None:
        """Wait until it is asked for, then drain."""
        await self._asked.wait()
        core = self._core
        core.log.info("gateway.draining", live=len(core.live), drain_s=self._drain_s)
        core.drain()
        await self._all_done(self._drain_s)
        core.end_all()
        await self._all_done(LAST_WORDS_S)
        core.log.info("gateway.drained", cut=len(core.live))

    async def _all_done(self, limit_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._core.all_done.wait()

    def _stop(self) -> None:
        if self._asked.is_set():  # asked twice: in a hurry
            self._core.end_all()
        self._asked.set()

    def _daemon_gone(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.remove_reader(sys.stdin.fileno())
        self._core.log.error("gateway.daemon_gone")
        self._drain_s = min(self._drain_s, DAEMON_GONE_DRAIN_S)
        self._asked.set()


async def _sweep(core: Core) -> None:
    while True:
        await asyncio.sleep(SWEEP_S)
        core.look_at_files()
        core.sweep(core.limiter.loop.time())


def _core(settings: GatewaySettings, log: Log, loop: asyncio.AbstractEventLoop) -> Core:
    seats = HeldFile(settings.seats_file, parse_seats, lastgood.read(last_good_file(settings)))
    admins_file = settings.admins_file or settings.state_dir / "admins.toml"
    admins = HeldFile(admins_file, parse_admins, AdminBook({}, file_missing=True))
    core = Core.make(settings, seats, admins, log, loop)
    core.look_at_files(force=True)
    if settings.engine is not None:
        box = static_box(settings.engine)
        core.engine_changed(box, engine_of(box.engine))
    return core


def _pages(core: Core) -> AdminPages:
    def secure(request: Request) -> bool:
        behind_proxy = request.client is not None and request.client.host in core.settings.trusted_proxies
        return request.url.scheme == "https" or (
            behind_proxy and request.headers.get("x-forwarded-proto", "") == "https"
        )

    return AdminPages(
        box=lambda: core.box,
        snapshot=lambda: snapshot(core),
        admins=lambda: core.admins.value,
        log=core.log,
        secret=_cookie_secret(core.settings.state_dir / "cookie.secret"),
        secure=secure,
    )


def _cookie_secret(path: Path) -> bytes:
    """32 bytes that outlive a gateway, so that a restart logs nobody out. Made once, 0600."""
    with contextlib.suppress(OSError):
        found = path.read_bytes()
        if len(found) >= 32:
            return found
    made = secrets.token_bytes(32)
    with contextlib.suppress(OSError):  # a full disk: the next gateway makes another, and people log in again
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, made, 0o600)
    return made


def _config(app: Any, stall_s: float) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=hardened(stall_s),
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
