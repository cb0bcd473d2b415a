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
import re
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path

from appliance import __version__, keyedit
from appliance.box import child
from appliance.cli.box import Box
from appliance.cli.events import kept
from appliance.errors import MoeError
from appliance.files import open_regular
from appliance.redact import Redactor
from gateway.keyfile import FILE_MAX_BYTES
from gateway.ledger import reading
from gateway.ledger.writing import NAME
from gateway.overlay import Overlay
from gateway.overlayfile import NOBODY
from gateway.state import BoxState

UNIT = "moe-appliance.service"
PROGRAM_S = 12.0
WHOLE_S = 18.0
"""A program that must be killed takes PROGRAM_S and up to 5 s more to go."""
LOG_LINES = 2000
HEAD_BYTES = 64 * 1024
WEEK_S = 7 * 86400.0
LEFT_OUT = "left out; --engine-log"
_TABLE = re.compile(rb"(?m)^\s*\[\s*(seats|admins)\s*\.\s*[\"']?([A-Za-z0-9._-]+)")
_NO_PERSON = frozenset({"", "root", "moe-appliance", "nobody", NOBODY})


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
        "status.json": lambda: _json(redactor.value(_status(box, engine_log))),
        "box.json": lambda: _json(redactor.value(_state(box, engine_log))),
        "events.json": lambda: _json(redactor.value(_events(box))),
        "configuration.json": lambda: _json(redactor.value(box.config.model_dump(mode="json"))),
        "seats.json": lambda: _json(redactor.value(_accounts(box))),
        "overlay.json": lambda: _json(redactor.value(json.loads(_head(box.paths.state_dir / "overlay.json")))),
        "usage.json": lambda: _json(_usage(box)),
        "plan-head.txt": lambda: _head(_plan_file(box)),
        "preflight.json": lambda: _said(_us(box, "preflight", "--cached", "--json")),
        "journal.txt": lambda: _program(
            "journalctl", "-u", UNIT, "-n", str(LOG_LINES), "--no-pager", "-o", "short-iso"
        ),
        "systemctl.txt": lambda: _program("systemctl", "show", UNIT, "--no-pager"),
        "nvidia-smi.txt": lambda: _program("nvidia-smi", "-q"),
        **{f"proc/{name}": partial(_head, Path("/proc", name)) for name in ("meminfo", "loadavg", "cpuinfo")},
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


def redactor_of(box: Box, *, engine_log: bool = False) -> Redactor:
    """What this box must not tell."""
    names = _tables(box)
    seats = names["seats"] | _ledgers_seats(box)
    return Redactor(_secrets(box), seats, names["admins"], _persons(box), last_words=engine_log)


def _tables(box: Box) -> dict[str, set[str]]:
    """The names in both files and in the copy of the last good one, whether or not they can be read as TOML."""
    found: dict[str, set[str]] = {"seats": set(), "admins": set()}
    try:
        files = [box.seats_file, box.admins_file, box.paths.state_dir / "seats.last-good.toml"]
    except MoeError:
        return found
    found["seats"] |= {row.name for row in _rows(lambda: keyedit.list_seats(box.seats_file))}
    found["admins"] |= {row.name for row in _rows(lambda: keyedit.list_admins(box.admins_file))}
    for file in files:
        try:
            with open_regular(file) as opened:
                raw = opened.read(FILE_MAX_BYTES)
        except OSError:
            continue
        for kind, name in _TABLE.findall(raw):
            found[kind.decode()].add(name.decode())
    return found


def _ledgers_seats(box: Box) -> set[str]:
    """Also those that are gone from the file; their names stand in what happened."""
    try:
        return {row.seat for _, row in reading.months(box.paths.state_dir / NAME)}
    except (MoeError, OSError):
        return set()


def _persons(box: Box) -> set[str]:
    """Who acted: users of this machine, by what is kept of them; and the one who asks."""
    found = {os.environ.get(name, "") for name in ("SUDO_USER", "USER", "LOGNAME")}
    try:
        found |= {event.who for event in kept(box, time.time() - WEEK_S)}
        overlay = Overlay.model_validate_json(_head(box.paths.state_dir / "overlay.json"))
        found |= set(overlay.off.values()) | ({overlay.changed.by} if overlay.changed is not None else set())
    except (MoeError, OSError, ValueError):
        pass
    return found - _NO_PERSON


def _rows(look: Callable[[], tuple[keyedit.Listed, ...]]) -> tuple[keyedit.Listed, ...]:
    try:
        return look()
    except (MoeError, OSError):
        return ()


def _secrets(box: Box) -> Iterator[str]:
    """The contents of key files, and of the engine's environment."""
    try:
        config, paths = box.config, box.paths
    except MoeError:
        return
    yield from dict(getattr(config.engine, "env", None) or {}).values()
    files = [paths.admins_file.with_name("first-admin-token"), *sorted(paths.runtime_dir.glob("*.key"))]
    if (key_file := getattr(config.engine, "key_file", None)) is not None:
        files.append(key_file)
    for file in files:
        try:
            yield _head(file).strip()
        except OSError:
            continue
    try:
        with open_regular(paths.state_dir / "cookie.secret") as secret:
            yield secret.read(HEAD_BYTES).decode("latin-1")
    except OSError:
        return


def _status(box: Box, engine_log: bool) -> object:
    status = box.gateway("GET", "/status").json()
    if not engine_log:
        status["engine"]["log_tail"] = [LEFT_OUT]
    return status


def _state(box: Box, engine_log: bool) -> object:
    state = BoxState.model_validate_json(box.daemon("GET", "/state").content)
    engine = state.engine if engine_log else state.engine.model_copy(update={"log_tail": (LEFT_OUT,)})
    return state.model_copy(update={"engine": engine}).model_dump(mode="json")


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


def _head(path: Path) -> str:
    """Raises OSError; /proc files have no length and are read all the same."""
    with open_regular(path) as file:
        return file.read(HEAD_BYTES).decode("utf-8", "replace")


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
