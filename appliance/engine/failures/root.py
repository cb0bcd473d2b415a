"""Which process of vLLM failed first, and what it said. Pure.

1. A report is what one process says in a row of an error: a logged traceback, its copy as Python ends, what follows.
2. A report that its process survived (it logged on as usual) is no end: a plugin that did not load, a request that
   failed. Of reports while the engine served, those of the API server, and those without a name, count only if they
   tell of the engine's end: a request that failed, a helper process of Python's that counts what it has to clean up.
3. Most reports only repeat that another process is gone. They are the root where there is nothing else.
4. The rest: the earliest second first; within a second Worker before EngineCore before API server, since a process
   tells the one above it and their lines overtake each other. What has no name comes last, since it is a copy of what
   a process has logged, or the API server's end; but for what was printed below Python.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from appliance.engine.failures.log_lines import Line, statements

_STARTED = re.compile(r"Application startup complete")
_LEAVING = re.compile(
    r"\[shutdown\]|Shutting down|[Ss]hutdown|Finished server process|terminating|Parent process exited"
)
_ECHOES = re.compile(
    r"Engine core initialization failed|EngineDeadError|EngineCore encountered an issue|output_handler failed"
    r"|engine core exited unexpectedly|died unexpectedly|WorkerProc initialization failed|RuntimeError: cancelled"
    r"|BrokenPipeError|ConnectionResetError|EOFError|ncclRemoteError|remote process exited"
    r"|Connection (?:reset|closed) by|failed to recv, got 0 bytes|RPC call to \w+ timed out|died with exit code"
    r"|Failed core proc|KeyboardInterrupt|Worker failed with error|Executor failed|Error in [\w ]+generator"
)
_FATAL_IN_API = re.compile(r"EngineDeadError|output_handler failed|exited unexpectedly|died unexpectedly")
_DEPTHS = (("APIServer", 2), ("EngineCore", 1))
_NAMELESS = 3
_LAST = re.compile(r"Engine core initialization failed")
"""The API server's own end, whoever goes on to log."""


@dataclass(frozen=True, slots=True)
class Report:
    """See 1. `lines`: those of one process, never empty; `survived`: see 2."""

    lines: tuple[Line, ...]
    survived: bool = False

    @property
    def process(self) -> str:
        """As `EngineCore 912`; "" = the log does not say."""
        return self.lines[0].process

    @property
    def telling(self) -> tuple[Line, ...]:
        """The lines that can name a cause, oldest first. Where one does, without the echoes: a core that fails ends its
        workers, and says then that they died."""
        told = tuple(line for line in self.lines if line.tells)
        return told if self.is_echo else tuple(line for line in told if not _ECHOES.search(line.text))

    @property
    def frames(self) -> str:
        """The frames of its tracebacks."""
        return "\n".join(line.text for line in self.lines if line.is_frame)

    @property
    def is_echo(self) -> bool:
        """See 3."""
        told = [line for line in self.lines if line.tells]
        said = [line for line in told if line.is_grave] or told
        return all(_ECHOES.search(line.text) for line in said)

    @property
    def last_error(self) -> str:
        """The newest words that name an error."""
        telling = self.telling
        grave = [text for line, text in zip(telling, statements(telling), strict=True) if line.is_grave]
        return grave[-1] if grave else self.lines[-1].text


def started_at(lines: Sequence[Line]) -> int | None:
    """The index of the last line that says that the API server began to serve; None = it did not."""
    return next((line.index for line in reversed(lines) if _STARTED.search(line.text)), None)


def is_vllm(lines: Iterable[Line]) -> bool:
    """Whether processes of vLLM speak here."""
    return any(" " in line.process for line in lines)


def reports(lines: Sequence[Line], *, served: bool = False) -> tuple[Report, ...]:
    """All that is reported, the root first; those that were survived are last. `served`: it was ready before, though
    the log may no longer say so."""
    began = started_at(lines)
    from_ = -1 if began is None else began
    found = [report for process in _by_process(lines) for report in _of(process, lines)]
    if served or began is not None:  # 2
        found = [_while_serving(report) for report in found if report.lines[0].index > from_]
    return tuple(sorted(found, key=_rank))


def _rank(report: Report) -> tuple[bool, bool, int, int, int]:
    first = report.lines[0]
    depth = _NAMELESS if _nameless(report) else _depth(report.process)
    return report.survived, report.is_echo, first.tick, depth, first.index  # 3, 4


def _nameless(report: Report) -> bool:
    return not report.process and not any(line.native for line in report.lines)


def _depth(process: str) -> int:
    return next((depth for name, depth in _DEPTHS if process.startswith(name)), 0)


def _while_serving(report: Report) -> Report:
    engines = _depth(report.process) < 2 and not _nameless(report)
    fatal = engines or any(_FATAL_IN_API.search(line.text) for line in report.lines)
    return report if fatal else Report(report.lines, survived=True)


def _by_process(lines: Sequence[Line]) -> list[list[Line]]:
    ordered = sorted(lines, key=lambda line: line.process)
    return [list(group) for _, group in groupby(ordered, key=lambda line: line.process)]


def _of(own: list[Line], lines: Sequence[Line]) -> list[Report]:  # 1
    found: list[list[Line]] = []
    open_ = False
    for line in own:
        if line.is_grave:
            if open_:
                found[-1].append(line)
            else:
                found.append([line])
            open_ = True
        elif line.level:
            open_ = False
        elif open_:
            found[-1].append(line)
    usual = _usual(own if own[0].process else lines)
    return [Report(tuple(part), _survived(part, usual)) for part in found]


def _usual(lines: Iterable[Line]) -> int:
    """The index of the last line of work as usual; -1 = there is none."""
    usual = (line for line in lines if line.level in ("DEBUG", "INFO") and not line.native)
    return max((line.index for line in usual if not _LEAVING.search(line.text)), default=-1)


def _survived(part: list[Line], usual: int) -> bool:
    return part[-1].index < usual and not any(line.native or _LAST.search(line.text) for line in part)
