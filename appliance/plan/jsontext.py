"""JSON as people write it by hand: its values, the line of each key, and what is wrong with it. Pure.

Python's parser takes a key that is there twice, NaN, numbers that are infinite and half of a surrogate pair; the next
program that reads the file may not. They are refused here, with the line.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isinf
from typing import Any

KeyPath = tuple[str | int, ...]

DEPTH_MAX = 64
"""Tables and lists inside one another."""
LINES_MAX = 500_000
"""Keys and elements of lists; so many take a second."""
NUMBER_MAX = 400
"""Characters of one number; the largest double written out has 309 digits."""

_TOKEN = re.compile(r'[ \t\r\n]*(?:("(?:[^"\\]|\\.)*")|([{}\[\],:])|([^\s{}\[\],:"]+))', re.DOTALL)
_HALF = re.compile("[\ud800-\udfff]")
_NUMBER = re.compile(r"-?[0-9]")
_CONSTANTS = ("NaN", "Infinity", "-Infinity")


class BadJson(Exception):
    """What is wrong: `said` about the place `line`, `column` (1-based, 0 = not known) and `key` (() = none)."""

    def __init__(self, said: str, line: int, column: int = 0, key: KeyPath = ()) -> None:
        super().__init__(said)
        self.said = said
        self.line = line
        self.column = column
        self.key = key


def read(text: str) -> tuple[Any, Mapping[KeyPath, int]]:
    """The value and the line, from 1, of every key and every element of a list. Raises BadJson."""
    value = None
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        said = f"not JSON: {error.msg[:1].lower()}{error.msg[1:]}"
        raise BadJson(said, error.lineno, error.colno) from error
    except (ValueError, RecursionError):  # a number of thousands of digits, a nest of thousands: the scan says where
        pass
    return value, _Scan(text).lines


@dataclass(slots=True)
class _Open:
    """A table or list that has begun and not ended; `at`: the key or the index of what is being read in it."""

    table: bool
    at: str | int = 0
    awaits_key: bool = True
    keys: set[str] = field(default_factory=set)


class _Scan:
    """One pass over a text that the parser took, or that it found too deep or its numbers too long."""

    def __init__(self, text: str) -> None:
        self.lines: dict[KeyPath, int] = {(): 1}
        self._open: list[_Open] = []
        self._newlines = [match.start() for match in re.finditer("\n", text)]
        for match in _TOKEN.finditer(text):
            string, mark, bare = match.groups()
            line = bisect_right(self._newlines, match.start(match.lastindex or 0)) + 1
            if len(self.lines) > LINES_MAX:
                raise BadJson(f"more than {LINES_MAX:,} keys and values", line)
            if mark is not None:
                self._mark(mark, line)
            elif string is not None:
                self._string(string, line)
            else:
                self._bare(bare, line)

    def _path(self) -> KeyPath:
        return tuple(place.at for place in self._open)

    def _value(self, line: int) -> None:
        """An element of a list begins."""
        if self._open and not self._open[-1].table:
            self.lines[self._path()] = line

    def _mark(self, mark: str, line: int) -> None:
        if mark in "{[":
            self._value(line)
            if len(self._open) == DEPTH_MAX:
                raise BadJson(f"more than {DEPTH_MAX} tables or lists inside one another", line, key=self._path()[:3])
            self._open.append(_Open(mark == "{"))
        elif mark in "}]":
            self._open.pop()
        elif mark == ",":
            self._next(self._open[-1])
        else:
            self._open[-1].awaits_key = False

    @staticmethod
    def _next(place: _Open) -> None:
        place.awaits_key = True
        if isinstance(place.at, int):
            place.at += 1

    def _string(self, token: str, line: int) -> None:
        text = json.loads(token) if "\\" in token else token[1:-1]
        place = self._open[-1] if self._open else None
        if place is not None and place.table and place.awaits_key:
            place.at = text
            path = self._path()
            if text in place.keys:
                raise BadJson(f"is there twice, first in line {self.lines[path]}", line, key=path)
            place.keys.add(text)
            self.lines[path] = line
        else:
            self._value(line)
        if _HALF.search(text):
            raise BadJson("holds half of a surrogate pair, which is no character", line, key=self._path())

    def _bare(self, token: str, line: int) -> None:
        self._value(line)
        if token in _CONSTANTS:
            raise BadJson(f"is {token}, which is not JSON", line, key=self._path())
        if len(token) > NUMBER_MAX:
            raise BadJson(f"is a number of {len(token)} characters", line, key=self._path())
        if _NUMBER.match(token) and isinf(float(token)):
            raise BadJson(f"is {token}, which is too large a number", line, key=self._path())
