"""Makes text from files and devices fit for a terminal and a log line. Pure.

Tensor names, GPU names, drivers' and servers' words are strangers' text: what would move the cursor, colour a line or
turn the reading direction is shown as an escape. For rich, wrap the result in `rich.text.Text`, which has no markup.
"""

from __future__ import annotations

import unicodedata

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})


def printable(text: str, limit: int = 300) -> str:
    """`text` without control, format and surrogate characters, `limit` characters at most (an ellipsis ends it)."""
    shown = "".join(_escaped(char) for char in text[: limit + 1])
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def _escaped(char: str) -> str:
    if unicodedata.category(char) not in _HIDDEN:
        return char
    return f"\\x{ord(char):02x}" if ord(char) < 0x100 else f"\\u{ord(char):04x}"
