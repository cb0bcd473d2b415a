"""Edits the text of a settings file: reads it, merges, writes it again. Pure.

Rules:
- Everything else in the file stays, comments too; a text that would not read as the merged values, or that lost a
  comment, is refused instead of returned.
- Without changes the text is the same, byte for byte.
- Errors never repeat a value: it may be a secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from gateway.agents import json_text, toml_text, yaml_text
from gateway.agents.merge import Change, Conflict, merge
from gateway.agents.parse_error import Unreadable
from gateway.agents.settings import Format, KeyPath
from gateway.errors import MoeError
from gateway.toml_lines import dotted

_BOM = "\ufeff"


class Codec(Protocol):
    """One format. Texts have no byte order mark and end their lines with a newline alone."""

    NAME: str

    @staticmethod
    def parse(text: str) -> Any:
        """The values; None or an empty table for a text without any. Raises Unreadable."""

    @staticmethod
    def edited(text: str, changes: tuple[Change, ...]) -> str:
        """The text after the changes, which may not read as wanted. Raises Unreadable when it cannot be edited."""

    @staticmethod
    def comments(text: str) -> list[str]:
        """The lines that are nothing but a comment."""


CODECS: Mapping[Format, Codec] = {
    Format.JSON: json_text.Json,
    Format.TOML: toml_text.Toml,
    Format.YAML: yaml_text.Yaml,
}


@dataclass(frozen=True, slots=True)
class Edited:
    """What a file shall hold, and what is new in it; no changes: it is as it was."""

    raw: bytes
    changes: tuple[Change, ...]


def edit(
    path: str,
    raw: bytes,
    kind: Format,
    values: Mapping[str, Any],
    kept: Mapping[KeyPath, frozenset[str]],
    by_hand: str,
) -> Edited:
    """Merge `values` into the bytes of a file, b"" for a new one.

    `by_hand` is the remedy when the file cannot be changed here. Raises MoeError naming file and, if known, line.
    """
    codec = CODECS[kind]
    text, mark, newline = _decoded(path, raw, codec.NAME)
    try:
        old = codec.parse(text) if text.strip() else {}
    except Unreadable as error:
        where = f"{path}:{error.line}" if error.line else path
        raise MoeError(
            f"{where}: {error.said}; nothing was changed", error.remedy or _correct(path, by_hand)
        ) from error
    old = {} if old is None else old
    if not isinstance(old, dict):
        raise MoeError(f"{path}: is not a table of settings; nothing was changed", _correct(path, by_hand))
    try:
        wanted, changes = merge(old, values, kept)
    except Conflict as error:
        said = f"{path}: {dotted(error.path)} is not {error.wanted}, as it should be; nothing was changed"
        raise MoeError(said, _correct(path, by_hand)) from error
    except RecursionError as error:  # what is parsed may still be too deep to be copied
        said = f"{path}: nests lists or tables too deep; nothing was changed"
        raise MoeError(said, _correct(path, by_hand)) from error
    if not changes:
        return Edited(raw, ())
    new = _safely(codec, text, changes, wanted)
    if new is None:
        raise MoeError(f"{path} is written in a form that cannot be edited safely; nothing was changed", by_hand)
    return Edited((mark + new.replace("\n", newline)).encode(), changes)


def as_text(kind: Format, values: Mapping[str, Any]) -> str:
    """The values as a file of their own."""
    return edit("", b"", kind, values, {}, "").raw.decode()


def _decoded(path: str, raw: bytes, name: str) -> tuple[str, str, str]:
    """Text, byte order mark, line end."""
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        said = f"{path}:{line}: is not UTF-8 text, so not {name}; nothing was changed"
        raise MoeError(said, f"save {path} as UTF-8, then run this again") from error
    mark = _BOM if text.startswith(_BOM) else ""
    newline = "\r\n" if "\r\n" in text else "\n"
    return text.removeprefix(_BOM).replace("\r\n", "\n"), mark, newline


def _correct(path: str, by_hand: str) -> str:
    return f"correct {path} and run this again; or by hand: {by_hand}"


def _safely(codec: Codec, text: str, changes: tuple[Change, ...], wanted: dict[str, Any]) -> str | None:
    """The text after the changes, None unless it holds just what is wanted and all comments."""
    try:
        new = codec.edited(text, changes)
        same = codec.parse(new) == wanted
    except (Unreadable, RecursionError):
        return None
    return new if same and sorted(codec.comments(new)) == sorted(codec.comments(text)) else None
