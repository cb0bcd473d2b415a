"""What a launch needs of this machine, and the causes of one that came to nothing. Touches a socket, the environment,
key files.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from shlex import quote

from appliance.engine.adapter import Adapter, Launch
from appliance.errors import MoeError
from appliance.printable import printable
from gateway.files import read_small
from gateway.state import UNIX, Cause

NOT_INHERITED = frozenset({"CREDENTIALS_DIRECTORY", "INVOCATION_ID", "JOURNAL_STREAM"})
"""What the service manager tells the daemon alone; what it listens on for words of ours is gone already (notify.py)."""
KEY_MAX_BYTES = 65_536
"""Of a file with a key; a longer one is something else."""


def launched(adapter: Adapter, key_file: Path) -> tuple[Launch, Launch]:
    """How to start, and the same with port 0, which is equal at every start. A port is looked for only for an engine of
    ours that listens on one. Raises OSError, MoeError."""
    plain = adapter.launch(0, key_file)
    if not plain.url or plain.url.startswith(UNIX) or not adapter.supervised:
        return plain, plain
    return adapter.launch(free_port(), key_file), plain


def free_port() -> int:
    """A loopback port that was free a moment ago."""
    with contextlib.closing(socket.socket()) as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def environ_of(launch: Launch) -> Mapping[str, str]:
    """The engine's environment: the daemon's own but for what is not the engine's, and what the launch adds."""
    kept_back = NOT_INHERITED.union(launch.withheld)
    return {name: value for name, value in os.environ.items() if name not in kept_back} | dict(launch.env)


def key_in(file: Path) -> str:
    """The key that a file holds, alone and as a header can carry it. Raises ValueError with what is wrong with it."""
    try:
        key = read_small(file, KEY_MAX_BYTES).decode().strip()
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        raise ValueError("it is not text") from error
    if not key:
        raise ValueError("it is empty")
    if not (key.isascii() and key.isprintable()):
        raise ValueError("it holds more than one line of plain ASCII; some editors put a byte order mark first")
    return key


def key_of(launch: Launch) -> str | None:
    """The engine's key. Raises MoeError."""
    file = launch.key_file
    if file is None:
        return None
    try:
        return key_in(file)
    except ValueError as error:
        shown = printable(str(file))
        remedy = f"ls -l {quote(shown)}   must be a file with the engine's API key alone in it"
        raise MoeError(f"The engine's key cannot be read: {shown}: {error}", remedy) from error


def not_prepared(error: MoeError | OSError) -> Cause:
    """`engine.prepare`: the look before a start, or the adapter's preparation, came to nothing."""
    if isinstance(error, MoeError):
        return Cause(id="engine.prepare", title=error.message, remedy=error.remedy)
    where = quote(printable(str(error.filename))) if error.filename else ""
    return Cause(
        id="engine.prepare",
        title=f"The start cannot be prepared: {printable(str(error))}",
        remedy=f"ls -ld {where}; df -h {where}" if where else "moe-appliance preflight",
    )


def not_started(error: BaseException) -> Cause:
    """`engine.spawn`: the system did not let us."""
    title = f"The engine cannot be started: {error}"
    return Cause(id="engine.spawn", title=title, remedy="moe-appliance status (shows its last log lines)")


def unreachable(launch: Launch, for_s: float) -> Cause:
    """`engine.unreachable`: an engine that somebody else runs does not answer."""
    address = launch.url + launch.health_path
    return Cause(
        id="engine.unreachable",
        title=f"The engine at {launch.url} did not answer for {for_s:g} s.",
        remedy=f"curl {address}  (somebody else runs it: see that it is up, or correct [engine] url)",
    )
