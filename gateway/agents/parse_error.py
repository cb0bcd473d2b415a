"""What is wrong with the text of a settings file. Pure."""

from __future__ import annotations


class Unreadable(Exception):
    """A text that is not what it should be: `line`, 1-based, None when unknown; `remedy` when the usual one, to correct
    the line, is none."""

    def __init__(self, said: str, line: int | None, remedy: str | None = None) -> None:
        super().__init__(said)
        self.said = said
        self.line = line
        self.remedy = remedy
