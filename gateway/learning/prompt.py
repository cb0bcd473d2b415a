"""One request's prompt in canonical form, and where its tools, its system prompt and its messages are in it. Pure.

Holds text of a prompt: it has no printable form, and none of it leaves memory.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from gateway.dialects import canonical
from gateway.dialects.canonical import SYSTEM_ROLES


@dataclass(frozen=True, slots=True)
class CanonicalPrompt:
    """`data`: all segments one after the other; `ends`: where each of them ends; the first `tools` of them are tools,
    the next ones up to `heads` the system prompt, what follows are messages."""

    data: bytes = field(repr=False)
    ends: tuple[int, ...] = field(repr=False)
    tools: int
    heads: int

    @classmethod
    def of(cls, body: dict[str, Any]) -> CanonicalPrompt:
        """Of a parsed request of any dialect. As expensive as writing it: 400 KB in a few milliseconds."""
        parts = list(canonical.tools(body))
        tools = len(parts)
        parts += canonical.system(body)
        heads = len(parts) + _leading(body)
        parts += canonical.messages(body)
        data = b"".join((*parts, b""))  # one of orjson's, joined alone, would stay, with its room for kilobytes
        return cls(data, tuple(accumulate(map(len, parts))), tools, heads)

    def segments(self) -> Iterator[bytes]:
        """All of them, in order."""
        begin = 0
        for end in self.ends:
            yield self.data[begin:end]
            begin = end

    def segment(self, index: int) -> bytes:
        """One segment."""
        return self.data[self.begin(index) : self.ends[index]]

    def begin(self, index: int) -> int:
        """The byte at which a segment begins; for one past the last, where all ends."""
        return self.ends[index - 1] if index else 0

    def index_at(self, offset: int) -> int:
        """The segment that the byte at `offset` is of; one past the last behind the end."""
        return bisect_right(self.ends, offset)

    def name(self, index: int) -> str:
        """What a person calls a segment: `tool 3`, `system prompt`, `message 2`; counted from 1."""
        if index < self.tools:
            return f"tool {index + 1}"
        return "system prompt" if index < self.heads else f"message {index - self.heads + 1}"

    def continues(self, other: CanonicalPrompt) -> bool:
        """Whether this prompt begins with all of another; segments end of themselves, so bytes are enough."""
        return self.data.startswith(other.data)


def first_difference(left: bytes, right: bytes) -> int:
    """The first byte at which two differ; the length of the shorter when it begins the longer. Halves slices: 400 KB in
    well under a millisecond."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def alike(left: bytes, right: bytes) -> bool:
    """Whether one is the other with a part of it changed: at least half of the longer is the same at both ends. What
    every message is wrapped in does not count."""
    longer = max(len(left), len(right)) - _WRAPPING
    begin = first_difference(left, right)
    end = first_difference(left[begin:][::-1], right[begin:][::-1])
    return longer > 0 and 2 * (begin + end - _WRAPPING) >= longer


_WRAPPING = 64
"""Bytes of `{"role":"user","content":[{"type":"text","text":"..."}]}`, a few more."""


def _leading(body: dict[str, Any]) -> int:
    """How many messages at the beginning are the system prompt's."""
    count = 0
    for name in ("messages", "input"):
        items = body.get(name)
        for item in items if isinstance(items, list) else ():
            if not isinstance(item, dict) or item.get("role") not in SYSTEM_ROLES:
                return count
            count += 1
    return count
