"""Line numbers for TOML texts, and errors that name file, line, key and what is wrong. Pure.

TOML libraries give values without lines. The scanner here finds where each key stands in a text that a
TOML library has already accepted; on any other text it is only a guess, and it never raises.
Errors never repeat a text value: it may be a secret that was pasted into the wrong place.
"""

from __future__ import annotations

import datetime
import difflib
import re
import tomllib
import types
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from gateway.errors import ConfigError

KeyPath = tuple[str | int, ...]

ERRORS_MAX = 20
"""So many errors of one file are named; the rest is counted."""
_MAX_DEPTH = 64
_BLANK = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_STRING = re.compile(
    r'"""(?:[^\\]|\\.)*?""""{0,2}' r"|'''.*?''''{0,2}" r'|"(?:[^"\\\n]|\\.)*"' r"|'[^'\n]*'", re.DOTALL
)
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_SCALAR = re.compile(r"[^,\]}#\r\n]*")


@dataclass(frozen=True, slots=True)
class Block:
    """A `[table]` or `[[table]]` as written: its header line to the last line of its last value, 1-based.

    Comments and blank lines after the last value are not part of it.
    """

    path: KeyPath
    first_line: int
    last_line: int


class _Scan:
    """One pass over a text; `lines` and `blocks` are the result."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.pos = 0
        self.lines: dict[KeyPath, int] = {}
        self.blocks: list[Block] = []
        self._implied: dict[KeyPath, int] = {}
        self._lengths: dict[KeyPath, int] = {}
        self._newlines = [match.start() for match in re.finditer("\n", text)]
        self._document()
        self.lines = self._implied | self.lines

    def _line(self, pos: int) -> int:
        return bisect_right(self._newlines, pos - 1) + 1

    def _take(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self.text, self.pos)
        if match is None:
            return ""
        self.pos = match.end()
        return match.group()

    def _skip(self, literal: str) -> bool:
        if not self.text.startswith(literal, self.pos):
            return False
        self.pos += len(literal)
        return True

    def _document(self) -> None:
        table: KeyPath = ()
        while True:
            self._take(_BLANK)
            start = self.pos
            if start >= len(self.text):
                return
            if self._skip("["):
                table = self._header(start)
            else:
                self._pair(table, 0)
                if self.blocks:
                    last = self.blocks[-1]
                    self.blocks[-1] = Block(last.path, last.first_line, self._line(self.pos - 1))
            newline = self.text.find("\n", self.pos)
            self.pos = len(self.text) if newline < 0 else newline + 1

    def _header(self, start: int) -> KeyPath:
        array = self._skip("[")
        keys = self._dotted()
        line = self._line(start)
        path: KeyPath = ()
        for index, key in enumerate(keys):
            path = (*path, key)
            self._implied.setdefault(path, line)
            if array and index == len(keys) - 1:
                self._lengths[path] = self._lengths.get(path, 0) + 1
            if path in self._lengths:
                path = (*path, self._lengths[path] - 1)
        self.lines.setdefault(path, line)
        self.blocks.append(Block(path, line, line))
        return path

    def _dotted(self) -> list[str]:
        keys: list[str] = []
        while True:
            self._take(_SPACE)
            key = self._take(_BARE_KEY)
            keys.append(key or _unquoted(self._take(_STRING)))
            self._take(_SPACE)
            if not self._skip("."):
                return keys

    def _pair(self, table: KeyPath, depth: int) -> None:
        line = self._line(self.pos)
        path = table
        for key in self._dotted():
            path = (*path, key)
            self._implied.setdefault(path, line)
        self.lines.setdefault(path, line)
        if self._skip("="):
            self._value(path, depth)

    def _value(self, path: KeyPath, depth: int) -> None:
        self._take(_SPACE)
        if depth < _MAX_DEPTH and self._skip("["):
            self._items(path, depth, "]")
        elif depth < _MAX_DEPTH and self._skip("{"):
            self._items(path, depth, "}")
        elif not self._take(_STRING):
            self._take(_SCALAR)

    def _items(self, path: KeyPath, depth: int, close: str) -> None:
        index = 0
        while True:
            self._take(_BLANK)
            start = self.pos
            if self._skip(close):
                return
            if close == "]":
                self.lines.setdefault((*path, index), self._line(start))
                self._value((*path, index), depth + 1)
                index += 1
            else:
                self._pair(path, depth + 1)
            self._take(_BLANK)
            if not self._skip(",") and not self.text.startswith(close, self.pos):
                return


def _unquoted(key: str) -> str:
    try:
        value = tomllib.loads(f"k = {key}")["k"]
    except tomllib.TOMLDecodeError:
        return key
    return value if isinstance(value, str) else key


def line_of(text: str, keypath: KeyPath) -> int | None:
    """Return the 1-based line of a table header or key, or None when the text has no such key.

    Elements of arrays are numbers: `("plans", 0, "name")`. A table that is only implied (`seats` in
    `[seats.ana]`) is where it is first mentioned.
    """
    return _Scan(text).lines.get(keypath)


def lines_of(text: str) -> Mapping[KeyPath, int]:
    """Return the lines of all keys, as `line_of` gives one."""
    return _Scan(text).lines


def blocks(text: str) -> tuple[Block, ...]:
    """Return the tables of a text that have a header of their own, in order."""
    return tuple(_Scan(text).blocks)


def dotted(keypath: KeyPath) -> str:
    """Return a path as an operator would write it: `seats."ana.lee".expires`, `plans[0].name`."""
    text = ""
    for part in keypath:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            bare = _BARE_KEY.fullmatch(part) is not None
            escaped = part.replace("\\", "\\\\").replace('"', '\\"')
            escaped = "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in escaped)
            text += ("." if text else "") + (part if bare else f'"{escaped}"')
    return text


# ---------------------------------------------------------------------------------------- syntax


def parse_toml(path: Path, raw: bytes) -> tuple[str, dict[str, Any]]:
    """Return the text and the values of a TOML file. Raises ConfigError with file and line."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as exc:
        line = raw.count(b"\n", 0, exc.start) + 1
        raise _config_error(path, [(line, "is not UTF-8 text")]) from exc
    if text.startswith("\ufeff"):
        raise _config_error(path, [(1, "begins with a byte order mark; save it as UTF-8 without one")])
    try:
        return text, tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        raise toml_error(path, text, exc) from exc
    except RecursionError as exc:
        raise _config_error(path, [(None, "nests arrays or tables too deep")]) from exc
    except ValueError as exc:  # a whole number of thousands of digits
        raise _config_error(path, [(None, "holds a value that cannot be read")]) from exc


def toml_error(path: Path, text: str, exc: tomllib.TOMLDecodeError) -> ConfigError:
    """Return the error of a file that is not TOML, with the line that the parser stopped at."""
    said = str(exc)
    at = re.search(r" \((?:at line (\d+), column \d+|at end of document)\)$", said)
    line = None
    if at is not None:
        said = said[: at.start()]
        line = int(at.group(1)) if at.group(1) else len(text.rstrip("\n").split("\n"))
    twice = re.fullmatch(r"Cannot declare (\(.*\)) twice", said)
    if twice is not None:
        keys = [a or b for a, b in re.findall(r"'([^']*)'|\"([^\"]*)\"", twice.group(1))]
        said = f"[{dotted(tuple(keys))}] is there twice"
    return _config_error(path, [(line, f"not valid TOML: {said[:1].lower()}{said[1:]}" if not twice else said)])


def _config_error(path: Path, found: list[tuple[int | None, str]], more: int = 0) -> ConfigError:
    message = "\n".join(f"{path}:{line}: {said}" if line else f"{path}: {said}" for line, said in found)
    message += f"\n{path}: and {more} more" if more else ""
    what = "the line" if len(found) == 1 else "the lines"
    return ConfigError(message, f"edit {path} and correct {what} named above; nothing of it was applied")


def line_errors(path: Path, text: str, found: list[tuple[KeyPath, str]], more: int = 0) -> ConfigError:
    """Return one error of many findings `(key, "what is wrong with it")`, one a line, in the file's order, as far
    as ERRORS_MAX; `more` were found and are not even listed."""
    lines = _Scan(text).lines
    rows = [(_nearest(lines, key), f"{dotted(key)} {said}".strip()) for key, said in found]
    rows.sort(key=lambda row: row[0] or 0)
    return _config_error(path, rows[:ERRORS_MAX], more + max(0, len(rows) - ERRORS_MAX))


def _nearest(lines: Mapping[KeyPath, int], key: KeyPath) -> int | None:
    for size in range(len(key), 0, -1):
        if key[:size] in lines:
            return lines[key[:size]]
    return None


# ------------------------------------------------------------------------------------- validation

_WORDS = {
    "missing": "is missing",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "string_type": "must be text in quotes",
    "path_type": "must be a path in quotes",
    "dict_type": "must be a table",
    "model_type": "must be a table",
    "mapping_type": "must be a table",
    "list_type": "must be a list in [ ]",
    "tuple_type": "must be a list in [ ]",
    "set_type": "must be a list in [ ]",
    "datetime_type": "must be a date and time such as 2027-01-31T18:00:00Z",
    "date_type": "must be a date such as 2027-01-31",
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be more than {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be less than {lt}",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
    "too_short": "must have at least {min_length} entries",
    "too_long": "must have at most {max_length} entries",
    "literal_error": "must be {expected}",
    "enum": "must be {expected}",
}
_KINDS: tuple[tuple[type[Any], str], ...] = (
    (str, "text"),
    (Mapping, "a table"),
    (list, "a list"),
    (datetime.datetime, "a date and time"),
    (datetime.date, "a date"),
    (datetime.time, "a time of day"),
)


def validation_error(path: Path, text: str, exc: ValidationError, model: type[BaseModel] | None = None) -> ConfigError:
    """Return one error that lists everything wrong with a file, one a line.

    With the `model` that refused the values, an unknown key gets the closest known one named.
    """
    lines = _Scan(text).lines
    found: dict[tuple[KeyPath, str], None] = {}
    errors = exc.errors(include_url=False)
    for error in errors[:ERRORS_MAX]:
        key = _shown(lines, tuple(error["loc"]), missing=error["type"] == "missing")
        found[key, _said(error, model)] = None
    return line_errors(path, text, list(found), max(0, len(errors) - ERRORS_MAX))


def _shown(lines: Mapping[KeyPath, int], loc: KeyPath, *, missing: bool) -> KeyPath:
    """Drop what pydantic adds to a location (`[key]`, names of union members) and the file does not have."""
    end = (loc[-1],) if missing and loc else ()
    known = loc[: len(loc) - len(end)]
    while known and known not in lines:
        known = known[:-1]
    if not known and loc[:1] not in lines:  # not from this file (a default, the environment), or all of it
        known = loc[: len(loc) - len(end)]
    return known + end


def _said(error: ErrorDetails, model: type[BaseModel] | None) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind == "extra_forbidden":
        return "is not a known key" + _closest_key(tuple(error["loc"]), model)
    words = _WORDS.get(kind)
    if words is None:
        said = " ".join(error["msg"].removeprefix("Value error, ").split())
        return said if kind == "value_error" else f"is refused: {said}"
    said, value = words.format(**context), error["input"]
    known = re.findall(r"'([^']*)'", said)
    if kind in ("literal_error", "enum") and known and isinstance(value, str):
        close = difflib.get_close_matches(value.lower(), known, n=1, cutoff=0.6)
        return f"{said}; did you mean '{close[0]}'?" if close else f"{said}, is another text"
    return said if kind == "missing" else f"{said}, is {kind_of(value)}"


def kind_of(value: object, kinds: Sequence[tuple[type[Any], str]] = _KINDS) -> str:
    """What was found where something else should be: numbers as they are, of all else its kind."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)[:32]
    return next((words for kind, words in kinds if isinstance(value, kind)), type(value).__name__)


def _closest_key(loc: KeyPath, model: type[BaseModel] | None) -> str:
    known = sorted(_known_keys(model, loc[:-1])) if model is not None else []
    close = difflib.get_close_matches(str(loc[-1]), known, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; known here: {', '.join(known)}" if known else ""


def _known_keys(annotation: object, loc: KeyPath) -> set[str]:
    """Collect the keys that may stand under `loc`, over all models that an annotation may mean."""
    keys: set[str] = set()
    for kind in _members(annotation):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            named = {field.alias or name: field.annotation for name, field in kind.model_fields.items()}
            if not loc:
                keys |= named.keys()
            elif loc[0] in named:
                keys |= _known_keys(named[str(loc[0])], loc[1:])
        elif loc and get_args(kind):
            keys |= _known_keys(get_args(kind)[-1 if get_origin(kind) is dict else 0], loc[1:])
    return keys


def _members(annotation: object) -> Iterator[object]:
    """Unwrap Annotated and unions; yields everything else as it is."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _members(get_args(annotation)[0])
    elif origin is Union or origin is types.UnionType:
        for member in get_args(annotation):
            yield from _members(member)
    else:
        yield annotation
