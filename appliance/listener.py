"""Opens the public socket, and answers on it while there is no gateway. Touches the network.

Rules:
- The socket is opened once, before anything else, and stays open until the daemon ends: a gateway that is
  replaced never makes a client see a refused connection.
- What accepted connections need (TCP_NODELAY, TCP_USER_TIMEOUT, ...) gateway/protocol.py sets on each.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import socket

from appliance.errors import ConfigError, PortTaken

BACKLOG = 1024
ABSENT_RETRY_S = 10
READ_LIMIT_S = 2.0
CONNECTIONS_MAX = 256


class AddressAbsent(ConfigError):
    """The machine has no such address; at boot it may get it yet."""


_ABSENT_BODY = json.dumps(
    {
        "error": {
            "message": f"The gateway of this box is being restarted. Retry in {ABSENT_RETRY_S} s.",
            "type": "service_unavailable_error",
            "param": None,
            "code": "gateway_absent",
        }
    }
).encode()
ABSENT_ANSWER = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n"
    + f"retry-after: {ABSENT_RETRY_S}\r\ncontent-length: {len(_ABSENT_BODY)}\r\n".encode()
    + b"x-moe-reject-reason: gateway_absent\r\nconnection: close\r\n\r\n"
    + _ABSENT_BODY
)


def open_public(host: str, port: int) -> socket.socket:
    """The listening socket. Raises PortTaken when the address is in use, AddressAbsent when this machine has none such,
    another ConfigError when it cannot be used."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise _bind_error(host, port, error) from error
    sock.setblocking(False)
    return sock


def _bind_error(host: str, port: int, error: OSError) -> ConfigError | PortTaken:
    where = f"{host}:{port}"
    match error.errno:
        case errno.EADDRINUSE:
            remedy = f"find it with: ss -ltnp 'sport = :{port}'  or set another listen = \"{host}:PORT\""
            return PortTaken(f"the address {where} is in use by another program", remedy)
        case errno.EACCES:
            return ConfigError(f"no permission to listen on {where}", "set listen to a port of 1024 or above")
        case errno.EADDRNOTAVAIL:
            return AddressAbsent(f"this machine has no address {host}", "see: ip -brief address; then correct listen")
        case _:
            return ConfigError(f"cannot listen on {where}: {error.strerror}", "correct listen in appliance.toml")


async def answer_absent(public: socket.socket) -> None:
    """Accept and answer 503 until cancelled; returns when those that were accepted have their answer, within
    `READ_LIMIT_S`."""
    async with asyncio.TaskGroup() as group:
        # Swallowed, so that it ends the accepting alone: the group would hand it on to every answer.
        with contextlib.suppress(asyncio.CancelledError):
            await _accept(public, group)


async def _accept(public: socket.socket, group: asyncio.TaskGroup) -> None:
    loop = asyncio.get_running_loop()
    room = asyncio.Semaphore(CONNECTIONS_MAX)
    while True:
        await room.acquire()
        try:
            connection, _ = await loop.sock_accept(public)
        except OSError:
            room.release()
            await asyncio.sleep(0.1)
            continue
        task = group.create_task(_answer(loop, connection))
        task.add_done_callback(lambda _: room.release())


async def _answer(loop: asyncio.AbstractEventLoop, connection: socket.socket) -> None:
    """Read the head, answer, and read what else comes for a moment: closing on unread bytes would reset the
    connection and lose the answer."""
    connection.setblocking(False)
    with connection, contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(READ_LIMIT_S):
            head = b""
            while b"\r\n\r\n" not in head and len(head) < 65_536:
                data = await loop.sock_recv(connection, 16_384)
                if not data:
                    return
                head += data
            await loop.sock_sendall(connection, ABSENT_ANSWER)
            connection.shutdown(socket.SHUT_WR)
            while await loop.sock_recv(connection, 65_536):
                pass
