"""For tests: the fake engine as a subprocess that never outlives the test.

Touches processes and sockets, blocking. Rules: the engine leads a session and group of its own; leaving the
context kills that group and each grandchild by pid; if the test process itself dies, the closed stdin ends them.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from tests.fake_engine.__main__ import GRANDCHILD_MARK

_ROOT = Path(__file__).parents[2]
_START_LIMIT_S = 20.0


class Engine:
    """A running fake engine. `grandchildren` are pids; `process` tells the exit code."""

    def __init__(self, process: subprocess.Popen[bytes], log: IO[bytes], key: str | None) -> None:
        self.process = process
        self._log = log
        self._key = key
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            process.wait()
            raise RuntimeError(f"the fake engine did not start:\n{self.log()}")
        first = json.loads(line)
        self.url: str = first["url"]
        self.pid: int = first["pid"]
        self.grandchildren: list[int] = first["grandchildren"]

    def log(self) -> str:
        """All it wrote to stderr so far."""
        return os.pread(self._log.fileno(), 1 << 24, 0).decode(errors="replace")

    def request(self, method: str, path: str, body: object = None) -> tuple[int, bytes]:
        """One plain HTTP request: status and body. Raises OSError when it is not there."""
        connection = HTTPConnection(urlsplit(self.url).netloc, timeout=10)
        headers = {} if self._key is None else {"authorization": f"Bearer {self._key}"}
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, headers)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def stats(self) -> dict[str, Any]:
        """GET /_fake/stats."""
        status, body = self.request("GET", "/_fake/stats")
        assert status == 200, body
        plain: dict[str, Any] = json.loads(body)
        return plain

    def set(self, **knobs: object) -> None:
        """Merge knobs into the running engine."""
        status, body = self.request("POST", "/_fake/knobs", knobs)
        assert status == 200, body

    def reset(self) -> None:
        """First knobs, empty cache, new stats."""
        status, body = self.request("POST", "/_fake/reset", {})
        assert status == 200, body

    def wait_ready(self, limit_s: float = _START_LIMIT_S) -> None:
        """Until /health is 200 or the process has ended. Raises TimeoutError."""
        give_up_at = time.monotonic() + limit_s
        while self.process.poll() is None:
            with contextlib.suppress(OSError):
                if self.request("GET", "/health")[0] == 200:
                    return
            if time.monotonic() > give_up_at:
                raise TimeoutError(f"the fake engine is not ready after {limit_s} s:\n{self.log()}")
            time.sleep(0.005)

    def kill(self) -> None:
        """SIGKILL for the engine alone, as when the kernel takes it; grandchildren stay. Waits for its end."""
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """The engine, its group, and grandchildren in sessions of their own."""
        if self.process.poll() is None or self.grandchildren:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        for pid in self.grandchildren:
            if is_grandchild(pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.process.wait()


def is_grandchild(pid: int) -> bool:
    """Whether `pid` is a living grandchild of a fake engine, and not a stranger with its number."""
    try:
        return GRANDCHILD_MARK.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


@contextmanager
def fake_engine(*, key_file: Path | None = None, wait: bool = True, **knobs: object) -> Iterator[Engine]:
    """Start an engine with these knobs on a free port and end it, with all it started, on leaving.

    Waits for /health unless `wait` is false or the knobs say that it never comes. Yields also when the engine
    ended while loading (fail_load); then `process.returncode` is set.
    """
    argv = [sys.executable, "-m", "tests.fake_engine", "--watch-stdin", "--knobs", json.dumps(knobs)]
    if key_file is not None:
        argv += ["--key-file", str(key_file)]
    key = key_file.read_text().strip() if key_file else None
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            argv,
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
        with process:
            engine = Engine(process, log, key)
            try:
                if wait and not knobs.get("never_ready") and not knobs.get("hang_health"):
                    engine.wait_ready()
                yield engine
            finally:
                engine.end()
