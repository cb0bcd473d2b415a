"""Prints text that others wrote, and findings, for people. Writes to the console it is given.

Rule: names, logs and errors are strangers' words: none of them is read as markup or as a terminal's control sequences.
"""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from appliance.printable import printable
from gateway.state import Finding
from gateway.status.views import FindingRow

TONES = {"ok": "green", "warn": "yellow", "bad": "red", "fail": "red", "info": "cyan"}
"""Colours of a verdict's tone and of a finding's severity."""
_LIMIT_CHARS = 4000


def plain(text: object) -> str:
    """One line of text without control characters."""
    return printable("".join(" " if char.isspace() else char for char in str(text)), _LIMIT_CHARS)


def say(console: Console, *parts: str | tuple[str, str], indent: int = 0) -> None:
    """Print one line. A part is text, or text and its style."""
    clean = [plain(part) if isinstance(part, str) else (plain(part[0]), part[1]) for part in parts]
    console.print(Text.assemble(" " * indent, *clean), soft_wrap=True)


def heading(console: Console, name: str, more: str) -> None:
    """Begin a part of what is told."""
    console.print()
    say(console, (name, "bold"), f"  {more}")


def table() -> Table:
    """A table without lines, its columns still to be added."""
    return Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))


def finding(console: Console, found: Finding | FindingRow, *, indent: int = 0, mark: str = "") -> None:
    """Print a finding, without what follows from it. `mark`: stands before its first line."""
    tone = TONES[found.severity]
    say(
        console,
        mark,
        (f"{found.severity} ", f"bold {tone}"),
        (found.title, "bold"),
        (f"  {found.id}", "dim"),
        indent=indent,
    )
    for line in found.observed.splitlines():
        say(console, line, indent=indent + 5)
    say(console, ("wanted: ", "dim"), found.required, indent=indent + 5)
    for line in found.remedy.splitlines():
        say(console, (line, "bold cyan"), indent=indent + 5)
    if found.forced:
        say(console, (f"forced: {found.forced}", "yellow"), indent=indent + 5)
