"""A file server on loopback with byte ranges, ETags, and every fault that a real one has. Touches sockets and files.

Runs in threads of the test's process. Sparse files are read where they are asked for, so that a checkpoint of 475 GiB
is served as fast as its headers. Everything that was asked is in `seen`, `connections` counts what was
opened for it.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import unquote, urlsplit

PIECE_BYTES = 1 << 20


@dataclass(slots=True)
class Seen:
    """One request, noted before its answer goes out. `status`: 0 when the connection was dropped without one;
    `sent_bytes`: of the body, less when the client left."""

    method: str
    path: str
    query: str
    range: str | None
    authorization: str | None
    if_none_match: str | None
    status: int
    sent_bytes: int


@dataclass(slots=True)
class Trouble:
    """What happens to the next `left` requests whose path ends with `match`.

    `status`: this answer, with Retry-After where given; 0: the connection is dropped. `cut_after_bytes`: the body ends
    there, though its length promised more.
    """

    left: int
    match: str = ""
    status: int | None = None
    retry_after: str | None = None
    cut_after_bytes: int | None = None


@dataclass(slots=True)
class Page:
    """What one path answers in place of a file."""

    body: bytes
    content_type: str = "text/html"
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


class RangeServer:
    """Serves `folder` while its context lasts.

    Knobs, to be set before a request: `latency_s` before each answer; `ignore_ranges`; `etag` strong, weak or none;
    `content_range` rewrites that header, None leaves it out; `token` is demanded as a bearer token (else 401);
    `redirect` gives the target of a path or None; `pages` by path; `troubles` by turn.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.latency_s = 0.0
        self.ignore_ranges = False
        self.etag = "strong"
        self.content_range: Callable[[str], str | None] = lambda said: said
        self.token: str | None = None
        self.redirect: Callable[[str], str | None] = lambda _path: None
        self.pages: dict[str, Page] = {}
        self.troubles: list[Trouble] = []
        self.seen: list[Seen] = []
        self.connections = 0
        self.lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._http = _Http(("127.0.0.1", 0), self)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        """Without a final slash."""
        host, port = self._http.server_address[:2]
        return f"http://{host!s}:{port}"

    @property
    def requests(self) -> int:
        """How many came."""
        return len(self.seen)

    @property
    def sent_bytes(self) -> int:
        """Of bodies."""
        return sum(seen.sent_bytes for seen in self.seen)

    def of(self, ending: str) -> list[Seen]:
        """The requests for paths that end so."""
        return [seen for seen in self.seen if seen.path.endswith(ending)]

    def answer(self, request: Request) -> None:
        """Routes one request; a subclass has more routes."""
        if page := self.pages.get(request.path):
            request.send(page.status, page.body, {"Content-Type": page.content_type, **page.headers})
        elif target := self.redirect(request.path):
            request.send(302, b"elsewhere", {"Location": target})
        else:
            request.send_file(self.folder / request.path.lstrip("/"))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.shutdown()
        self._thread.join()
        with self.lock:
            for connection in self._connections:
                with contextlib.suppress(OSError):  # its client was faster
                    connection.shutdown(socket.SHUT_RDWR)
        self._http.server_close()  # joins the connections' threads

    def opened(self, connection: socket.socket) -> None:
        """A connection is there, to be closed at the end."""
        with self.lock:
            self._connections.add(connection)
            self.connections += 1

    def closed(self, connection: socket.socket) -> None:
        """It is not any more."""
        with self.lock:
            self._connections.discard(connection)

    def trouble_for(self, path: str) -> Trouble | None:
        """What is to go wrong with this request, used up."""
        with self.lock:
            for trouble in self.troubles:
                if trouble.left > 0 and path.endswith(trouble.match):
                    trouble.left -= 1
                    return trouble
        return None


class _Http(ThreadingHTTPServer):
    daemon_threads = False
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], owner: RangeServer) -> None:
        self.owner = owner
        super().__init__(address, Request)

    def process_request(self, request: socket.socket, client_address: object) -> None:  # type: ignore[override]
        self.owner.opened(request)
        super().process_request(request, client_address)  # type: ignore[arg-type]

    def shutdown_request(self, request: socket.socket) -> None:  # type: ignore[override]
        self.owner.closed(request)
        super().shutdown_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients may leave when they like."""


class Request(BaseHTTPRequestHandler):
    """One connection, and the request that is served on it."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Http
    trouble: Trouble | None = None

    def do_GET(self) -> None:
        """Serves it, unless something is to go wrong."""
        owner = self.server.owner
        parts = urlsplit(self.path)
        self.path, self.query = unquote(parts.path), parts.query
        if owner.latency_s:
            time.sleep(owner.latency_s)
        self.trouble = owner.trouble_for(self.path)
        if self.trouble is not None and self.trouble.status is not None:
            self._fail(self.trouble)
        elif owner.token is not None and self.headers.get("Authorization") != f"Bearer {owner.token}":
            self.send(401, b"who are you?", {})
        else:
            owner.answer(self)

    do_HEAD = do_GET

    def send_file(self, path: Path, headers: dict[str, str] | None = None) -> None:
        """A file or the range of it that was asked for."""
        owner = self.server.owner
        if not path.is_file():
            self.send(404, b"no such file", {})
            return
        status = path.stat()
        etag = f'"{status.st_mtime_ns:x}-{status.st_size:x}"'
        more = {"Accept-Ranges": "bytes", **(headers or {})}
        if owner.etag != "none":
            more.setdefault("ETag", etag if owner.etag == "strong" else f"W/{etag}")
        if "ETag" in more and self.headers.get("If-None-Match") == more["ETag"]:
            self.send(304, b"", more)
            return
        asked = None if owner.ignore_ranges else self.headers.get("Range")
        if self.headers.get("If-Range", more.get("ETag")) != more.get("ETag"):
            asked = None
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", asked or "")
        if match is None:
            self._send_part(200, path, 0, status.st_size, more)
            return
        first = int(match[1])
        last = min(int(match[2] or status.st_size), status.st_size - 1)
        if first >= status.st_size:
            self.send(416, b"", {**more, "Content-Range": f"bytes */{status.st_size}"})
            return
        said = owner.content_range(f"bytes {first}-{last}/{status.st_size}")
        self._send_part(206, path, first, last + 1 - first, more if said is None else {**more, "Content-Range": said})

    def send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        """An answer with this body."""
        bare = self.command == "HEAD" or status == 304
        self._saw(status, 0 if bare else len(body))
        self._head(status, len(body), headers)
        if not bare:
            self.wfile.write(body)

    def _send_part(self, status: int, path: Path, first: int, length: int, headers: dict[str, str]) -> None:
        cut = self.trouble.cut_after_bytes if self.trouble is not None else None
        left = 0 if self.command == "HEAD" else length if cut is None else min(length, cut)
        seen = self._saw(status, left)
        self._head(status, length, headers)
        self.close_connection = self.close_connection or cut is not None
        try:
            with path.open("rb") as file:
                file.seek(first)
                while left > 0 and (piece := file.read(min(PIECE_BYTES, left))):
                    self.wfile.write(piece)
                    left -= len(piece)
        except OSError:  # the client has enough
            self.close_connection = True
            seen.sent_bytes -= left

    def _fail(self, trouble: Trouble) -> None:
        if trouble.status == 0:
            self.close_connection = True
            self._saw(0, 0)
            return
        assert trouble.status is not None
        self.send(
            trouble.status, b"not now", {} if trouble.retry_after is None else {"Retry-After": trouble.retry_after}
        )

    def _head(self, status: int, length: int, headers: dict[str, str]) -> None:
        self.send_response_only(status)
        self.send_header("Date", formatdate(usegmt=True))
        for name, value in headers.items():
            self.send_header(name, value)
        if "Content-Length" not in headers and status != 304:
            self.send_header("Content-Length", str(length))
        self.end_headers()

    def _saw(self, status: int, sent_bytes: int) -> Seen:
        given = self.headers.get
        seen = Seen(
            self.command, self.path, self.query, given("Range"), given("Authorization"), given("If-None-Match"), status,
            sent_bytes,
        )  # fmt: skip
        with self.server.owner.lock:
            self.server.owner.seen.append(seen)
        return seen

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""
