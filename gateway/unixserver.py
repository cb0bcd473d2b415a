"""Serves an ASGI app on a Unix socket to the same user, root, and members of the socket's group.

Touches the file system (the socket), the user database and uvicorn.

Rules:
- The socket is 0660 from the moment it exists; who connects is checked again by peer credentials.
- A stale socket is removed; the caller holds the folder's lock, so nobody else can be listening on it.
- A socket file that was removed is made again within `LOOK_S`, once its folder is there; one that another
  process has put in its place is left to it. Connections that exist go on.
- The app finds the peer's login name and uid where a TCP server has host and port: `scope["client"]`.
- uvicorn's signal handlers are not installed: signals belong to whoever composes the process.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import uvicorn
from starlette.requests import Request
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.errors import ConfigError
from gateway.seats import name_problem

PATH_MAX_BYTES = 107
"""Source: unix(7), sun_path is 108 bytes with its terminating zero."""

DATE_S = 1.0
LOOK_S = 1.0
"""Pause between two looks at whether the socket file is still there."""

_UCRED = struct.Struct("3i")


class Server(uvicorn.Server):
    """uvicorn's server without its signal handlers. It wakes once a second, for its date, and not ten times to see
    whether it is to end: each time takes 0.15 ms from the streams (measured). So it is told, by `stop`."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._over = asyncio.Event()

    def stop(self) -> None:
        """End, now."""
        self.should_exit = True
        self._over.set()

    async def main_loop(self) -> None:
        tenths = 0
        while not await self.on_tick(tenths):
            with suppress(TimeoutError):
                async with asyncio.timeout(DATE_S):
                    await self._over.wait()
            tenths += 10

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def bind(path: Path) -> socket.socket:
    """A listening Unix socket at `path`, 0660. Raises ConfigError when the path is too long or not ours."""
    if len(os.fsencode(path)) > PATH_MAX_BYTES:
        raise ConfigError(
            f"the socket path {path} is longer than {PATH_MAX_BYTES} bytes",
            "set a shorter runtime_dir, for instance runtime_dir = '/run/moe-appliance'",
        )
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    old_mask = os.umask(0o117)
    try:
        path.unlink(missing_ok=True)
        sock.bind(str(path))
    except OSError as error:
        sock.close()
        raise ConfigError(
            f"cannot make the socket {path}: {error.strerror}", f"check who owns {path.parent}"
        ) from error
    finally:
        os.umask(old_mask)
    sock.listen(128)
    sock.setblocking(False)
    return sock


def may_connect(uid: int, gid: int, socket_gid: int) -> bool:
    """True for root, this process's user, and members of the socket's group."""
    if uid in (0, os.geteuid()) or gid == socket_gid:
        return True
    try:
        user = pwd.getpwuid(uid)
    except KeyError:
        return False
    return socket_gid in os.getgrouplist(user.pw_name, user.pw_gid)


def peer_of(sock: Any) -> tuple[int, int, int]:
    """(pid, uid, gid) of the other end of a connected Unix socket."""
    pid, uid, gid = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return pid, uid, gid


def _checked(socket_gid: int, refused: Callable[[int, int], None]) -> type[HttpToolsProtocol]:
    class PeerChecked(HttpToolsProtocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            pid, uid, gid = peer_of(transport.get_extra_info("socket"))
            if not may_connect(uid, gid, socket_gid):
                refused(pid, uid)
                transport.abort()
                return
            super().connection_made(transport)
            self.client = (_login_name(uid), uid)

        def connection_lost(self, exc: Exception | None) -> None:
            if hasattr(self, "transport") and self.transport is not None:
                super().connection_lost(exc)

    return PeerChecked


def caller(request: Request) -> str:
    """Who asks: the user at the other end, by the kernel's word. Root may name the person behind it (`?who=`): that is
    what sudo knows."""
    user = request.client.host if request.client is not None else "somebody"
    claimed = request.query_params.get("who", "")
    return claimed if user == "root" and name_problem(claimed) is None else user


def _login_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


async def serve(app: Any, sock: socket.socket, refused: Callable[[int, int], None]) -> None:
    """Serve until cancelled; `refused(pid, uid)` is told of each connection that was turned away.

    The socket file is left behind: removing it could remove that of a successor.
    """
    path = Path(sock.getsockname())
    async with asyncio.TaskGroup() as group:
        while True:
            group.create_task(_serve_one(app, sock, _group_of(path), refused))
            while _is_there(path):  # noqa: ASYNC110 - the file system tells nobody
                await asyncio.sleep(LOOK_S)
            sock = await _bound_again(path)


def _is_there(path: Path) -> bool:
    try:
        path.lstat()
    except FileNotFoundError:
        return False
    except OSError:  # a disk in trouble, a folder that we may not enter: making it again would not help
        return True
    return True


def _group_of(path: Path) -> int:
    try:
        return path.stat().st_gid
    except OSError:  # gone already
        return os.getegid()


async def _bound_again(path: Path) -> socket.socket:
    while True:
        try:
            return bind(path)
        except ConfigError:  # its folder is gone as well
            await asyncio.sleep(LOOK_S)


async def _serve_one(app: Any, sock: socket.socket, gid: int, refused: Callable[[int, int], None]) -> None:
    config = uvicorn.Config(
        app,
        http=_checked(gid, refused),
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=1,
    )
    try:
        await Server(config).serve(sockets=[sock])
    finally:
        sock.close()
