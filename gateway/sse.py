"""Cuts a byte stream into whole server-sent events, whatever the pieces it arrives in. Pure.

Rules:
- What goes out are the bytes that came in, in order; only where they are cut changes.
- A boundary is an empty line: LF LF or CR LF CR LF.
"""

from __future__ import annotations

from collections.abc import Iterator

HELD_MAX_BYTES = 8 * 1024 * 1024
"""A single event above this is passed on in pieces rather than held."""


class Framer:
    """Holds back what is not yet a whole event."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """The whole events that `data` completes, as one block; b"" when there are none."""
        if self._held:
            data = self._held + data
        if data.endswith(b"\n\n"):
            self._held = b""
            return data
        end = _last_boundary(data)
        if end == 0 and len(data) > HELD_MAX_BYTES:
            end = len(data)
        self._held = data[end:]
        return data[:end]

    def rest(self) -> bytes:
        """What is held; the framer is empty afterwards."""
        held, self._held = self._held, b""
        return held


def _last_boundary(data: bytes) -> int:
    """Offset behind the last empty line of `data`, 0 when there is none."""
    lf = data.rfind(b"\n\n")
    crlf = data.rfind(b"\r\n\r\n")
    return max(lf + 2 if lf >= 0 else 0, crlf + 4 if crlf >= 0 else 0)


def events(block: bytes) -> Iterator[bytes]:
    """The events of a block of whole events, each with its boundary."""
    start = 0
    while start < len(block):
        lf = block.find(b"\n\n", start)
        crlf = block.find(b"\r\n\r\n", start)
        if lf < 0 and crlf < 0:
            yield block[start:]
            return
        end = lf + 2 if crlf < 0 or 0 <= lf < crlf else crlf + 4
        yield block[start:end]
        start = end


def data_of(event: bytes) -> bytes:
    """The data of one event: its `data:` lines joined by LF; b"" for a comment."""
    lines = [line for line in event.splitlines() if line.startswith(b"data:")]
    return b"\n".join(line[5:].removeprefix(b" ") for line in lines)


def is_comment(event: bytes) -> bool:
    """True when an event has nothing but comment lines."""
    return all(not line or line.startswith(b":") for line in event.splitlines())


def at_boundary(data: bytes) -> bool:
    """True when `data` ends with a whole event."""
    return data.endswith((b"\n\n", b"\r\n\r\n"))


def names_error(event: bytes) -> bool:
    """True when an event says by its name that it is an error (`event: error`), or by a field that no standard
    knows (`error: {...}`, older llama.cpp)."""
    for line in event.splitlines():
        field, _, value = line.partition(b":")
        if field == b"error" or (field == b"event" and value.strip() == b"error"):
            return True
    return False
