"""Real nginx and HAProxy with the snippets of docs/tls.md, each of which ends when its context does.

Touches processes, a temporary folder and loopback ports. Rules:
- A program leads a session of its own; leaving the context ends its whole group, and it is told to end when the
  test process dies.
- Both run with a master and workers, as the service manager runs them: a reload is a reload.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.tls import snippets

START_LIMIT_S = 10.0
STOP_LIMIT_S = 5.0
_NGINX_CONF = """\
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/nginx.log info;
worker_processes 1;
events {{ worker_connections 256; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
{server}
}}
"""
"""What the distribution's nginx.conf has around conf.d, with a test's own paths."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """Files: the certificate, its key, and both in one."""

    certificate: Path
    key: Path
    pem: Path


@dataclass(frozen=True, slots=True)
class Proxy:
    """A running program. `reload` makes it read its configuration again."""

    name: str
    port: int
    process: subprocess.Popen[bytes]
    log: Path
    reload_signal: signal.Signals

    def reload(self) -> None:
        """What the service manager does for `systemctl reload`."""
        self.process.send_signal(self.reload_signal)


def program(name: str) -> str:
    """Its path. Fails, in CI above all, when it is not installed; MOE_NO_PROXIES=1 skips instead."""
    found = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin:/usr/bin")
    if found is not None:
        return found
    if os.environ.get("MOE_NO_PROXIES") == "1":
        pytest.skip(f"{name} is not installed, and MOE_NO_PROXIES=1")
    pytest.fail(f"{name} is not installed: apt-get install nginx-light haproxy openssl (or set MOE_NO_PROXIES=1)")


def make_certificate(folder: Path) -> Certificate:
    """A certificate for the page's host that signs itself."""
    made = Certificate(folder / "fullchain.pem", folder / "privkey.pem", folder / "box.pem")
    argv = [program("openssl"), "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    argv += ["-nodes", "-days", "2", "-subj", f"/CN={snippets.NAME}", "-addext", f"subjectAltName=DNS:{snippets.NAME}"]
    argv += ["-keyout", str(made.key), "-out", str(made.certificate)]
    subprocess.run(argv, check=True, capture_output=True, timeout=30)
    made.pem.write_text(made.certificate.read_text() + made.key.read_text())
    return made


def as_it_is(text: str) -> str:
    """The snippet, unspoilt."""
    return text


Change = Callable[[str], str]


@contextmanager
def nginx(folder: Path, gateway_port: int, certificate: Certificate, change: Change = as_it_is) -> Iterator[Proxy]:
    """nginx with the server block; `change` edits it for a test that shows what a line is for."""
    port = _free_port()
    server = snippets.nginx_server(port, f"127.0.0.1:{gateway_port}", certificate.certificate, certificate.key)
    conf, log = folder / "nginx.conf", folder / "nginx.log"
    conf.write_text(_NGINX_CONF.format(folder=folder, server=change(server)))
    argv = [program("nginx"), "-p", str(folder), "-c", str(conf), "-e", str(log)]
    with _served("nginx", argv, port, log, signal.SIGHUP) as proxy:
        yield proxy


@contextmanager
def haproxy(folder: Path, gateway_port: int, certificate: Certificate, change: Change = as_it_is) -> Iterator[Proxy]:
    """HAProxy with the file; `change` as above."""
    port = _free_port()
    cfg = folder / "haproxy.cfg"
    cfg.write_text(change(snippets.haproxy_cfg(port, f"127.0.0.1:{gateway_port}", certificate.pem)))
    argv = [program("haproxy"), "-W", "-f", str(cfg)]
    with _served("haproxy", argv, port, folder / "haproxy.log", signal.SIGUSR2) as proxy:
        yield proxy


STARTS = {"nginx": nginx, "haproxy": haproxy}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _served(name: str, argv: list[str], port: int, log: Path, reload_signal: signal.Signals) -> Iterator[Proxy]:
    setpriv = shutil.which("setpriv")
    if setpriv is not None:  # not KILL: a master that is killed leaves its workers behind
        argv = [setpriv, "--pdeathsig", "TERM", "--", *argv]
    with log.open("ab") as out:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True, cwd=log.parent
        )
    try:
        give_up_s = time.monotonic() + START_LIMIT_S
        while not _listens(port):
            if process.poll() is not None or time.monotonic() > give_up_s:
                pytest.fail(f"{name} did not start:\n{log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.01)
        yield Proxy(name, port, process, log, reload_signal)
    finally:
        _end(process)


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def _end(process: subprocess.Popen[bytes]) -> None:
    """The master ends its workers; whatever of its group is left then is killed."""
    process.terminate()
    try:
        process.wait(STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
