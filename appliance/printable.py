"""Makes text from files and devices fit for a terminal and a log line. Pure.

Tensor names, GPU names, drivers' and servers' words are strangers' text: what would move the cursor, colour a line or
turn the reading direction is shown as an escape. For rich, wrap the result in `rich.text.Text`, which has no markup.

Rule: what an engine said stands in our sentences as `quoted` and in no other way: by its marks redact.py knows it.
"""

from __future__ import annotations


def escaped(text: object) -> str:
    """The text with whatever is not printable, the blank excepted, spelled out."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in str(text))


def printable(text: str, limit: int = 300) -> str:
    """`escaped`, and `limit` characters at most (an ellipsis ends it)."""
    shown = escaped(text[: limit + 1])
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


OPENS, CLOSES = "“”"
"""Around a quotation, and nowhere else in our own words."""


def quoted(text: str, limit: int = 200) -> str:
    """`printable`, between marks that the text itself does not have."""
    return OPENS + printable(text.translate(_PLAIN), limit) + CLOSES


_PLAIN = str.maketrans({OPENS: '"', CLOSES: '"'})
