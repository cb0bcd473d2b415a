"""A row of the tables: which line of a log means what, and what to do. Pure.

`title` and `remedy` may use the expression's named groups, and what `_said` knows of every run: {model},
{environment}, {context}, {streams_now}. What needs arithmetic is left to the row's `refine`. A group of several words
is no name but what the engine said: in a title it is a quotation.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from shlex import quote
from typing import Literal, TypeAlias

from appliance.engine.failures.context import Context
from appliance.printable import printable, quoted
from gateway.state import Cause

EVIDENCE_CHARS = 300
GROUP_CHARS = 240
Moment = Literal["load", "graphs", "serving"]
"""When it ended: before its CUDA graphs, while it captured them, after its server had started."""
Refine: TypeAlias = Callable[[Cause, re.Match[str], Context], Cause]


@dataclass(frozen=True, slots=True)
class Pattern:
    """A row. `retry`: whether the same start may end otherwise. `frames`: what the traceback must show; `moment`: when
    it must have been; None = any. `refine`: the cause with what was computed. `plugin`: a plugin that did not load
    explains it."""

    expression: re.Pattern[str]
    id: str
    title: str
    remedy: str
    retry: bool = True
    frames: re.Pattern[str] | None = None
    moment: Moment | None = None
    refine: Refine | None = None
    plugin: bool = False

    def match(self, text: str, frames: str, moment: Moment) -> re.Match[str] | None:
        """What of a line's text the row knows; None = nothing."""
        if self.moment not in (None, moment) or (self.frames is not None and not self.frames.search(frames)):
            return None
        return self.expression.search(text)

    def cause(self, match: re.Match[str], context: Context) -> Cause:
        """The row, filled in. The evidence is the line as it came, `EVIDENCE_CHARS` of it."""
        groups = {name: printable(text or "", GROUP_CHARS) for name, text in match.groupdict().items()}
        words = _said(context) | groups
        shown = {name: quoted(text, GROUP_CHARS) if " " in text else text for name, text in groups.items()}
        title = re.sub(r" +(?=[. ])", "", self.title.format(**words | shown))
        cause = Cause(
            id=self.id,
            title=title,
            remedy=self.remedy.format(**words),
            evidence=printable(match.string.strip(), EVIDENCE_CHARS),
            retry=self.retry,
        )
        return cause if self.refine is None else self.refine(cause, match, context)


def row(
    expression: str,
    id_: str,
    title: str,
    remedy: str,
    *,
    retry: bool = True,
    frames: str | None = None,
    moment: Moment | None = None,
    refine: Refine | None = None,
    plugin: bool = False,
) -> Pattern:
    """A row from the texts of its expressions."""
    where = None if frames is None else re.compile(frames)
    return Pattern(re.compile(expression), id_, title, remedy, retry, where, moment, refine, plugin)


def _said(context: Context) -> dict[str, str]:
    return {
        "model": quote(context.model) if context.model else "DIR",
        "environment": context.environment or "NAME",
        "context": _now("context_tokens", context.context_tokens),
        "streams_now": _now("streams", context.streams),
    }


def _now(setting: str, value: int | None) -> str:
    return setting if value is None else f"{setting} (now {value})"
