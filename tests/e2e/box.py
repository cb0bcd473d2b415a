"""A real box in a temporary folder: `moe-appliance run`, its gateway, its guard and the fake engine.

Touches processes, sockets and files. Rules:
- Every process of the box carries MOE_TEST_BOX=<id> in its environment; that is how `left()` finds each of
  them, also those that left their session, and why `close()` can end them all by pid.
- `close()` fails the test when something was left after a stop that should have ended everything.
- The runtime folder is short, in /tmp: a Unix socket's path has 107 bytes.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, TypeVar

import httpx

from appliance.engine.launching import free_port as free_port
from gateway.keys import ADMIN_PREFIX, SEAT_PREFIX, digest_of, new_key
from gateway.state import UNIX
from tests.e2e.client import Answer, Call, chat_body, request_bytes

ROOT = Path(__file__).parents[2]
COMMAND = Path(sys.executable).with_name("moe-appliance")
MARK = "MOE_TEST_BOX"
SEATS = ("a", "b", "c", "d", "e", "f", "g", "h")
PLACES = ("--port", "{port}", "--key-file", "{key_file}")
START_S = 30.0
CHECK_SCALE = 0.05
"""A warm-up at full pace takes 1.7 s."""

T = TypeVar("T")


def until(what: str, look: Callable[[], T | None], limit_s: float, pause_s: float = 0.02) -> T:
    """What `look` returns once it is true. Fails after `limit_s`, saying `what` did not happen."""
    give_up_s = time.monotonic() + limit_s
    while not (found := look()):
        assert time.monotonic() < give_up_s, f"not within {limit_s:g} s: {what}"
        time.sleep(pause_s)
    return found


def alive(pid: int) -> bool:
    """Whether `pid` runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def parent_of(pid: int) -> int:
    """The parent's pid, 0 when `pid` is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def command_line(pid: int) -> str:
    """The arguments, with spaces between; "" when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def kill9(pid: int) -> float:
    """SIGKILL; returns when, on the monotonic clock."""
    os.kill(pid, signal.SIGKILL)
    return time.monotonic()


class UnixConnection(HTTPConnection):
    """httpx leaves a socket open when nobody listens; this does not."""

    def __init__(self, path: Path) -> None:
        super().__init__("box", timeout=30)
        self._path = path

    def connect(self) -> None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(self.timeout)
            sock.connect(str(self._path))
        except OSError:
            sock.close()
            raise
        self.sock = sock


class Box:
    """One box. `tables`: further TOML of appliance.toml; an `[engine]` with a kind of its own takes the place of the
    fake engine's. `knobs`: the fake engine's, read at each of its starts.

    `patches` ("module.NAME" -> value) changes constants of the daemon alone: times that a test cannot wait for, and
    where /proc and /sys are. `environ`: more for the environment of the box's processes.
    """

    def __init__(
        self,
        home: Path,
        *,
        tables: Mapping[str, Mapping[str, object]] | None = None,
        knobs: Mapping[str, object] | None = None,
        patches: Mapping[str, float | str] | None = None,
        port: int | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.home = home
        self._environ = dict(environ or {})
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.mark = secrets.token_hex(8)
        self.runtime = Path(tempfile.mkdtemp(prefix="moe-", dir="/tmp"))
        self.config = home / "appliance.toml"
        self.seats_file = home / "state/seats.toml"
        self.keys = {name: new_key(SEAT_PREFIX, secrets.token_bytes(32)) for name in SEATS}
        self.admin_key = new_key(ADMIN_PREFIX, secrets.token_bytes(32))
        self.process: subprocess.Popen[bytes] | None = None
        self.must_be_gone = True
        self._patches = dict(patches or {})
        self._calls: list[Call] = []
        self.set_knobs(**(knobs or {}))
        self._write(tables or {})

    # Files

    def _write(self, tables: Mapping[str, Mapping[str, object]]) -> None:
        engine: dict[str, object] = {
            "kind": "command",
            "command": [sys.executable, *f"-m tests.fake_engine --knobs @{self.home}/knobs.json".split(), *PLACES],
            "env": {"PYTHONPATH": str(ROOT)},
            "grace_s": 1.5,
        }
        lines = [f'listen = "127.0.0.1:{self.port}"', f'runtime_dir = "{self.runtime}"']
        for name, table in {"engine": {}, **tables}.items():
            values = {**engine, **table} if name == "engine" and "kind" not in table else table
            lines += ["", f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in values.items())]
        self.config.write_text("\n".join(lines) + "\n")
        self.seats_file.parent.mkdir(exist_ok=True)
        self.write_seats()
        admins = f'[admins.root]\ndigest = "{digest_of(self.admin_key)}"\n'
        self.seats_file.with_name("admins.toml").write_text(admins)

    def write_seats(self, more: Mapping[str, Mapping[str, object]] | None = None) -> None:
        """The seat file anew, from `keys`. `more`: further fields of single seats."""
        rows = []
        for name, key in self.keys.items():
            fields = {"digest": digest_of(key), **(more or {}).get(name, {})}
            rows += [f"[seats.{name}]", *(f"{field} = {_toml(value)}" for field, value in fields.items()), ""]
        self.seats_file.write_text("\n".join(rows))

    def set_knobs(self, **knobs: object) -> None:
        """What the fake engine is told at its next start."""
        (self.home / "knobs.json").write_text(json.dumps({"check_scale": CHECK_SCALE, **knobs}))

    @property
    def log(self) -> str:
        """All that daemon and gateway logged."""
        return (self.home / "log").read_text() if (self.home / "log").exists() else ""

    # Processes

    def environ(self) -> dict[str, str]:
        """What every process of this box is started with."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("MOE_APPLIANCE_")}
        return kept | self._environ | {MARK: self.mark}

    def argv(self, *words: str) -> list[str]:
        """The command line of `moe-appliance` for this box."""
        first = [str(COMMAND)]
        if self._patches:
            lines = ["import importlib as i"]
            for name, value in self._patches.items():
                module, _, attribute = name.rpartition(".")
                lines.append(f"i.import_module({module!r}).{attribute} = {value!r}")
            first = [sys.executable, "-c", "; ".join([*lines, "from appliance.cli import main", "main()"])]
        return [*first, "--config", str(self.config), *words]

    def start(self) -> Box:
        """Start the daemon; does not wait."""
        with (self.home / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self.argv("run"),
                cwd=self.home,
                env=self.environ(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self

    def cli(self, *words: str, limit_s: float = 30.0) -> subprocess.CompletedProcess[str]:
        """Run one verb of the command line to its end."""
        return subprocess.run(
            self.argv(*words), cwd=self.home, env=self.environ(), capture_output=True, text=True, timeout=limit_s
        )

    def left(self) -> list[int]:
        """The pids of every living process of this box, the daemon included."""
        wanted = f"{MARK}={self.mark}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if wanted in (entry / "environ").read_bytes().split(b"\0") and alive(int(entry.name)):
                        found.append(int(entry.name))
        return sorted(found)

    def told_left(self) -> str:
        """`left()` for people."""
        return "; ".join(f"{pid} {command_line(pid)[:120]}" for pid in self.left())

    @property
    def pid(self) -> int:
        """The daemon's."""
        assert self.process is not None
        return self.process.pid

    @property
    def gateway_pid(self) -> int:
        """The gateway's, from the daemon."""
        return int(self.state()["gateway"]["pid"])

    @property
    def engine_pid(self) -> int:
        """The engine's, from the daemon."""
        return int(self.state()["engine"]["pid"])

    @property
    def guard_pid(self) -> int:
        """The engine's parent."""
        guard = parent_of(self.engine_pid)
        assert "guard.py" in command_line(guard)
        return guard

    # Sockets

    def control(self, method: str, path: str, *, socket_name: str = "control") -> tuple[int, Any]:
        """Ask the daemon (or the gateway) over its Unix socket: status and JSON. Raises OSError."""
        connection = UnixConnection(self.runtime / f"{socket_name}.sock")
        with contextlib.closing(connection):
            connection.request(method, path)
            answer = connection.getresponse()
            body = answer.read()
        is_json = answer.getheader("content-type", "") == "application/json"
        return answer.status, json.loads(body) if is_json else body

    def state(self, query: str = "") -> dict[str, Any]:
        """The daemon's BoxState."""
        status, state = self.control("GET", f"/state{query}")
        assert status == 200, state
        plain: dict[str, Any] = state
        return plain

    def waiting(self) -> int:
        """How many requests wait in line."""
        return len(self.control("GET", "/status", socket_name="gateway")[1]["queue"]["rows"])

    def wait_state(self, what: str, look: Callable[[dict[str, Any]], object], limit_s: float) -> dict[str, Any]:
        """Until the state satisfies `look`."""
        last: dict[str, Any] = {}

        def seen() -> bool:
            with contextlib.suppress(OSError, HTTPException):
                state = self.state()
                last.clear()
                last.update(state)
                return bool(look(last))
            return False

        try:
            until(what, seen, limit_s, 0.05)
        except AssertionError as error:
            raise AssertionError(f"{error}\nstate: {json.dumps(last, indent=1)[:3000]}\n{self.log[-3000:]}") from None
        return last

    def wait_phase(self, phase: str, limit_s: float = START_S) -> dict[str, Any]:
        """Until the engine is in `phase`; returns its state."""
        state: dict[str, Any] = self.wait_state(f"phase {phase}", lambda s: s["engine"]["phase"] == phase, limit_s)
        return dict(state["engine"])

    def wait_ready(self, limit_s: float = START_S) -> Box:
        """Until the gateway says that it serves."""
        give_up_s = time.monotonic() + limit_s
        while self.get("/ready").status != 200:
            assert self.process is not None
            assert self.process.poll() is None, f"the daemon ended: {self.log[-3000:]}"
            assert time.monotonic() < give_up_s, f"not ready within {limit_s:g} s: {self.log[-3000:]}"
            time.sleep(0.03)
        return self

    # The engine's side

    def engine(self, method: str, path: str, body: object = None) -> Any:
        """Ask the fake engine itself, with its key."""
        engine = self.state()["engine"]
        headers = {"authorization": "Bearer " + Path(engine["key_file"]).read_text().strip()}
        url = engine["url"]
        transport = httpx.HTTPTransport(uds=url.removeprefix(UNIX)) if url.startswith(UNIX) else None
        base = url if transport is None else "http://engine"
        with httpx.Client(base_url=base, timeout=10, trust_env=False, headers=headers, transport=transport) as client:
            return client.request(method, path, json=body).raise_for_status().json()

    def stats(self) -> dict[str, Any]:
        """What the fake engine counted."""
        plain: dict[str, Any] = self.engine("GET", "/_fake/stats")
        return plain

    # The client's side

    def call(self, request: bytes) -> Call:
        """Send raw bytes in a thread."""
        call = Call(self.port, request)
        self._calls.append(call)
        return call

    def get(self, path: str, key: str | None = None) -> Answer:
        """One GET to its end."""
        return self.call(request_bytes("GET", path, key)).wait()

    def post(self, seat: str, *, stream: bool = True, max_tokens: int = 8, text: str = "hello") -> Call:
        """A chat completion in a thread."""
        body = chat_body(text, stream=stream, max_tokens=max_tokens)
        return self.call(request_bytes("POST", "/v1/chat/completions", self.keys[seat], body))

    def chat(self, seat: str, *, stream: bool = True, max_tokens: int = 8, text: str = "hello") -> Answer:
        """A chat completion to its end."""
        return self.post(seat, stream=stream, max_tokens=max_tokens, text=text).wait()

    def streams(self, seats: Sequence[str] = ("a", "b", "c", "d"), max_tokens: int = 3000) -> list[Call]:
        """Long streams, one for each seat, each past its first token."""
        calls = [self.post(seat, max_tokens=max_tokens, text=f"long {seat}") for seat in seats]
        for call in calls:
            call.wait_bytes(b'"content"')
        return calls

    def served(self, seat: str, limit_s: float) -> tuple[float, Answer]:
        """A client that tries again on a broken connection or 503 until one answer is whole; (seconds, answer)."""
        started_s = time.monotonic()
        while True:
            answer = self.chat(seat)
            took_s = time.monotonic() - started_s
            if answer.status == 200 and answer.clean and answer.done:
                return took_s, answer
            assert took_s < limit_s, f"not served within {limit_s:g} s: {answer.told()}"
            assert answer.status in (0, 503), answer.told()
            time.sleep(0.05)

    # The end

    def stop(self, limit_s: float = 30.0) -> int:
        """SIGTERM to the daemon; its exit code. Fails when a process is left."""
        assert self.process is not None
        self.process.terminate()
        code = self.process.wait(limit_s)
        assert not self.left(), f"left after the stop: {self.told_left()}"
        return code

    def close(self) -> str:
        """End and remove everything; says what a stop left behind that it should not have, "" = nothing."""
        for call in self._calls:
            call.close()
        fault = ""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(12)
        if self.must_be_gone and self.left():
            fault = f"processes were left: {self.told_left()}\n{self.log[-3000:]}"
        while left := self.left():
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        if self.process is not None:
            self.process.wait(10)
        shutil.rmtree(self.runtime, ignore_errors=True)
        return fault


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + "}"
    return json.dumps(value)
