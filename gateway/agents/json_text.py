"""Settings files in JSON. Pure.

JSON is written anew as a whole, with the indentation that it had. Comments, which some programs take, would be lost:
such a file is refused. Half a surrogate pair, which JSON can hold and UTF-8 cannot, stays an escape.
"""

from __future__ import annotations

import json
import re
from typing import Any

from gateway.agents.merge import Change, applied
from gateway.agents.parse_error import Unreadable

_HALF = re.compile("[\ud800-\udfff]")
_INDENT = re.compile(r"^\{[ \t]*\n([ \t]+)\S")


class Json:
    """The format; see edit.Codec."""

    NAME = "JSON"

    @staticmethod
    def parse(text: str) -> Any:
        """The values."""
        try:
            return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse)
        except json.JSONDecodeError as error:
            if text.startswith(("//", "/*"), error.pos):
                said = "has comments, which would be lost"
                raise Unreadable(said, error.lineno) from error
            raise Unreadable(f"not valid JSON: {error.msg[:1].lower()}{error.msg[1:]}", error.lineno) from error
        except ValueError as error:  # Python reads no number of thousands of digits
            raise Unreadable("a number is too long", None) from error
        except RecursionError as error:
            raise Unreadable("nests lists or tables too deep", None) from error

    @staticmethod
    def edited(text: str, changes: tuple[Change, ...]) -> str:
        """The text after the changes."""
        found = _INDENT.match(text.lstrip())
        old = Json.parse(text) if text.strip() else {}
        new = json.dumps(applied(old, changes), indent=found[1] if found else 2, ensure_ascii=False)
        return _HALF.sub(lambda half: f"\\u{ord(half[0]):04x}", new) + "\n"

    @staticmethod
    def comments(text: str) -> list[str]:
        """There are none."""
        return []


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise Unreadable(f"the key {twice!r} is there twice in one table", None)
    return table


def _refuse(constant: str) -> Any:
    raise Unreadable(f"not valid JSON: {constant}", None)
