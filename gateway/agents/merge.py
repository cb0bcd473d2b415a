"""Merges wanted settings into those of a file, as plain values, and says what that changes. Pure.

Rules:
- What is wanted and is there already is no change: a second merge changes nothing.
- Tables are merged. In a list of tables the one with the same `id` or `name` is; it is added when there is none. To any
  other list what is missing is added. Everything else takes the wanted value.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.agents.settings import KeyPath

_IDENTITIES = ("id", "name")


class Absent:
    """The old value of a setting that was not there."""

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT = Absent()


@dataclass(frozen=True, slots=True)
class Change:
    """`path` gets `new` instead of `old`, which is ABSENT when the path is not there; then the table or list around it
    is. Numbers in a path count elements of lists; a new element has the number of those before it."""

    path: KeyPath
    old: Any
    new: Any


class Conflict(Exception):
    """`path` holds something that the settings cannot be merged into: `wanted` is what it should be."""

    def __init__(self, path: KeyPath, wanted: str) -> None:
        super().__init__(path)
        self.path = path
        self.wanted = wanted


def merge(
    old: Mapping[str, Any], wanted: Mapping[str, Any], kept: Mapping[KeyPath, frozenset[str]]
) -> tuple[dict[str, Any], tuple[Change, ...]]:
    """Return the merged values and the changes that lead to them, in order. Raises Conflict."""
    changes = tuple(_table(old, wanted, (), kept))
    return applied(old, changes), changes


def applied(old: Mapping[str, Any], changes: tuple[Change, ...]) -> dict[str, Any]:
    """The values after the changes."""
    new = copy.deepcopy(dict(old))
    for change in changes:
        around: Any = new
        for part in change.path[:-1]:
            around = around[part]
        last = change.path[-1]
        if isinstance(around, list) and last == len(around):
            around.append(copy.deepcopy(change.new))
        else:
            around[last] = copy.deepcopy(change.new)
    return new


def leaves(path: KeyPath, value: Any) -> Iterator[tuple[KeyPath, Any]]:
    """The settings inside a value, each with its path; lists of plain values are one setting."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from leaves((*path, key), inner)
    elif isinstance(value, list) and any(isinstance(inner, Mapping) for inner in value):
        for index, inner in enumerate(value):
            yield from leaves((*path, index), inner)
    else:
        yield path, value


def _table(
    old: Mapping[str, Any], wanted: Mapping[str, Any], path: KeyPath, kept: Mapping[KeyPath, frozenset[str]]
) -> Iterator[Change]:
    for key, value in wanted.items():
        there = old.get(key, ABSENT)
        here = (*path, key)
        if there is ABSENT or (there is None and isinstance(value, Mapping | list)):
            yield Change(here, there, value)
        elif isinstance(value, Mapping):
            if not isinstance(there, Mapping):
                raise Conflict(here, "a table")
            yield from _table(there, value, here, kept)
        elif isinstance(value, list):
            if not isinstance(there, list):
                raise Conflict(here, "a list")
            yield from _list(there, value, here, kept)
        elif isinstance(there, Mapping | list):
            raise Conflict(here, "a single value")
        elif not _same(there, value) and not _stays(there, kept.get(here)):
            yield Change(here, there, value)


def _list(old: list[Any], wanted: list[Any], path: KeyPath, kept: Mapping[KeyPath, frozenset[str]]) -> Iterator[Change]:
    end = len(old)
    for value in wanted:
        at = next((index for index, there in enumerate(old) if _identical(there, value)), None)
        if at is None:
            yield Change((*path, end), ABSENT, value)
            end += 1
        elif isinstance(value, Mapping):
            yield from _table(old[at], value, (*path, at), kept)


def _identical(there: Any, value: Any) -> bool:
    if not isinstance(value, Mapping):
        return _same(there, value)
    identity = next((key for key in _IDENTITIES if key in value), None)
    return isinstance(there, Mapping) and identity is not None and _same(there.get(identity), value[identity])


def _same(there: Any, value: Any) -> bool:
    return type(there) is type(value) and bool(there == value)


def _stays(there: Any, values: frozenset[str] | None) -> bool:
    return values is not None and (not values or there in values)
