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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self
from urllib.parse import unquote, urlsplit

PIECE_BYTES = 1 << 20
ONE_BYTE = "bytes=0-0"


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
    if_range: str | None
    status: int
    sent_bytes: int


@dataclass(slots=True)
class Trouble:
    """What happens to the next `left` requests whose path ends with `match`.

    `status`: this answer, with Retry-After where given; 0: the connection is dropped. `cut_after_bytes`: the body ends
    there, though its length promised more; ranges of one byte, which a fetch asks for first, are not cut, nor counted.
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

    Knobs, to be set before a request: `latency_s` before each answer; `ignores` says which ranges are not honoured;
    `etag` strong, weak or none; `content_range` rewrites that header, None leaves it out; `token` is demanded as a
    bearer token (else 401); `redirect` gives the target of a path or None; `pages` by path; `absent` is what a path
    without a file answers; `troubles` by turn; `hold`: path -> bytes after which a body stops until `release` is set
    (once it holds, `held` is set).
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.latency_s = 0.0
        self.ignores: Callable[[str], bool] = lambda _range: False
        self.etag = "strong"
        self.content_range: Callable[[str], str | None] = lambda said: said
        self.token: str | None = None
        self.redirect: Callable[[str], str | None] = lambda _path: None
        self.pages: dict[str, Page] = {}
        self.absent = Page(b"no such file", "text/plain", 404)
        self.troubles: list[Trouble] = []
        self.hold: dict[str, int] = {}
        self.held = threading.Event()
        self.release = threading.Event()
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

    def sent(self, ending: str) -> int:
        """Bytes of bodies for paths that end so."""
        return sum(seen.sent_bytes for seen in self.of(ending))

    def answer(self, request: Request) -> None:
        """Routes one request; a subclass has more routes."""
        if page := self.pages.get(request.path):
            request.send_page(page)
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
        self.release.set()
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

    def trouble_for(self, path: str, asked: str | None) -> Trouble | None:
        """What is to go wrong with this request for a range, used up."""
        with self.lock:
            for trouble in self.troubles:
                if trouble.cut_after_bytes is not None and asked == ONE_BYTE:
                    continue
                if trouble.left > 0 and path.endswith(trouble.match):
                    trouble.left -= 1
                    return trouble
        return None


class FileServer(RangeServer):
    """Serves `files` (path without the first slash -> bytes), which a test changes as it goes.

    `validator` makes their ETags, None leaves one out; `unsized`: paths whose body has no length and is sent twice.
    """

    def __init__(self, files: Mapping[str, bytes], **knobs: Any) -> None:
        super().__init__(Path())
        self.files = dict(files)
        self.validator: Callable[[bytes], str | None] = lambda data: f'"{md5(data).hexdigest()}"'
        self.unsized: frozenset[str] = frozenset()
        for name, value in knobs.items():
            assert hasattr(self, name), name
            setattr(self, name, value)

    def answer(self, request: Request) -> None:
        """See RangeServer."""
        name = request.path[1:]
        data = self.files.get(name)
        if target := self.redirect(request.path):
            request.send(302, b"elsewhere", {"Location": target})
        elif data is None:
            request.send_page(self.absent)
        elif name in self.unsized and request.headers.get("Range") != ONE_BYTE:
            request.send_endless(data * 2)
        else:
            etag = self.validator(data)
            request.send_content(BytesIO(data), len(data), {} if etag is None else {"ETag": etag})


class _Http(ThreadingHTTPServer):
    daemon_threads = False
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], owner: RangeServer) -> None:
        self.owner = owner
        super().__init__(address, Request)

    def process_request(self, request: socket.socket, client_address: object) -> None:  # type: ignore[override]
        self.owner.opened(request)
        super().process_request(request, client_address)

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
        self.trouble = owner.trouble_for(self.path, self.headers.get("Range"))
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
            self.send_page(owner.absent)
            return
        status = path.stat()
        etag = f'"{status.st_mtime_ns:x}-{status.st_size:x}"'
        more = dict(headers or {})
        if owner.etag != "none":
            more.setdefault("ETag", etag if owner.etag == "strong" else f"W/{etag}")
        with path.open("rb") as file:
            self.send_content(file, status.st_size, more)

    def send_content(self, file: BinaryIO, size: int, headers: dict[str, str]) -> None:
        """`size` bytes or the range of them that was asked for."""
        owner, more = self.server.owner, {"Accept-Ranges": "bytes", **headers}
        if "ETag" in more and self.headers.get("If-None-Match") == more["ETag"]:
            self.send(304, b"", more)
            return
        asked = self.headers.get("Range")
        if asked is not None and owner.ignores(asked):
            asked = None
        if self.headers.get("If-Range", more.get("ETag")) != more.get("ETag"):
            asked = None
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", asked or "")
        if match is None:
            self._send_part(200, file, 0, size, more)
            return
        first = int(match[1])
        last = min(int(match[2] or size), size - 1)
        if first >= size:
            self.send(416, b"", {**more, "Content-Range": f"bytes */{size}"})
            return
        said = owner.content_range(f"bytes {first}-{last}/{size}")
        self._send_part(206, file, first, last + 1 - first, more if said is None else {**more, "Content-Range": said})

    def send_page(self, page: Page) -> None:
        """This page in place of a file."""
        self.send(page.status, page.body, {"Content-Type": page.content_type, **page.headers})

    def send_endless(self, body: bytes) -> None:
        """A body without a length; the end of the connection ends it."""
        self._saw(200, len(body))
        self.send_response_only(200)
        self.end_headers()
        self.close_connection = True
        self.wfile.write(body)

    def send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        """An answer with this body."""
        bare = self.command == "HEAD" or status == 304
        self._saw(status, 0 if bare else len(body))
        self._head(status, len(body), headers)
        if not bare:
            self.wfile.write(body)

    def _send_part(self, status: int, file: BinaryIO, first: int, length: int, headers: dict[str, str]) -> None:
        cut = self.trouble.cut_after_bytes if self.trouble is not None else None
        owner = self.server.owner
        end = 0 if self.command == "HEAD" else length if cut is None else min(length, cut)
        stop = owner.hold.get(self.path[1:], 0) if length > 1 else 0
        seen = self._saw(status, end)
        self._head(status, length, headers)
        self.close_connection = self.close_connection or cut is not None
        file.seek(first)
        sent = 0
        try:
            while sent < end and (piece := file.read(min(PIECE_BYTES, (stop if sent < stop < end else end) - sent))):
                self.wfile.write(piece)
                sent += len(piece)
                if sent == stop < end:
                    owner.held.set()
                    owner.release.wait(20)
        except OSError:  # the client has enough
            self.close_connection = True
            seen.sent_bytes = sent

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
            self.command, self.path, self.query, given("Range"), given("Authorization"), given("If-None-Match"),
            given("If-Range"), status, sent_bytes,
        )  # fmt: skip
        with self.server.owner.lock:
            self.server.owner.seen.append(seen)
        return seen

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""
