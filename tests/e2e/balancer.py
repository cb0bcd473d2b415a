"""Real HAProxy in front of boxes, with the configuration that `moe-appliance scale haproxy` prints.

Touches a process, a temporary folder, loopback ports and HAProxy's own socket. Rule: the configuration is changed where
a test must: the folder of the socket, and what only root may do.
"""

from __future__ import annotations

import contextlib
import csv
import os
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.e2e.box import COMMAND, Box, free_port, until
from tests.e2e.client import Call
from tests.tls.proxies import program

_ONLY_ROOT = re.compile(r"(?m)^ +(user|group|chroot) .*\n")


def generated(urls: Sequence[str], *options: str) -> str:
    """What the verb prints."""
    argv = [str(COMMAND), "scale", "haproxy", *(word for url in urls for word in ("--box", url)), *options]
    return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=30).stdout


def checked(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    """`haproxy -c` on it."""
    path = folder / "checked.cfg"
    path.write_text(text)
    argv = [program("haproxy"), "-c", "-f", str(path)]
    return subprocess.run(argv, check=False, capture_output=True, text=True, timeout=30)


class Balancer:
    """One HAProxy. `change` edits the configuration for a test that shows what a line is for."""

    def __init__(self, boxes: Sequence[Box], change: Callable[[str], str] = str) -> None:
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="moe-ha-", dir="/tmp"))
        self._calls: list[Call] = []
        text = generated([box.url for box in boxes], "--listen", f"127.0.0.1:{self.port}")
        assert "/run/haproxy/" in text
        text = change(text).replace("/run/haproxy/", f"{self.folder}/")
        config = self.folder / "haproxy.cfg"
        config.write_text(text if os.geteuid() == 0 else _ONLY_ROOT.sub("", text))
        argv = [program("haproxy"), "-db", "-f", str(config)]
        setpriv = shutil.which("setpriv")
        if setpriv is not None:
            argv = [setpriv, "--pdeathsig", "TERM", "--", *argv]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        until("HAProxy listens", self._listens, 10.0)

    @property
    def log(self) -> str:
        """All that it logged."""
        return (self.folder / "log").read_text(errors="replace")

    def _listens(self) -> bool:
        assert self.process.poll() is None, self.log
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
        return False

    def call(self, request: bytes) -> Call:
        """Send raw bytes in a thread."""
        call = Call(self.port, request)
        self._calls.append(call)
        return call

    def is_up(self, box: Box) -> bool:
        """Whether the box is in the pool, by HAProxy's own word."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(10)
            sock.connect(str(self.folder / "admin.sock"))
            sock.sendall(b"show stat\n")
            told = b"".join(iter(lambda: sock.recv(65_536), b"")).decode().removeprefix("# ")
        rows = csv.DictReader(told.splitlines())
        status = next(row["status"] for row in rows if (row["pxname"], row["svname"]) == ("boxes", _name(box)))
        return status.startswith("UP")

    def wait_up(self, box: Box, up: bool, limit_s: float = 15.0) -> None:
        """Until the box is in the pool, or out of it."""
        until(f"{_name(box)} is {'in' if up else 'out of'} the pool", lambda: self.is_up(box) is up, limit_s, 0.05)

    def close(self) -> None:
        """End it."""
        for call in self._calls:
            call.close()
        self.process.terminate()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def _name(box: Box) -> str:
    return f"127.0.0.1:{box.port}"
