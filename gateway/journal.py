"""Writes log lines to systemd's journal with fields of their own. Touches journald's datagram socket, memory files.

So that `journalctl -u moe-appliance SEAT=ana` finds what it should. The wire is that of "Native Journal Protocol"
(systemd's documentation): NAME=value and a line feed, or for a value with line feeds NAME, a line feed, its length in 8
bytes, little-endian, the value and a line feed. What is too long for a datagram goes as a sealed file in memory.

Rules:
- Used only when stderr is the journal (JOURNAL_STREAM names its device and inode), so that nobody who redirects stderr
  loses lines. What journald does not take becomes the line that stderr would have had.
- A write never blocks: a journal that hangs must not hold a stream. What finds no room is dropped, since stderr leads
  to the same journal, and the next line says how many were (MOE_LOST).
- ENGINE_STATE is on every line: the phase that this process last logged.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import struct
from array import array
from collections.abc import Mapping, MutableMapping
from typing import Any

import structlog

SOCKET = "/run/systemd/journal/socket"
IDENTIFIER = "moe-appliance"
PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}
"""Source: syslog(3)."""
OWN_FIELDS = {"event": "EVENT", "component": "COMPONENT", "seat": "SEAT", "request_id": "REQUEST_ID"}
"""Those that operators search by; every other field has the prefix MOE_."""
PHASE_EVENTS = frozenset({"engine.phase", "engine.seen"})
_NOT_SAID = frozenset({"event", "component", "level", "timestamp", "exception"})
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


def is_journal(fd: int, environ: Mapping[str, str]) -> bool:
    """Whether a descriptor is the stream to journald that the service manager set up."""
    try:
        found = os.fstat(fd)
    except OSError:
        return False
    return environ.get("JOURNAL_STREAM", "") == f"{found.st_dev}:{found.st_ino}"


class Journal:
    """A structlog processor: hands lines to journald, and drops those that it took."""

    def __init__(self, path: str = "") -> None:
        self._path = path or SOCKET
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._phase = ""
        self._lost = 0

    def __call__(self, logger: Any, method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """As structlog calls it. Raises DropEvent when the line is in the journal."""
        if line.get("event") in PHASE_EVENTS:
            self._phase = str(line.get("phase", ""))
        fields = fields_of(line, self._phase)
        if self._lost:
            fields["MOE_LOST"] = str(self._lost)
        try:
            self._send(encoded(fields))
        except BlockingIOError:
            self._lost += 1
        except OSError:  # no journald
            return line
        else:
            self._lost = 0
        raise structlog.DropEvent

    def _send(self, data: bytes) -> None:
        try:
            self._socket.sendto(data, self._path)
        except OSError as error:
            if error.errno not in (errno.EMSGSIZE, errno.ENOBUFS):
                raise
            self._send_file(data)

    def _send_file(self, data: bytes) -> None:
        fd = os.memfd_create("journal", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        with os.fdopen(fd, "wb", buffering=0) as file:
            file.write(data)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [fd]))
            self._socket.sendmsg([], [rights], 0, self._path)

    def close(self) -> None:
        """Give the socket back."""
        self._socket.close()


def fields_of(line: Mapping[str, Any], phase: str) -> dict[str, str]:
    """The journal's fields of one log line. `phase`: of the engine, "" = not known."""
    fields = {
        "MESSAGE": message(line),
        "PRIORITY": str(PRIORITIES.get(str(line.get("level")), 6)),
        "SYSLOG_IDENTIFIER": IDENTIFIER,
    }
    for name, value in line.items():
        if name not in ("level", "timestamp"):  # journald has both
            fields[OWN_FIELDS.get(name) or _name(name)] = _text(value)
    if phase:
        fields["ENGINE_STATE"] = phase
    return fields


def message(line: Mapping[str, Any]) -> str:
    """What a person reads: the event's name, its fields as name=value, the traceback below."""
    words = [str(line.get("event", ""))]
    words += [f"{name}={_word(value)}" for name, value in line.items() if name not in _NOT_SAID and value is not None]
    traceback = line.get("exception")
    return " ".join(words) + (f"\n{traceback}" if traceback else "")


def encoded(fields: Mapping[str, str]) -> bytes:
    """Fields on the wire."""
    parts = []
    for name, value in fields.items():
        raw = value.encode(errors="replace")
        if b"\n" in raw:
            parts.append(b"%s\n%s%s\n" % (name.encode(), struct.pack("<Q", len(raw)), raw))
        else:
            parts.append(b"%s=%s\n" % (name.encode(), raw))
    return b"".join(parts)


def _name(name: str) -> str:
    """A field's name as journald takes it: capitals, digits and _, 64 letters at most."""
    return "MOE_" + "".join(char if char.isascii() and char.isalnum() else "_" for char in name).upper()[:60]


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, default=str, ensure_ascii=False, skipkeys=True, separators=(",", ":"))


def _word(value: object) -> str:
    text = f"{value:.3f}" if isinstance(value, float) else _text(value)
    shown = text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return f'"{shown}"' if " " in shown or not shown else shown
