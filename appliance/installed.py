"""Which interpreter runs the next gateway after an upgrade, and whether it can. Touches file names and a child process.

Rules:
- It is that of the installed version. Nobody may name another one: whoever speaks to the control socket could run any
  program as the service's user.
- It is asked before the gateway that serves is told to go.
- An upgrade of the system may remove the Python that the daemon runs on. Nothing below it could be started then but by
  the installed version's.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import platform
import stat
import sys
from asyncio.subprocess import PIPE
from dataclasses import dataclass
from pathlib import Path

from appliance import __version__
from appliance.errors import MoeError
from appliance.printable import printable
from gateway.state import BoxState

BASE = "/usr/lib/moe-appliance"
"""The package's folder: `venvs/` has an environment for each version, `current` leads to the installed one. Root's."""
OWNER = 0
CHECK_S = 12.0
"""The command line waits for 15 s (cli/box.py)."""
RESTART = "at a quiet time: sudo systemctl restart moe-appliance"
MEND = "sudo dpkg-reconfigure moe-appliance"


@dataclass(frozen=True, slots=True)
class Program:
    """What runs a gateway: an interpreter's path, and the version of the gateway that it finds."""

    python: str
    version: str


OWN = Program(sys.executable, __version__)
"""What the daemon itself runs on."""


def is_gone(python: str) -> bool:
    """Whether an interpreter was removed; a daemon that runs on it goes on until it needs another process."""
    return bool(python) and not os.access(python, os.X_OK)


def interpreter() -> str:
    """The path to start: of the installed version when this process came with the package, else our own. `current` is
    resolved, as it may be switched at any time. Raises MoeError."""
    if not Path(sys.executable).is_relative_to(BASE):
        return sys.executable
    venv = (Path(BASE) / "current").resolve()
    found = venv / "bin/python3"
    for path in (venv, venv / "bin", found.resolve()):
        _refuse_unsafe(path)
    if not os.access(found, os.X_OK):
        raise MoeError(f"{found} cannot be executed", MEND)
    return str(found)


def _refuse_unsafe(path: Path) -> None:
    try:
        seen = path.stat()
    except OSError as error:
        raise MoeError(f"{path}: {error.strerror}", MEND) from error
    if seen.st_uid != OWNER or stat.S_IMODE(seen.st_mode) & (stat.S_IWGRP | stat.S_IWOTH):
        raise MoeError(f"{path} may be changed by others than root", f"sudo chown root:root {path}; chmod go-w {path}")


async def checked(python: str, settings_file: Path, *, any_series: bool = False) -> Program:
    """What the gateway says that `python` would start with these settings. Raises MoeError when it could not, when it
    would not understand this daemon, and when it is of another series of Python unless `any_series`."""
    argv = (python, "-P", "-m", "gateway", "--settings", str(settings_file), "--check")
    remedy = f"{' '.join(argv)}   shows more; the gateway that runs goes on"
    code, out, err = await _said(argv, remedy)
    if code != 0:
        raise MoeError(f"the new gateway cannot be started: {printable(err.strip() or f'exit code {code}')}", remedy)
    try:
        told = json.loads(out)
        version, of_python, protocol = str(told["version"]), str(told["python"]), int(told["protocol"])
    except (ValueError, TypeError, KeyError) as error:
        raise MoeError(f"the new gateway says what nobody understands: {printable(out)}", remedy) from error
    if protocol != BoxState().protocol:
        raise MoeError(f"version {version} does not fit the daemon that runs", RESTART)
    if not any_series and of_python.split(".")[:2] != list(platform.python_version_tuple()[:2]):
        own = platform.python_version()
        raise MoeError(f"version {version} runs on Python {of_python}, and the daemon that runs on {own}", RESTART)
    return Program(python, version)


async def _said(argv: tuple[str, ...], remedy: str) -> tuple[int | None, str, str]:
    try:
        process = await asyncio.create_subprocess_exec(*argv, stdout=PIPE, stderr=PIPE)
    except OSError as error:
        raise MoeError(f"the new gateway cannot be started: {error}", remedy) from error
    try:
        async with asyncio.timeout(CHECK_S):
            out, err = await process.communicate()
    except TimeoutError as error:
        raise MoeError(f"the new gateway did not answer within {CHECK_S:g} s", remedy) from error
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.communicate()  # gives back the pipes
    return process.returncode, out.decode(errors="replace"), err.decode(errors="replace")
