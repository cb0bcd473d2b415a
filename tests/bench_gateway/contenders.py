"""Starts upstream, nginx and gateway, each of which ends when its context does, whatever happens.

Touches processes, a temporary folder and loopback ports.
"""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gateway.keys import SEAT_PREFIX, digest_of, new_key
from tests.bench_gateway import procfs

ROOT = Path(__file__).parents[2]
START_LIMIT_S = 20.0
STOP_LIMIT_S = 5.0
_NGINX_CONF = """\
daemon off;
master_process off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/nginx.log warn;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    client_max_body_size 64m;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    upstream engine {{
        server 127.0.0.1:{upstream};
        keepalive 16;
    }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://engine;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
            proxy_read_timeout 600s;
        }}
    }}
}}
"""
"""What a careful person writes by hand for event streams."""


class StartError(Exception):
    """A process of the benchmark did not come up."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to the upstream: `pid` None = direct; `keys` are seat keys, one for each stream."""

    name: str
    port: int
    pid: int | None
    keys: tuple[str, ...]


def find_nginx() -> str | None:
    """Path of nginx, None when there is none."""
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")


@contextmanager
def upstream(core: int | None) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The upstream process and its port; its stdout reports closed connections."""
    argv = [sys.executable, "-m", "tests.bench_gateway.upstream"]
    with _process(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.strip().isdigit():
            raise StartError("the upstream of the benchmark did not start")
        if core is not None:
            procfs.pin(process.pid, core)
        yield process, int(line)


@contextmanager
def nginx(binary: str, folder: Path, upstream_port: int, core: int | None) -> Iterator[Contender]:
    """nginx with one worker, buffering off and connections to the upstream kept alive."""
    port = free_port()
    conf = folder / "nginx.conf"
    conf.write_text(_NGINX_CONF.format(folder=folder, port=port, upstream=upstream_port))
    argv = [binary, "-p", str(folder), "-c", str(conf), "-e", str(folder / "nginx.log")]
    with _served("nginx", argv, port, folder / "nginx.out", core, "/") as process:
        yield Contender("nginx", port, process.pid, ("none",))


@contextmanager
def gateway(folder: Path, upstream_port: int, seats: int, core: int | None) -> Iterator[Contender]:
    """The gateway alone, with `seats` seats and one stream more."""
    port = free_port()
    keys = tuple(new_key(SEAT_PREFIX, os.urandom(32)) for _ in range(seats))
    rows = [f'[seats.bench{number}]\ndigest = "{digest_of(key)}"\n' for number, key in enumerate(keys)]
    (folder / "seats.toml").write_text("\n".join(rows))
    argv = [sys.executable, "-P", "-m", "gateway", "--listen", f"127.0.0.1:{port}"]
    argv += [
        "--engine-url",
        f"http://127.0.0.1:{upstream_port}",
        "--model",
        "fake",
        "--streams",
        str(seats + 1),
    ]  # the last ticket would wait for the paces of the others
    argv += ["--seats", str(folder / "seats.toml"), "--state-dir", str(folder)]
    with _served("gateway", argv, port, folder / "gateway.log", core, "/ready") as process:
        yield Contender("gateway", port, process.pid, keys)


def free_port() -> int:
    """A loopback port that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _served(
    name: str, argv: list[str], port: int, log: Path, core: int | None, path: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that answers on `port`."""
    with log.open("wb") as out, _process(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=ROOT) as process:
        deadline_s = time.monotonic() + START_LIMIT_S
        while not _answers(port, path):
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise StartError(f"{name} did not start:\n{log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.05)
        if core is not None:
            procfs.pin(process.pid, core)
        yield process


def _answers(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", path)
        return connection.getresponse().status in (200, 404)
    except OSError:
        return False
    finally:
        connection.close()


@contextmanager
def _process(argv: list[str], **options: object) -> Iterator[subprocess.Popen[bytes]]:
    """A child in a session of its own (so Ctrl-C reaches us alone), ended with us even when we are killed."""
    setpriv = shutil.which("setpriv")
    if setpriv is not None:
        argv = [setpriv, "--pdeathsig", "KILL", "--", *argv]
    process: subprocess.Popen[bytes] = subprocess.Popen(argv, start_new_session=True, **options)  # type: ignore[call-overload]
    try:
        yield process
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            process.send_signal(number)
            try:
                process.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                continue
