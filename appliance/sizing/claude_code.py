"""Reads the days of one developer from the files that Claude Code keeps of its conversations. Touches those files.

Rules:
- Only counts, times and ids are taken from a line; what a line says is never kept, shown or logged.
- An answer is in several lines, one for each of its parts, and again in the file of a conversation that was resumed. It
  counts once, by message id and request id, with the most output tokens that one of its lines has: the first lines
  are written before the answer has ended.
- Memory is bounded: by the length of one line, by REPLIES_MAX answers and DAYS_MAX days. Lines that cannot be read are
  counted, and said.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, tzinfo
from io import BufferedReader
from pathlib import Path
from typing import Any

import orjson

from appliance.errors import MoeError
from appliance.files import NotRegularError, open_regular
from appliance.printable import printable
from appliance.sizing.week import Day, average_week
from appliance.units import count
from gateway.sizing.profile import STUDY, Profile

LINE_MAX_BYTES = 64 * 2**20
"""A line holds one message, pictures among them; a longer one is no line of these files."""
REPLIES_MAX = 1_000_000
DAYS_MAX = 10_000
TOKENS_MAX = 10**9
"""Of one answer."""
LOOK_BACK_DAYS = 28
"""So much of the newest use is averaged: four weeks."""
_ID_MAX = 200


class _Damaged(Exception):
    """A line that is no line of these files."""


@dataclass(slots=True)
class Found:
    """What the files said. `damaged`: lines that cannot be read; `unread`: files that cannot."""

    files: int = 0
    replies: int = 0
    damaged: int = 0
    unread: int = 0
    days: dict[date, Day] = field(default_factory=dict)


def default_folder(environ: dict[str, str], home: Path) -> Path:
    """Where Claude Code keeps its conversations. Source: its documentation, CLAUDE_CONFIG_DIR."""
    return Path(environ.get("CLAUDE_CONFIG_DIR") or home / ".claude") / "projects"


def profile(folder: Path, hours_a_day: float = STUDY.hours_a_day, zone: tzinfo | None = None) -> tuple[Profile, Found]:
    """The average week of the newest LOOK_BACK_DAYS, and what was read for it. `zone`: None = this machine's own.
    Raises MoeError when the folder has no use in it."""
    shown = printable(str(folder))
    if not folder.is_dir():
        raise MoeError(f"there is no folder {shown}", "name it: moe-appliance seats size --claude-code DIR")
    found = _Reader(zone).read(folder)
    newest = max((day for day, made in found.days.items() if made.output), default=None)
    recent = {d: made for d, made in found.days.items() if newest and newest - d < timedelta(LOOK_BACK_DAYS)}
    week = average_week(recent, f"the use of Claude Code in {shown}", hours_a_day)
    if week is None:
        raise MoeError(
            f"{count(found.files, 'file')} under {shown}: no use of tokens in them; "
            f"{count(found.damaged, 'line')} damaged, {count(found.unread, 'file')} unreadable",
            f"ls {shown}   shows whether Claude Code's conversations are there",
        )
    return week, found


@dataclass(slots=True)
class _Reader:
    zone: tzinfo | None
    found: Found = field(default_factory=Found)
    _seen: dict[int, int] = field(default_factory=dict)
    _sessions: set[int] = field(default_factory=set)

    def read(self, folder: Path) -> Found:
        for path in _files(folder):
            self.found.files += 1
            try:
                with open_regular(path) as file:
                    self._read_file(file)
            except (NotRegularError, OSError):
                self.found.unread += 1
        return self.found

    def _read_file(self, file: BufferedReader) -> None:
        for line in _lines(file):
            if line is None:
                self.found.damaged += 1
            elif b'"usage"' in line:
                self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            reply = _reply(orjson.loads(line), self.zone)
        except (_Damaged, ValueError, OverflowError):
            self.found.damaged += 1
            return
        if reply is not None:
            self._add(reply)

    def _add(self, reply: _Reply) -> None:
        day = self._day(reply.day)
        if reply.id is not None:
            known = self._seen.get(reply.id)
            if known is not None:
                day.output += max(0, reply.output - known)
                self._seen[reply.id] = max(known, reply.output)
                return
            self._seen[reply.id] = reply.output
        self.found.replies += 1
        if self.found.replies > REPLIES_MAX:
            raise MoeError(
                f"the folder holds more than {REPLIES_MAX:,} answers", "name the folder of one project or one developer"
            )
        day.replies += 1
        day.output += reply.output
        day.new_input += reply.new_input
        day.cached += reply.cached
        if reply.session not in self._sessions:
            self._sessions.add(reply.session)
            day.sessions += 1

    def _day(self, day: date) -> Day:
        made = self.found.days.get(day)
        if made is None:
            if len(self.found.days) >= DAYS_MAX:
                raise MoeError(f"the folder holds more than {DAYS_MAX:,} days", "name the folder of one developer")
            made = self.found.days[day] = Day()
        return made


@dataclass(frozen=True, slots=True)
class _Reply:
    """One line's figures. `id`: of the answer, None when the line has none; `session`: of the conversation."""

    day: date
    id: int | None
    session: int
    output: int
    new_input: int
    cached: int


def _reply(line: Any, zone: tzinfo | None) -> _Reply | None:
    """The figures of a line; None when it is no answer or used nothing. Raises _Damaged, ValueError."""
    message = line.get("message") if isinstance(line, dict) else None
    usage = message.get("usage") if isinstance(message, dict) else None
    if usage is None or not isinstance(message, dict):
        return None
    if not isinstance(usage, dict):
        raise _Damaged("usage is no table")
    output, fresh, written, cached = (
        _count(usage.get(name))
        for name in ("output_tokens", "input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    )
    if output + fresh + written + cached == 0:
        return None
    at = line.get("timestamp")
    if not isinstance(at, str):
        raise _Damaged("no time")
    ids = (message.get("id"), line.get("requestId"))
    return _Reply(
        day=_local_day(at, zone),
        id=hash(tuple(map(_id, ids))) if isinstance(ids[0], str) else None,
        session=hash(_id(line.get("sessionId"))),
        output=output,
        new_input=fresh + written,
        cached=cached,
    )


def _local_day(at: str, zone: tzinfo | None) -> date:
    moment = datetime.fromisoformat(at[:40])
    if moment.tzinfo is None:
        raise _Damaged("a time without an offset")
    return moment.astimezone(zone).date()


def _id(value: object) -> str:
    return value[:_ID_MAX] if isinstance(value, str) else ""


def _count(value: object) -> int:
    if value is None:
        return 0
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= TOKENS_MAX:
        raise _Damaged("no count of tokens")
    return value


def _files(folder: Path) -> Iterator[Path]:
    """The .jsonl files below a folder; links to folders are not followed."""
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            if name.endswith(".jsonl"):
                yield Path(place, name)


def _lines(file: BufferedReader) -> Iterator[bytes | None]:
    """The lines of a file; None for one that is too long."""
    while line := file.readline(LINE_MAX_BYTES + 1):
        if len(line) <= LINE_MAX_BYTES:
            yield line
            continue
        yield None
        while line and not line.endswith(b"\n"):
            line = file.readline(LINE_MAX_BYTES + 1)
