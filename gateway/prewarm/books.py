"""What prewarm asks of whoever knows what the engine holds, and what it tells them. Pure: the clock is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gateway.meter import Usage
from gateway.parsing import parse
from gateway.prefix.fingerprint import Fingerprint, fingerprint
from gateway.prefix.index import PrefixIndex

CACHED_SHARE = 0.95
"""What is believed to be there to this share is not read again: the rest is blocks cut short, and our estimate."""

End = Callable[[Usage | None], None]
"""It was read (`usage`, as far as the engine tells), or was cut or failed (None)."""


class Books(Protocol):
    """Kept by whoever knows the cache."""

    def capacity_tokens(self) -> int | None:
        """Tokens that the engine's cache holds; None = not known."""

    def is_cached(self, seat: str, print_: Fingerprint) -> bool:
        """Whether the engine holds it, by estimate."""

    def begins(self, seat: str, print_: Fingerprint) -> End:
        """The engine begins to read it; call what comes back once when that is over."""


class IndexBooks:
    """Those of the prefix index. `index()`: the one in use; `now_s()`: its clock."""

    def __init__(self, index: Callable[[], PrefixIndex], now_s: Callable[[], float]) -> None:
        self._index = index
        self._now_s = now_s

    def capacity_tokens(self) -> int | None:
        """What the index has been told or has learned."""
        return self._index().capacity_tokens

    def is_cached(self, seat: str, print_: Fingerprint) -> bool:
        """By the blocks that the index holds."""
        there = self._index().estimate(print_, seat)
        return there.cached_tokens >= CACHED_SHARE * there.prompt_tokens

    def begins(self, seat: str, print_: Fingerprint) -> End:
        """Its blocks are held from now on."""
        index = self._index()
        reading = index.begin(print_, seat, self._now_s(), ahead=True)
        return lambda usage: index.end(reading, usage, read=usage is not None, now_s=self._now_s())


def print_of(body: bytes) -> Fingerprint:
    """Of what the engine gets, without the splices of brief.py. Takes milliseconds: call it in a thread."""
    return fingerprint(parse(body))
