"""Keep the last lines of the engine's output, tell who listens, and append to a file that stays small.

Touches the log file when one is given. Lines are the engine's own words: no time stamp is added, colours and
control characters are removed, bytes that are no UTF-8 become U+FFFD.

Rules:
- A line ends at \\n or \\r (progress bars), and is cut at `line_chars`; memory stays bounded whatever comes.
- A log file that cannot be written is given up, not fatal: `file_error` says why. The ring goes on.
- Listeners are called from the event loop for every line and must neither block nor raise.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable
from pathlib import Path

_ENDS = re.compile(rb"[\r\n]")
_NOISE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
CUT = "…"


class LogRing:
    """The tail of a log. `lines`: how many are kept; `file_bytes`: size at which FILE becomes FILE.1."""

    def __init__(
        self,
        lines: int = 400,
        *,
        line_chars: int = 4_000,
        file: Path | None = None,
        file_bytes: int = 5_000_000,
    ) -> None:
        self.file_error: str | None = None
        self._lines: deque[str] = deque(maxlen=lines)
        self._line_chars = line_chars
        self._pending = bytearray()
        self._listeners: list[Callable[[str], None]] = []
        self._file = file
        self._file_bytes = file_bytes
        self._fd: int | None = None
        self._size = 0

    def tail(self, count: int | None = None) -> tuple[str, ...]:
        """The last `count` complete lines, oldest first; all that are kept when None."""
        lines = tuple(self._lines)
        return lines if count is None else lines[max(0, len(lines) - count) :]

    def subscribe(self, listener: Callable[[str], None]) -> Callable[[], None]:
        """Call `listener` with every line from now on; returns what ends that (harmless when repeated)."""
        self._listeners.append(listener)

        def end() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return end

    def feed(self, data: bytes) -> None:
        """Take output as it came; lines may be split anywhere."""
        *complete, rest = _ENDS.split(data)
        for part in complete:
            self._keep(part)
            self._finish_line()
        self._keep(rest)

    def flush(self) -> None:
        """Take what came after the last line end as a line; for the end of a run."""
        self._finish_line()

    def close(self) -> None:
        """Flush and close the file; further lines go to the ring only. Harmless when repeated."""
        self.flush()
        self._file = None
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _keep(self, part: bytes) -> None:
        room = 4 * self._line_chars + 1 - len(self._pending)  # UTF-8 has at most 4 bytes a character
        if room > 0:
            self._pending += part[:room]

    def _finish_line(self) -> None:
        if not self._pending:
            return
        text = _NOISE.sub("", self._pending.decode("utf-8", "replace")).rstrip()
        self._pending.clear()
        if not text:
            return
        if len(text) > self._line_chars:
            text = text[: self._line_chars - 1] + CUT
        self._lines.append(text)
        self._write(text)
        for listener in tuple(self._listeners):
            listener(text)

    def _write(self, text: str) -> None:
        if self._file is None:
            return
        data = text.encode() + b"\n"
        try:
            if self._fd is None or self._size + len(data) > self._file_bytes:
                self._open(self._file, len(data))
            if self._fd is not None:
                self._size += os.write(self._fd, data)
        except OSError as error:
            self.file_error = f"{self._file}: {error.strerror or error}"
            self.close()

    def _open(self, file: Path, room: int) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        if file.exists() and file.stat().st_size + room > self._file_bytes:
            file.replace(file.with_name(file.name + ".1"))
        self._fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._fd).st_size
