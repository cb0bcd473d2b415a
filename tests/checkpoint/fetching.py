"""What the tests of fetching share: a small checkpoint, a server of files with faults, the CLI as a process."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from appliance.checkpoint.fetch import Fetched, fetch
from appliance.checkpoint.progress import Progress

REPO = Path(__file__).parents[2]
FIRST, SECOND, THIRD = (f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3))
_started: list[subprocess.Popen[str]] = []


def sha(data: bytes) -> str:
    """SHA-256 in hex digits."""
    return hashlib.sha256(data).hexdigest()


def shard(name: str, size: int) -> bytes:
    """A sound safetensors file with one U8 tensor `name` of `size` bytes, different for each name."""
    header = json.dumps({name: {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    header += b" " * (-len(header) % 8)
    seed = hashlib.sha256(name.encode()).digest()
    return len(header).to_bytes(8, "little") + header + (seed * (size // len(seed) + 1))[:size]


def checkpoint(shards: int = 3, size: int = 300_000) -> dict[str, bytes]:
    """Files of a whole checkpoint: shards, index, configuration, tokenizer."""
    names = [f"model-{number:05}-of-{shards:05}.safetensors" for number in range(1, shards + 1)]
    index = {"metadata": {}, "weight_map": {f"t{number}": name for number, name in enumerate(names)}}
    files = {name: shard(f"t{number}", size) for number, name in enumerate(names)}
    files["model.safetensors.index.json"] = json.dumps(index).encode()
    files["config.json"] = b'{"architectures": ["X"], "model_type": "x"}'
    files["tokenizer.json"] = b"{}"
    return files


def sums(files: dict[str, bytes]) -> bytes:
    """SHA256SUMS of files."""
    return "".join(f"{sha(data)}  {name}\n" for name, data in files.items()).encode()


@dataclass
class Asked:
    """One request: its path, its headers in lower case, and the bytes of the file that were sent."""

    path: str
    headers: dict[str, str]
    sent: int = 0


@dataclass
class FileServer:
    """Serves `files` (path without the first slash -> bytes) with ranges, ETags and If-Range.

    `hold`: path -> bytes after which a body stops until `release` is set (once it holds, `held` is set). `cut`: path ->
    bytes after which the connection is closed, one entry a request. `moved`: path -> URL. `etag` makes one, None leaves
    it out. `no_ranges_after`: all ranges but this many first bytes are ignored. `absent`: status,
    body and type of the answer for what is not there. `unsized`: paths whose body has no length and is sent twice.
    """

    files: dict[str, bytes]
    hold: dict[str, int] = field(default_factory=dict)
    cut: dict[str, list[int]] = field(default_factory=dict)
    moved: dict[str, str] = field(default_factory=dict)
    etag: Callable[[bytes], str | None] = lambda data: f'"{hashlib.md5(data).hexdigest()}"'
    no_ranges_after: int | None = None
    absent: tuple[int, bytes, str] = (404, b"no such file", "text/plain")
    unsized: frozenset[str] = frozenset()
    log: list[Asked] = field(default_factory=list)
    held: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)
    url: str = ""

    def __post_init__(self) -> None:
        self.files = dict(self.files)

    def sent(self, name: str = "") -> int:
        """Bytes of bodies that were sent, of one path or of all."""
        return sum(asked.sent for asked in self.log if not name or asked.path == name)

    @contextlib.contextmanager
    def running(self) -> Iterator[FileServer]:
        """Serve on a port of 127.0.0.1 until the end of the block."""
        with _Server(self) as server:
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
            thread.start()
            self.url = f"http://127.0.0.1:{server.server_address[1]}"
            try:
                yield self
            finally:
                self.release.set()
                server.shutdown()
                thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64  # a SYN that finds it full waits a second

    def __init__(self, of: FileServer) -> None:
        self.of = of
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that go away are part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:
        """Be quiet."""

    def do_GET(self) -> None:
        of, path = self.server.of, self.path[1:].partition("?")[0]
        asked = Asked(path, {key.lower(): value for key, value in self.headers.items()})
        of.log.append(asked)
        if path in of.moved:
            self.send_response(302)
            self.send_header("Location", of.moved[path])
            self._end(b"")
            return
        data = of.files.get(path)
        if data is None:
            status, body, kind = of.absent
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self._end(body)
            return
        if path in of.unsized and asked.headers.get("range") != "bytes=0-0":
            self.send_response(200)
            self.end_headers()
            self.close_connection = True
            self._body(of, asked, data * 2)
            return
        self._send(of, asked, data)

    def _send(self, of: FileServer, asked: Asked, data: bytes) -> None:
        etag = of.etag(data)
        span = asked.headers.get("range", "")
        if of.no_ranges_after is not None and span != f"bytes=0-{of.no_ranges_after - 1}":
            span = ""
        if asked.headers.get("if-range", etag) != etag:
            span = ""
        first, last = 0, len(data) - 1
        if span:
            begin, _, end = span.removeprefix("bytes=").partition("-")
            first, last = int(begin), min(int(end or last), last)
            if first >= len(data):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(data)}")
                self._end(b"")
                return
        self.send_response(206 if span else 200)
        if span:
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
        if etag:
            self.send_header("ETag", etag)
        self.send_header("Content-Length", str(last + 1 - first))
        self.end_headers()
        self._body(of, asked, data[first : last + 1])

    def _body(self, of: FileServer, asked: Asked, body: bytes) -> None:
        short = len(body) <= 1
        cut = of.cut[asked.path].pop(0) if of.cut.get(asked.path) and not short else len(body)
        hold = of.hold.get(asked.path, cut) if not short else cut
        for first, end in ((0, min(hold, cut)), (hold, cut)):
            if first == hold and hold < cut:
                self.wfile.flush()
                of.held.set()
                of.release.wait(20)
            for at in range(first, end, 65536):
                piece = body[at : min(at + 65536, end)]
                self.wfile.write(piece)
                asked.sent += len(piece)
        if cut < len(body):
            self.close_connection = True

    def _end(self, body: bytes) -> None:
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


async def fetched(url: str, folder: Path, **options: Any) -> Fetched:
    """`fetch` as tests want it: no environment, progress thrown away."""

    def ignore(_now: Progress) -> None:
        pass

    defaults: dict[str, Any] = {"environ": {}, "on_progress": ignore}
    return await fetch(url, folder, **(defaults | options))


async def interrupted(server: FileServer, folder: Path, at: int = 200_000) -> None:
    """A fetch that is cancelled when half of `at` bytes of the first shard came at least, and all else is there."""
    server.hold[FIRST] = at
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("appliance.checkpoint.download._WRITE_BYTES", 10_000)
        task = asyncio.create_task(fetched(server.url, folder))
        while not ({SECOND, THIRD} <= names(folder) and (folder / f"{FIRST}.part").stat().st_size >= at // 2):
            assert not task.done(), task
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    del server.hold[FIRST]
    server.release.set()


def names(folder: Path) -> set[str]:
    """What lies in a folder, our own hidden files left out."""
    return {path.name for path in folder.iterdir() if not path.name.startswith(".moe-appliance")}


def everything(folder: Path) -> bytes:
    """All bytes of all files of a folder."""
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def noted_syncs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Make fsync note the size of the file and return at once."""
    sizes: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda fd: sizes.append(os.fstat(fd).st_size))
    return sizes


def start(*arguments: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """`moe-appliance checkpoint ...` as a process."""
    own = {key: value for key, value in os.environ.items() if key not in ("HF_TOKEN", "MOE_CHECKPOINT_TOKEN")}
    process = subprocess.Popen(
        [sys.executable, "-m", "appliance", "checkpoint", *arguments],
        cwd=REPO,
        env=own | (env or {}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    _started.append(process)
    return process


def end_started() -> None:
    """End what `start` started and no test finished."""
    for process in _started:
        with process:
            process.kill()
    _started.clear()


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    out, err = process.communicate(timeout=20)
    return process.returncode, out, err


def wait_for(condition: Callable[[], bool], limit_s: float = 10.0) -> None:
    """Return once the condition holds."""
    end_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end_s, "it did not happen"
        time.sleep(0.01)
