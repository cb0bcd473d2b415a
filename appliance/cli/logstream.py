"""A stream for log lines whose loss ends nothing: a full disk, a terminal that was closed. Touches the stream."""

from __future__ import annotations

import contextlib
import io
from typing import TextIO


class LogStream(io.TextIOBase):
    """Writes to another stream and drops what that cannot take."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """As any stream; never raises OSError."""
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """As any stream; never raises OSError."""
        with contextlib.suppress(OSError, ValueError):  # ValueError: closed by now
            self._stream.flush()

    def isatty(self) -> bool:
        """Whether the stream below is a terminal."""
        return self._stream.isatty()

    def fileno(self) -> int:
        """The descriptor of the stream below. Raises OSError when it has none."""
        return self._stream.fileno()
