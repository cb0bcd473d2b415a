"""Collects a support bundle: what is known of this box, each part by itself, whatever else is broken.

Touches the box's sockets and files, /proc, and programs (journalctl, systemctl, nvidia-smi), each under a deadline.

Rules:
- Every text goes through the redactor before it is kept. Parts are a list, never a folder: nothing comes in by chance.
- The engine's log may hold what developers asked (an engine can be told to log prompts): only when asked for.
- Seats, admins and whoever acted are numbers, usage is totals. What cannot be had is a line that says why.
- All parts are made at once, so that whatever hangs costs WHOLE_S in sum and nothing else.
"""

from __future__ import annotations

import io
import json
import os
import platform
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path

from appliance import __version__, keyedit
from appliance.box import child
from appliance.cli.box import Box
from appliance.cli.doctor_names import WEEK_S, head, redactor_of
from appliance.cli.events import kept
from appliance.errors import MoeError
from appliance.redact import Redactor
from gateway.ledger import reading
from gateway.ledger.writing import NAME
from gateway.state import BoxState

UNIT = "moe-appliance.service"
PROGRAM_S = 12.0
WHOLE_S = 18.0
"""A program that must be killed takes PROGRAM_S and up to 5 s more to go."""
LOG_LINES = 2000


@dataclass(frozen=True, slots=True)
class Part:
    """One file of the bundle. `there`: it holds what it should and not why that could not be had."""

    name: str
    text: str
    there: bool = True


def collect(box: Box, *, engine_log: bool) -> list[Part]:
    """Every part, redacted. Raises nothing that a broken box could cause; takes WHOLE_S at most."""
    redactor = redactor_of(box, engine_log=engine_log)
    makers: dict[str, Callable[[], str]] = {
        "versions.json": lambda: _json(_versions()),
        "status.json": lambda: _json(redactor.value(_status(box))),
        "box.json": lambda: _json(redactor.value(_state(box))),
        "events.json": lambda: _json(redactor.value(_events(box))),
        "configuration.json": lambda: _json(redactor.value(box.config.model_dump(mode="json"))),
        "seats.json": lambda: _json(redactor.value(_accounts(box))),
        "overlay.json": lambda: _json(redactor.value(json.loads(head(box.paths.state_dir / "overlay.json")))),
        "usage.json": lambda: _json(_usage(box)),
        "plan-head.txt": lambda: head(_plan_file(box)),
        "preflight.json": lambda: _said(_us(box, "preflight", "--cached", "--json")),
        "journal.txt": lambda: _program(
            "journalctl", "-u", UNIT, "-n", str(LOG_LINES), "--no-pager", "-o", "short-iso"
        ),
        "systemctl.txt": lambda: _program("systemctl", "show", UNIT, "--no-pager"),
        "nvidia-smi.txt": lambda: _program("nvidia-smi", "-q"),
        **{f"proc/{name}": partial(head, Path("/proc", name)) for name in ("meminfo", "loadavg", "cpuinfo")},
        "disk.txt": lambda: _disk(box.paths.state_dir),
    }
    return at_once({name: partial(_part, name, make, redactor) for name, make in makers.items()}, WHOLE_S)


def at_once(makers: Mapping[str, Callable[[], Part]], limit_s: float) -> list[Part]:
    """What each of them makes, in their order; what is not there after `limit_s` is left to its own end."""
    made: dict[str, Part] = {}
    until_s = time.monotonic() + limit_s

    def make(name: str) -> None:
        made[name] = makers[name]()

    threads = [threading.Thread(target=make, args=(name,), daemon=True) for name in makers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until_s - time.monotonic()))
    late = f"not there: no answer within {limit_s:g} s\n"
    return [made.get(name) or Part(name, late, there=False) for name in makers]


def _part(name: str, make: Callable[[], str], redactor: Redactor) -> Part:
    try:
        return Part(name, redactor.text(make()))
    except (MoeError, OSError, ValueError, KeyError, TypeError) as error:
        return Part(name, redactor.text(f"not there: {_why(error)}\n"), there=False)


def _why(error: Exception) -> str:
    if isinstance(error, MoeError):
        return error.message
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error) or type(error).__name__


def write(parts: list[Part], path: Path, now_s: float) -> None:
    """The archive, 0600, and never over a file that is there; a half of one is removed. Raises MoeError."""
    made = False
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        made = True
        with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
            for part in parts:
                raw = part.text.encode("utf-8", "replace")
                info = tarfile.TarInfo(f"moe-appliance/{part.name}")
                info.size, info.mtime, info.mode = len(raw), int(now_s), 0o600
                archive.addfile(info, io.BytesIO(raw))
    except OSError as error:
        if made:
            path.unlink(missing_ok=True)
        raise MoeError(f"cannot write {path}: {error.strerror}", "choose another file: --out FILE") from error


def _status(box: Box) -> object:
    return box.gateway("GET", "/status").json()


def _state(box: Box) -> object:
    return BoxState.model_validate_json(box.daemon("GET", "/state").content).model_dump(mode="json")


def _events(box: Box) -> object:
    return [event.model_dump(mode="json") for event in kept(box, time.time() - WEEK_S)]


def _accounts(box: Box) -> object:
    shown = {}
    for kind, look in (("seats", keyedit.list_seats), ("admins", keyedit.list_admins)):
        path = box.seats_file if kind == "seats" else box.admins_file
        rows = look(path)
        shown[kind] = [{"name": row.name, "state": str(row.state), "max_streams": row.max_streams} for row in rows]
    return shown


def _usage(box: Box) -> object:
    now_s = time.time()
    rows, total = reading.usage_and_total(box.paths.state_dir / NAME, now_s - WEEK_S, now_s)
    shown = {field: getattr(total, field) for field in type(total).__slots__ if field != "seat"}
    return {"days": 7, "seats": len(rows), **shown}


def _plan_file(box: Box) -> Path:
    if box.config.plan.file is None:
        raise MoeError("no plan is configured", "moe-appliance plan make")
    return box.config.plan.file


def _versions() -> object:
    names = ("moe-appliance", "starlette", "uvicorn", "uvloop", "httptools", "pydantic", "orjson", "httpx", "structlog")
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed as a package"
    try:
        system = platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        system = ""
    return {
        "version": __version__,
        "python": sys.version,
        "system": system,
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "packages": found,
    }


def _disk(folder: Path) -> str:
    found = os.statvfs(folder)
    size, free = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    return f"{folder}: {free} of {size} bytes free, {found.f_favail} of {found.f_files} inodes free\n"


def _us(box: Box, *words: str) -> child.Answer:
    config = ("--config", str(box.config_file)) if box.config_file is not None else ()
    return child.run((sys.executable, "-m", "appliance", *config, *words), box.environ, PROGRAM_S)


def _program(*argv: str) -> str:
    return _said(child.run(argv, {**os.environ, "LC_ALL": "C.UTF-8"}, PROGRAM_S))


def _said(answer: child.Answer) -> str:
    if answer.code is None:
        return f"{answer.out}\nno answer within {PROGRAM_S:g} s; it was killed\n"
    return answer.out + (f"\nexit {answer.code}: {answer.err}" if answer.code else "")


def _json(value: object) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"
