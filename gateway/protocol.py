"""uvicorn's HTTP/1.1 protocol, hardened for a socket that strangers reach. Touches the connection.

What uvicorn does not do, and why each is here:
1. Heads are bounded (64 KiB, 10 s): httptools joins header pieces in quadratic time, before any key was seen. So
   are bytes of a body that bring no body: trailers, chunk extensions.
2. `Upgrade:` is hidden from the parser: it would take the body that follows for another protocol, or for a
   second request.
3. Pipelined requests are not read: uvicorn stops reading to queue them and then no longer notices that the
   client is gone. The first is answered and the connection closed; clients send the second again.
4. What a client goes on sending after it was answered is thrown away, for 30 s at most; only then is a
   connection closed that should be. Closing with bytes unread resets it, and the answer may be lost.
5. A connection can be cut: `scope["moe.abort"]()`. An ordinary close waits for a client that reads nothing.
   `scope["moe.unsent"]()` are the bytes that wait for the client, the kernel's included: while they get fewer, it
   reads. The kernel asks for more only when a third of its buffer is free, seconds apart for a slow reader.
6. Vanished and stalled clients: TCP_USER_TIMEOUT, keepalive and a small send buffer on each accepted socket.
7. A half-close counts as gone, also right behind a request (`nc -N`): a killed agent looks just the same until
   something is written to it, and its stream must end at once.
8. A head that cannot become one (a TLS hello, lines that end in LF alone) is answered at once, not after 10 s.
9. An HTTP/1.0 client gets the bytes without chunks; uvicorn would chunk them for it.
10. Connections are counted, idle ones given up for newcomers (connections.py). Who finds no room is told so before a
   byte is read, and not waited for: waiting would be what there is no room for.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import fcntl
import re
import socket
import termios

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.connections import Connection, Connections

HEAD_MAX_BYTES = 64 * 1024
HEAD_TIMEOUT_S = 10.0
DISCARD_TIMEOUT_S = 30.0
LAST_WORDS_S = 2.0
SEND_BUFFER_BYTES = 256 * 1024
"""Linux would grow it to 4 MB, minutes of a stream, before a stalled client is noticed. Source: measured."""
KEEPALIVE = ((socket.TCP_KEEPIDLE, 15), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))
"""Seconds, seconds, probes: finds a vanished client also while nothing is sent to it."""

_UPGRADE = re.compile(rb"(?im)^upgrade(?=[ \t]*:)")
_CHUNKED = b"transfer-encoding: chunked\r\n\r\n"
"""How uvicorn ends the head of a response that it chunks."""


def _last_words(status: str, text: str, heals: bool = False) -> bytes:
    """An answer to what never became a request; the connection is closed behind it."""
    lines = (
        f"HTTP/1.1 {status}",
        "content-type: text/plain; charset=utf-8",
        f"content-length: {len(text)}",
        "connection: close",
        *(() if heals else ("x-should-retry: false",)),
        "",
        text,
    )
    return "\r\n".join(lines).encode()


_TOO_LARGE = _last_words("431 Request Header Fields Too Large", "")
_TOO_SLOW = _last_words(
    "408 Request Timeout", f"The head of the request did not arrive within {HEAD_TIMEOUT_S:g} s.\n", heals=True
)
_TLS = _last_words("400 Bad Request", "This port speaks http, not https.\n")
_NOT_HTTP = _last_words("400 Bad Request", "This is not an HTTP request.\n")
_BARE_LF = _last_words("400 Bad Request", "Lines of an HTTP request end in CR LF, not in LF alone.\n")
_NO_ROOM = _last_words(
    "503 Service Unavailable", "There are too many connections. Try again in a moment.\n", heals=True
)


def hardened(stall_s: float, connections: Connections | None = None) -> type[HttpToolsProtocol]:
    """The protocol class for uvicorn. `stall_s`: a client that acknowledges nothing for so long is cut by the
    kernel; 0 disables. `connections`: where they are counted."""

    class Hardened(_Hardened):
        user_timeout_ms = int(stall_s * 1000)
        table = connections or Connections()

    return Hardened


class _Hardened(HttpToolsProtocol):
    user_timeout_ms = 0
    table: Connections

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head = b""
        self._in_head = True
        self._skip = False
        self._refused = False
        self._heading = False
        self._fruitless = 0
        _set_options(transport.get_extra_info("socket"), self.user_timeout_ms)
        self._timer: asyncio.TimerHandle | None = self.loop.call_later(HEAD_TIMEOUT_S, self._late)
        self._enter()

    def _enter(self) -> None:
        """Take a place, or go (10)."""
        self._counted = Connection(self.client[0] if self.client else "", self.transport.close)
        entry = self.table.enter(self._counted)
        if entry.given_up is not None:
            entry.given_up.cut()
        if not entry.admitted:
            self._refused = True
            self.transport.write(_NO_ROOM)
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.table.leave(self._counted)
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if self._in_head:
            data = self._whole_head(data)
            if not data:
                return
        elif self._answering():  # 3
            self.cycle.keep_alive = False
            return
        self._fruitless += len(data)
        super().data_received(data)
        if self._fruitless > HEAD_MAX_BYTES and not self._in_head and not self.transport.is_closing():
            self.transport.abort()  # trailers or a chunk extension without end

    def _whole_head(self, data: bytes) -> bytes:
        """The head and what follows it, once it is whole and within bounds (1, 2, 8)."""
        if not self._head and self._timer is None:
            self._timer = self.loop.call_later(HEAD_TIMEOUT_S, self._late)
        self._unset_keepalive_if_required()
        known = len(self._head)
        self._head = self._head + data if known else data.lstrip(b"\r\n")  # empty lines may precede a request
        end = self._head.find(b"\r\n\r\n", max(0, known - 3))
        if (refusal := self._hopeless(known, end)) is not None:
            self._refuse(refusal)
            return b""
        if end < 0:
            return b""
        self._stop_timer()
        whole, self._head = self._head, b""
        self._in_head = False
        head = whole[:end]
        return _UPGRADE.sub(b"x-pgrade", head) + whole[end:] if b"pgrade" in head.lower() else whole

    def _hopeless(self, known: int, end: int) -> bytes | None:
        """What to answer to a head that will never be taken; `known` bytes of it were looked at before."""
        head = self._head
        if not known and head and not head[:1].isalpha():
            return _TLS if head[0] == 0x16 else _NOT_HTTP  # 0x16: a TLS handshake record
        if end < 0 and head.find(b"\n\n", max(0, known - 1)) >= 0:
            return _BARE_LF
        return _TOO_LARGE if (end if end >= 0 else len(head)) > HEAD_MAX_BYTES else None

    def _late(self) -> None:
        """The head did not come in time. A connection on which nothing was asked is closed without a word."""
        if self._head:
            self._refuse(_TOO_SLOW)
        else:
            self.transport.abort()

    def _refuse(self, answer: bytes) -> None:
        """Answer and close; what still comes is thrown away, since closing on it would lose the answer."""
        self._head = b""
        self._in_head = False
        self._refused = True
        self._stop_timer()
        self._timer = self.loop.call_later(LAST_WORDS_S, self.transport.abort)
        self.transport.write(answer)
        self.transport.write_eof()

    def _unsent_bytes(self) -> int:
        queued = array.array("i", [0])
        with contextlib.suppress(OSError):
            fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, queued)
        return self.transport.get_write_buffer_size() + queued[0]

    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.more_body and not self.cycle.response_complete

    # Parser callbacks

    def on_message_begin(self) -> None:
        if self._answering():  # 3: a second request in the same piece of data
            self._skip = True
            self.cycle.keep_alive = False
            return
        self._skip = False
        self._heading = True
        super().on_message_begin()
        self.scope["moe.abort"] = self.transport.abort  # type: ignore[typeddict-unknown-key]
        self.scope["moe.unsent"] = self._unsent_bytes  # type: ignore[typeddict-unknown-key]

    def on_url(self, url: bytes) -> None:
        if not self._skip:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._skip and self._heading:  # trailers are nobody's
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._heading = False
        self._fruitless = 0
        if not self._skip:
            self._in_head = False  # also for one that came in the same piece as what was thrown away before it (4)
            self.table.asks(self._counted)
            super().on_headers_complete()
            if self.scope["http_version"] == "1.0":  # 9
                self.cycle.waiting_for_100_continue = False
                self.cycle.transport = _Unchunked(self)  # type: ignore[assignment]
            elif not self.cycle.keep_alive:
                self.cycle.transport = _ClosedLast(self)  # type: ignore[assignment]

    def on_body(self, body: bytes) -> None:
        self._fruitless = 0
        if not self._skip:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self._skip:
            return
        super().on_message_complete()
        if self.cycle.response_complete:
            self._next_request()
            if not self.cycle.keep_alive:
                self.transport.close()

    def on_response_complete(self) -> None:
        self.table.rests(self._counted)
        super().on_response_complete()
        if self.transport.is_closing():
            return
        if self.cycle.more_body:  # 4
            self._timer = self.loop.call_later(DISCARD_TIMEOUT_S, self.transport.abort)
            if not any(name == b"content-length" for name, _ in self.cycle.scope["headers"]):
                # To find the end of a chunked body it would have to be parsed, a byte a chunk if the client likes:
                # 95 % of a core for one without a key (measured). So it is not, and the connection ends here.
                self._refused = True
                self.transport.write_eof()
        else:
            self._next_request()

    def _next_request(self) -> None:
        self._stop_timer()
        self._in_head = True

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _set_options(accepted: socket.socket, user_timeout_ms: int) -> None:
    """6. uvloop's own socket makes a new one for each option that is set."""
    sock = socket.socket(accepted.family, accepted.type, accepted.proto, accepted.fileno())
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, user_timeout_ms)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in KEEPALIVE:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
    except OSError:  # it is gone already
        pass
    finally:
        sock.detach()


class _ClosedLast:
    """The transport of a request whose connection is to be closed behind it: not before its body has come (4)."""

    def __init__(self, protocol: _Hardened) -> None:
        self._protocol = protocol
        self.write = protocol.transport.write
        self.is_closing = protocol.transport.is_closing

    def close(self) -> None:
        if not self._protocol.cycle.more_body:
            self._protocol.transport.close()


class _Unchunked(_ClosedLast):
    """The same for an HTTP/1.0 client (9): what uvicorn writes, without its chunks. The end of the connection is
    the end of the body; what a stream says last tells whether it is whole."""

    def __init__(self, protocol: _Hardened) -> None:
        super().__init__(protocol)
        self._write = protocol.transport.write
        self._started = self._chunked = False
        self.write = self._without_chunks  # type: ignore[assignment]  # uvicorn writes bytes only

    def _without_chunks(self, data: bytes) -> None:
        if not self._started:
            self._started = True
            self._chunked = data.endswith(_CHUNKED)
            data = data.removesuffix(_CHUNKED) + b"\r\n" if self._chunked else data
        elif self._chunked:  # uvicorn writes one chunk at a time, the last with the terminating one behind it
            size, _, rest = data.partition(b"\r\n")
            data = rest[: int(size, 16)] if data else data
        self._write(data)
