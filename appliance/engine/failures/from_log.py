"""What an engine's log says of its end. Pure.

1. vLLM: the report of the process that failed first (root.py), its newest line that a table knows. A plugin that did
   not load explains a quantization or a model that is not known, and an end that no table knows.
2. Any other log: the newest line that a table knows. Lines that were logged as information or warning are no cause.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from appliance.engine.failures import (
    rows_cards,
    rows_ends,
    rows_general,
    rows_memory,
    rows_model,
    rows_setup,
)
from appliance.engine.failures.context import Context
from appliance.engine.failures.log_lines import Line, read, statements
from appliance.engine.failures.pattern import EVIDENCE_CHARS, Moment, Pattern
from appliance.engine.failures.root import Report, is_vllm, reports, started_at
from appliance.printable import printable, quoted
from gateway.state import Cause

PATTERNS: tuple[Pattern, ...] = (
    *rows_cards.IMAGE_ROWS,
    *rows_memory.ROWS,
    *rows_model.ROWS,
    *rows_setup.ROWS,
    *rows_cards.ROWS,
    *rows_general.ROWS,
    *rows_ends.ROWS,
)
"""Read from top to bottom for each line."""
_CAPTURING = re.compile(r"Capturing CUDA graph|Capturing cudagraph")
_CAPTURED = re.compile(r"Graph capturing finished")
_PLUGIN = re.compile(r"Failed to load plugin (?P<plugin>\S+)")
_UNTOLD = ("DEBUG", "INFO", "WARNING")


def from_log(log_tail: Sequence[str], context: Context | None = None) -> Cause | None:
    """What the log knows of the end, or None; `log_tail` is of one start, oldest line first."""
    context = context or Context()
    lines = read(log_tail)
    if not is_vllm(lines):
        frames = "\n".join(line.text for line in lines if line.is_frame)
        heard = (line for line in lines if line.level not in _UNTOLD)
        return _known(tuple(heard), frames, _moment(lines, context), context)  # 2
    found = reports(lines, served=context.served)
    root = _fatal(found)
    cause = None
    for report in reversed(root):
        cause = cause or _known(
            report.telling, report.frames, _moment(lines[: report.lines[0].index], context), context
        )
    if cause is None or any(row.plugin for row in PATTERNS if row.id == cause.id):  # 1
        return _failed_plugin(found, context) or cause
    return cause


def last_words(log_tail: Sequence[str], context: Context) -> tuple[str, str]:
    """(process, words) of what failed first, for an end that no table knows; of a log without reports, ("", the last
    line)."""
    lines = read(log_tail)
    root = _fatal(reports(lines, served=context.served)) if is_vllm(lines) else ()
    if root:
        return root[-1].process.partition(" ")[0], root[-1].last_error
    return "", next((line.strip() for line in reversed(log_tail) if line.strip()), "")


def booted(log_tail: Sequence[str]) -> bool:
    """Whether the log says that the engine's server began to serve."""
    return started_at(read(log_tail)) is not None


def _fatal(found: Sequence[Report]) -> tuple[Report, ...]:
    """The reports of the process that failed first, oldest first."""
    fatal = [report for report in found if not report.survived]
    own = [report for report in fatal if report.process == fatal[0].process and report.is_echo == fatal[0].is_echo]
    return tuple(sorted(own, key=lambda report: report.lines[0].index))


def _known(lines: Iterable[Line], frames: str, moment: Moment, context: Context) -> Cause | None:
    for text in reversed(statements(lines)):
        for row in PATTERNS:
            if match := row.match(text, frames, moment):
                return row.cause(match, context)
    return None


def _moment(lines: Sequence[Line], context: Context) -> Moment:
    if context.served or started_at(lines) is not None:
        return "serving"
    capturing = max((line.index for line in lines if _CAPTURING.search(line.text)), default=-1)
    captured = max((line.index for line in lines if _CAPTURED.search(line.text)), default=-1)
    return "graphs" if capturing > captured else "load"


def _failed_plugin(found: Iterable[Report], context: Context) -> Cause | None:
    for report in found:
        match = _PLUGIN.search(report.lines[0].text)
        if match:
            name = printable(match["plugin"], 100)
            return Cause(
                id="engine.plugin_failed",
                title=f"The engine's plugin {name} did not load: {quoted(report.last_error)}.",
                remedy=f"moe-appliance engine verify {context.environment or 'NAME'}",
                evidence=printable(report.last_error, EVIDENCE_CHARS),
                retry=False,
            )
    return None
