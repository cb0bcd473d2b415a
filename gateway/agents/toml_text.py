"""Settings files in TOML. Pure.

A table that has lines of its own is edited within these lines, so that a comment above the next table stays there; a
new table comes at the end. What is written in another form (dotted, inline) is edited through tomlkit's view of all.
"""

from __future__ import annotations

import contextlib
import re
import tomllib
from collections.abc import Iterator
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import InlineTable

from gateway.agents.merge import Change, leaves
from gateway.agents.parse_error import Unreadable
from gateway.toml_lines import KeyPath, blocks


class Toml:
    """The format; see edit.Codec."""

    NAME = "TOML"

    @staticmethod
    def parse(text: str) -> Any:
        """The values."""
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            said = str(error)
            at = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)$", said)
            line = None if at is None else int(at[1] or text.count("\n") + 1)
            said = said[: at.start()] if at is not None else said
            raise Unreadable(f"not valid TOML: {said[:1].lower()}{said[1:]}", line) from error
        except ValueError as error:  # Python reads no number of thousands of digits
            raise Unreadable("a number is too long", None) from error
        except RecursionError as error:
            raise Unreadable("nests lists or tables too deep", None) from error

    @staticmethod
    def edited(text: str, changes: tuple[Change, ...]) -> str:
        """The text after the changes."""
        try:
            for path, value in _settings(changes):
                text = _set(text, path, value)
        except (TOMLKitError, tomllib.TOMLDecodeError, LookupError, TypeError) as error:  # a form we do not know
            raise Unreadable("cannot be edited", None) from error
        return text

    @staticmethod
    def comments(text: str) -> list[str]:
        """The lines that are nothing but a comment."""
        return [line.strip() for line in text.split("\n") if line.lstrip().startswith("#")]


def _settings(changes: tuple[Change, ...]) -> Iterator[tuple[KeyPath, Any]]:
    for change in changes:
        yield from leaves(change.path, change.new)


def _set(text: str, path: KeyPath, value: Any) -> str:
    table, key = path[:-1], path[-1]
    if not table:
        return _set_at_top(text, key, value)
    own = next((block for block in blocks(text) if block.path == table), None)
    if own is not None:
        lines = text.split("\n")
        inner: Any = tomlkit.parse("\n".join(lines[own.first_line - 1 : own.last_line]) + "\n")
        _put(_enter(inner, table), key, value)
        edited = tomlkit.dumps(inner).removesuffix("\n").split("\n")
        return "\n".join([*lines[: own.first_line - 1], *edited, *lines[own.last_line :]])
    if not _exists(tomllib.loads(text), table):
        gap = "" if not text else "\n" if text.endswith("\n") else "\n\n"
        longer = f"{text}{gap}{_new_table(table, key, value)}"
        with contextlib.suppress(tomllib.TOMLDecodeError):  # the table around it may be inline
            tomllib.loads(longer)
            return longer
    whole: Any = tomlkit.parse(text)
    _put(_enter(whole, table), key, value)
    return tomlkit.dumps(whole)


def _set_at_top(text: str, key: str | int, value: Any) -> str:
    """Set a key of no table: behind the last one, before the comment above the first table."""
    tables = blocks(text)
    lines = text.split("\n")
    first = tables[0].first_line - 1 if tables else len(lines)
    top: Any = tomlkit.parse("\n".join(lines[:first]))
    if key in top:
        top[key] = value
        return "\n".join([tomlkit.dumps(top), *lines[first:]])
    tail = 0
    while tail < first and _is_blank(lines[first - 1 - tail]):
        tail += 1
    if tail == first and not tables:  # comments alone: they are about the file
        tail = int(lines[-1] == "")
    added = tomlkit.dumps({str(key): value}).removesuffix("\n")
    gap = [""] if lines[first - tail :] and lines[first - tail].strip() else []
    return "\n".join([*lines[: first - tail], added, *gap, *lines[first - tail :]])


def _is_blank(line: str) -> bool:
    return not line.strip() or line.lstrip().startswith("#")


def _new_table(table: KeyPath, key: str | int, value: Any) -> str:
    inner = tomlkit.table()
    inner[str(key)] = value
    outer = inner
    for part in reversed(table[1:]):
        around = tomlkit.table(is_super_table=True)
        around[str(part)] = outer
        outer = around
    document = tomlkit.document()
    document[str(table[0])] = outer
    return tomlkit.dumps(document)


def _put(container: Any, key: str | int, value: Any) -> None:
    if isinstance(container, list) and key == len(container):
        container.append(value)
    else:
        container[key] = value


def _enter(container: Any, table: KeyPath) -> Any:
    for part in table:
        if part not in container:
            container[part] = tomlkit.inline_table() if isinstance(container, InlineTable) else tomlkit.table()
        container = container[part]
    return container


def _exists(values: Any, table: KeyPath) -> bool:
    """Whether the table is there, in whatever form."""
    for part in table:
        if part not in values:
            return False
        values = values[part]
    return True
