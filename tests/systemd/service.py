"""The appliance on a machine: the package installed, the fake engine beside it, the unit started, seats that ask.

Touches the machine. Rules: what is asserted is seen from outside: systemctl, journalctl, HTTP, /proc, the command
line. The engine is the project's fake one with an environment of its own, so that no upgrade touches its Python.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any

from tests.e2e.box import UnixConnection, until
from tests.e2e.client import Answer, Call, chat_body, request_bytes
from tests.systemd.machine import Machine, Ran

UNIT = "moe-appliance"
HOME = "/usr/lib/moe-appliance"
ETC, RUN, STATE = "/etc/moe-appliance", "/run/moe-appliance", "/var/lib/moe-appliance"
ENGINE = "/opt/fake-engine"
PORT = 8000
DROP_IN = f"/run/systemd/system/{UNIT}.service.d/test.conf"
TESTS = Path(__file__).parents[1]
CONFIG = f"""listen = "127.0.0.1:{PORT}"
runtime_dir = "{RUN}"
state_dir = "{STATE}"
seats_file = "{ETC}/seats.toml"
admins_file = "{ETC}/admins.toml"

[engine]
kind = "command"
command = ["{ENGINE}/bin/python", "-m", "tests.fake_engine", "--knobs", "@{ENGINE}/knobs.json",
           "--port", "{{port}}", "--key-file", "{{key_file}}"]
env = {{ PYTHONPATH = "{ENGINE}" }}
grace_s = 1.5

[gateway]
drain_s = 3
"""
SEATS = ("ana", "ben")


class Service:
    """One installed appliance; `keys` are those of its seats."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.keys: dict[str, str] = {}

    # Package and files

    def install(self, deb: Path) -> Ran:
        """What `dpkg --install` did with `deb`, a new version or the same."""
        inside = self.machine.copy_in(deb, f"/root/{deb.name}")
        return self.machine.run(f"dpkg --install {inside}", limit_s=120)

    def configure(self) -> None:
        """What an operator does: an engine, here the fake one, a line about it in appliance.toml, two seats."""
        self.machine.path(f"{ETC}/appliance.toml").write_text(CONFIG)
        for seat in SEATS:
            self.add_seat(seat)
        if not self.machine.path(f"{ENGINE}/knobs.json").exists():
            self.machine.run(f"cp -a $(readlink -f {HOME}/current) {ENGINE}").ok()
            self.machine.copy_in(TESTS / "fake_engine", f"{ENGINE}/tests/fake_engine")
            self.machine.path(f"{ENGINE}/tests/__init__.py").touch()
        self.set_knobs()

    def set_knobs(self, **knobs: object) -> None:
        """What the engine is told at its next start."""
        self.machine.path(f"{ENGINE}/knobs.json").write_text(json.dumps(knobs))

    def drop_in(self, *lines: str) -> None:
        """Lines of [Service] that hold for a test; none = the unit as it is shipped."""
        path = self.machine.path(DROP_IN)
        path.unlink(missing_ok=True)
        if lines:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join(["[Service]", *lines, ""]))
        self.systemctl("daemon-reload").ok()

    def cli(self, words: str, *, limit_s: float = 30.0) -> Ran:
        """One verb of the command line, as root."""
        return self.machine.run(f"moe-appliance {words}", limit_s=limit_s)

    def add_seat(self, name: str) -> str:
        """A new seat; its key."""
        key: str = json.loads(self.cli(f"seats add {name} --json").ok())["key"]
        self.keys[name] = key
        return key

    # Unit

    def systemctl(self, words: str, *, limit_s: float = 90.0) -> Ran:
        """systemctl WORDS, with the unit's name where `words` is one verb of units."""
        unit = f" {UNIT}" if words.split()[0] not in ("daemon-reload",) and UNIT not in words else ""
        return self.machine.run(f"systemctl {words}{unit}", limit_s=limit_s)

    def start(self) -> Service:
        """Started anew as after a boot, and ready for seats."""
        self.systemctl("reset-failed")
        ran = self.systemctl("start")
        assert ran.code == 0, f"{ran.told}\n{self.journal()[-3000:]}"
        return self.wait_ready()

    def show(self, *names: str) -> dict[str, str]:
        """Properties of the unit, as systemd has them now."""
        lines = self.systemctl(f"show --property={','.join(names)}").ok().splitlines()
        return dict(line.split("=", 1) for line in lines)

    def show_one(self, name: str) -> str:
        """One property."""
        return self.show(name).get(name, "")

    def journal(self, matches: str = "", *, output: str = "cat") -> str:
        """The unit's journal."""
        self.machine.run("journalctl --sync").ok()
        return self.machine.run(f"journalctl -u {UNIT} --no-pager -q -o {output} {matches}").ok()

    @contextlib.contextmanager
    def journal_since(self) -> Iterator[list[str]]:
        """A list that has, once the block has ended, what the unit wrote meanwhile, as text."""
        text: list[str] = []
        self.machine.run("journalctl --sync").ok()
        shown = self.machine.run("journalctl -q -n 0 --show-cursor").ok()
        cursor = shown.rpartition("-- cursor: ")[2].strip()
        yield text
        text.append(self.journal(f"--after-cursor='{cursor}'"))

    # State

    def control(self, method: str, path: str, socket_name: str = "control") -> tuple[int, Any]:
        """Ask the daemon or the gateway over its Unix socket, as root. Raises OSError."""
        connection = UnixConnection(self.machine.path(f"{RUN}/{socket_name}.sock"))
        with contextlib.closing(connection):
            connection.request(method, path)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

    def state(self) -> dict[str, Any]:
        """The daemon's BoxState, {} while it does not answer."""
        with contextlib.suppress(OSError, HTTPException):
            status, state = self.control("GET", "/state")
            assert status == 200, state
            plain: dict[str, Any] = state
            return plain
        return {}

    @property
    def pids(self) -> dict[str, int]:
        """Pids inside the machine: daemon, gateway, engine; 0 = there is none."""
        state = self.state()
        engine, gateway = state.get("engine", {}), state.get("gateway", {})
        return {
            "daemon": int(self.show_one("MainPID")),
            "gateway": gateway.get("pid") or 0,
            "engine": engine.get("pid") or 0,
        }

    def wait_ready(self, limit_s: float = 30.0) -> Service:
        """Until seats are served."""
        try:
            until("the box serves", lambda: self.get("/ready").status == 200, limit_s, 0.05)
        except AssertionError as error:
            told = self.systemctl("status --no-pager").told
            raise AssertionError(f"{error}\n{told}\n{self.journal()[-3000:]}") from None
        return self

    # Clients

    def call(self, request: bytes) -> Call:
        """Send raw bytes from inside the machine, in a thread."""
        with self.machine.network():
            return Call(PORT, request)

    def get(self, path: str, key: str | None = None) -> Answer:
        """One GET to its end."""
        return self.call(request_bytes("GET", path, key)).wait()

    def post(self, seat: str, *, text: str = "hello", max_tokens: int = 8) -> Call:
        """A streamed chat completion in a thread."""
        body = chat_body(text, max_tokens=max_tokens)
        return self.call(request_bytes("POST", "/v1/chat/completions", self.keys[seat], body))

    def chat(self, seat: str, *, text: str = "hello", max_tokens: int = 8) -> Answer:
        """A streamed chat completion to its end."""
        return self.post(seat, text=text, max_tokens=max_tokens).wait()

    def stream(self, seat: str, max_tokens: int) -> Call:
        """A stream that is past its first token."""
        call = self.post(seat, text=f"long {seat}", max_tokens=max_tokens)
        call.wait_bytes(b'"content"')
        return call

    def answers(self, seat: str, max_tokens: int = 8) -> bool:
        """Whether a chat through `seat` is answered whole."""
        answer = self.chat(seat, max_tokens=max_tokens)
        return answer.status == 200 and answer.done and answer.clean

    def healthy(self) -> bool:
        """Whether the gateway says that it lives."""
        return self.get("/health").status == 200


class Watch:
    """Asks again and again while the block runs. `ask`: on a new connection; whether the answer was good."""

    def __init__(self, ask: Callable[[], bool], pause_s: float = 0.05) -> None:
        self._ask, self._pause_s = ask, pause_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.asked = self.missed = 0
        self.longest_s = 0.0

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(60)

    def _run(self) -> None:
        while not self._over.wait(self._pause_s):
            asked_s = time.monotonic()
            good = self._ask()
            self.longest_s = max(self.longest_s, time.monotonic() - asked_s)
            self.asked += 1
            self.missed += not good

    @property
    def told(self) -> str:
        """For assertion messages."""
        return f"{self.missed} of {self.asked} were not answered well, the slowest took {self.longest_s:.2f} s"


def limits_of(text: str) -> Mapping[str, str]:
    """Soft limits by name, from the text of /proc/PID/limits."""
    rows = [line.split("  ") for line in text.splitlines()[1:]]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    return {row[0]: row[1] for row in cells}
