"""For tests of the ledger: a real gateway process in front of a real fake engine, killed and started again at will.

Touches processes, sockets and files. Rules:
- The public socket is the test's own, as it is the daemon's: who connects while there is no gateway waits in line.
- Every gateway is ended by its pid when the context ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from gateway.keys import digest_of
from gateway.ledger.writing import NAME
from gateway.settings import AdmissionSettings, GatewaySettings, StaticEngine
from gateway.state import EngineProfile
from tests.e2e.box import ROOT, until
from tests.fake_engine.process import Engine, fake_engine

SEATS = ("a", "b", "c", "d")
STREAMS = 16


@dataclass
class Told:
    """What a client saw of one request. `answered_s`: when it had the whole answer, wall clock; None = never."""

    id: str
    seat: str
    answered_s: float | None = None
    status: int = 0


@dataclass
class KilledGateway:
    """The gateway behind `public`. `lost`: ids of requests that deaths took from the ledger."""

    folder: Path
    engine: Engine
    public: socket.socket
    log: IO[bytes]
    wrapper: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | None = None
    told: list[Told] = field(default_factory=list)
    lost: set[str] = field(default_factory=set)

    @property
    def port(self) -> int:
        return int(self.public.getsockname()[1])

    @property
    def ledger(self) -> Path:
        return self.folder / "state" / NAME

    def settings(self) -> Path:
        """The file that a daemon would write."""
        profile = EngineProfile(name="fake", floor_tok_per_s=1.0, cold_tokens=12_000, streams=STREAMS)
        settings = GatewaySettings(
            seats_file=self.folder / "seats.toml",
            state_dir=self.folder / "state",
            gateway_socket=self.folder / "gateway.sock",
            engine=StaticEngine(url=self.engine.url, models=("fake-model",), context_tokens=262_144, profile=profile),
            admission=AdmissionSettings(queue_max=1000, queue_per_seat=1000),
        )
        path = self.folder / "gateway.json"
        path.write_text(settings.model_dump_json())
        return path

    def start(self) -> None:
        """Start one; whoever connects is served once it is there."""
        fd = self.public.fileno()
        command = [sys.executable, "-m", "gateway", "--settings", str(self.folder / "gateway.json"), "--fd", str(fd)]
        self.process = subprocess.Popen(
            [*self.wrapper, *command],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=self.log,
            stderr=self.log,
            pass_fds=(fd,),
        )

    def kill(self) -> float:
        """SIGKILL, and wait for its end; when, wall clock."""
        assert self.process is not None
        killed_s = time.time()
        self.process.send_signal(signal.SIGKILL)
        self.reap()
        return killed_s

    def stop(self, limit_s: float = 20.0) -> int:
        """SIGTERM, and wait for the orderly end; the exit code."""
        assert self.process is not None
        self.process.terminate()
        self.process.wait(limit_s)
        return self.reap()

    def reap(self) -> int:
        assert self.process is not None
        code = self.process.wait(20)
        if self.process.stdin is not None:
            self.process.stdin.close()
        return code

    def status(self) -> dict[str, object]:
        """What the page is made of."""
        asked = b"GET /status HTTP/1.1\r\nhost: box\r\nconnection: close\r\n\r\n"
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(10)
            sock.connect(str(self.folder / "gateway.sock"))
            sock.sendall(asked)
            raw = b"".join(iter(lambda: sock.recv(65536), b""))
        plain: dict[str, object] = json.loads(raw.partition(b"\r\n\r\n")[2])
        return plain

    def answers(self) -> bool:
        """Whether its own socket does."""
        with contextlib.suppress(OSError, ValueError):
            return bool(self.status())
        return False

    async def ask(self, ids: Iterator[str], seat: str) -> None:
        """Make requests one after the other; a connection that breaks is made anew."""
        reader: asyncio.StreamReader | None = None
        writer: asyncio.StreamWriter | None = None
        for id in ids:
            told = Told(id, seat)
            self.told.append(told)
            try:
                if writer is None or reader is None:
                    reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                writer.write(_request(id, seat))
                told.status = await _answer(reader)
                told.answered_s = time.time()
            except (OSError, asyncio.IncompleteReadError, ValueError):
                if writer is not None:
                    writer.close()
                reader = writer = None
        if writer is not None:
            writer.close()

    async def all_told(self) -> None:
        """Let every client read what a dead gateway had sent: it lies in the kernel, so that turns of the loop do."""
        for _ in range(100):
            await asyncio.sleep(0)


def _request(id: str, seat: str) -> bytes:
    body = b'{"model":"fake-model","max_tokens":2,"messages":[{"role":"user","content":"' + id.encode() + b'"}]}'
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: box\r\nauthorization: Bearer key-of-{seat}\r\n"
        f"x-request-id: {id}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def _answer(reader: asyncio.StreamReader) -> int:
    """Read one whole answer; its status. Raises when it is not whole."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    await reader.readexactly(int(length.partition(b":")[2]))
    return int(head.split(b" ", 2)[1])


@contextmanager
def killed_gateway(folder: Path, wrapper: Sequence[str] = ()) -> Iterator[KilledGateway]:
    """A gateway, started and answering, in front of an engine that needs no time. `wrapper`: a command before it."""
    (folder / "state").mkdir()
    rows = [f'[seats.{seat}]\ndigest = "{digest_of(f"key-of-{seat}")}"\n' for seat in SEATS]
    (folder / "seats.toml").write_text("".join(rows))
    with (
        fake_engine(time_scale=0.001, ms_per_token=[0.01], prefill_tok_per_s=1e9) as engine,
        socket.create_server(("127.0.0.1", 0), backlog=1024) as public,
        (folder / "log").open("wb") as log,
    ):
        box = KilledGateway(folder, engine, public, log, tuple(wrapper))
        box.settings()
        box.start()
        try:
            until("the gateway answers", box.answers, 20.0)
            yield box
        finally:
            if box.process is not None and box.process.poll() is None:
                os.kill(box.process.pid, signal.SIGKILL)
                box.reap()
