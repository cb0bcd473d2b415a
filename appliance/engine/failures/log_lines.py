"""What a line of an engine's log is: whose, how grave, and its words without what is printed before them. Pure.

vLLM's processes put `(EngineCore pid=912)` before each line, C++ libraries below them put nothing or `[rank0]:`; logged
lines have a level, a stamp and a place, what Python prints at its end has none. llama.cpp's lines have none of these.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_PROCESS = re.compile(r"\((?P<name>[A-Za-z][\w-]*) pid=(?P<pid>\d+)\) ?")
_RANK = re.compile(r"\[(?P<rank>rank\d+)\]:\s?")
_NATIVE = re.compile(r"\[(?P<level>[IWEF])\d{4} [\d:.]+ [^\]]*\] ?")
_RECORD = re.compile(
    r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL)\b(?::| (?P<stamp>\d\d-\d\d \d\d:\d\d:\d\d))?(?: \[[\w.-]+:\d+\])? ?"
)
_LEVELS = {"I": "INFO", "W": "WARNING", "E": "ERROR", "F": "CRITICAL"}
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|OutOfResources|Timeout)(?::|$)")
_GRAVE = re.compile(
    r"Traceback \(most recent call last\)|terminate called|Fatal Python error|Segmentation fault|Illegal instruction"
    r"|Bus error|[\w.-]+: error: |.*(?:died|exited) unexpectedly"
)
_NATIVE_WORDS = re.compile(r"terminate called|\s*what\(\):|Fatal Python error|Segmentation fault")
_DETAIL = re.compile(r" +(?:Value error|Assertion failed|Input should|Unexpected keyword|Field required|Extra inputs)")
_SILENT = re.compile(
    r"Traceback \(most|During handling of|The above exception|Process \w+:$|\s*For further information visit"
    r"|(?:EngineCore|WorkerProc) (?:failed|encountered|hit)|.*Please include the stack trace"
    r"|Dumping (?:input data|scheduler)|$"
)
"""Says that something failed, not what. Dumps have the whole configuration, in which every row would find its words."""


_HEAD = re.compile(r"\d+ validation errors? for \w+$")
"""pydantic's: which of the values, and what is wrong, comes over the next lines."""


@dataclass(frozen=True, slots=True)
class Line:
    """`process`: as `EngineCore 912`, `rank0`, or "" when the line does not say; `level`: "" when it was not logged;
    `tick`: grows with the stamps of the log, one for each second that is seen. `native`: printed below Python."""

    index: int
    process: str
    level: str
    text: str
    tick: int
    native: bool = False

    @property
    def is_grave(self) -> bool:
        """Whether it tells of an error, or begins to."""
        return self.level in ("ERROR", "CRITICAL") or bool(_EXCEPTION.match(self.text) or _GRAVE.match(self.text))

    @property
    def is_frame(self) -> bool:
        """Whether it belongs to a traceback's frames."""
        return self.text.startswith(" ") and not _DETAIL.match(self.text)

    @property
    def tells(self) -> bool:
        """Whether its words can name a cause."""
        return not self.is_frame and not _SILENT.match(self.text)


def statements(lines: Iterable[Line]) -> tuple[str, ...]:
    """The words of the lines that tell something, oldest first; a head with what comes after it, which also stands
    alone."""
    texts = [line.text for line in lines if line.tells]
    return tuple(
        ": ".join((text, *(more.strip() for more in texts[place + 1 : place + 3]))) if _HEAD.search(text) else text
        for place, text in enumerate(texts)
    )


def read(lines: Iterable[str]) -> tuple[Line, ...]:
    """The lines of a log, oldest first."""
    found: list[Line] = []
    newest, tick = "", 0
    for index, whole in enumerate(lines):
        process, level, text, native = "", "", whole, False
        if match := _PROCESS.match(text):
            process, text = f"{match['name']} {match['pid']}", text[match.end() :]
        elif match := _RANK.match(text):
            process, text = match["rank"], text[match.end() :]
        if match := _NATIVE.match(text):
            level, text, native = _LEVELS[match["level"]], text[match.end() :], True
        elif match := _RECORD.match(text):
            level, text = match["level"], text[match.end() :]
            if (match["stamp"] or "") > newest:
                newest, tick = match["stamp"], tick + 1
        native = native or bool(_NATIVE_WORDS.match(text))
        found.append(Line(index, process, level, text, tick, native))
    return tuple(found)
