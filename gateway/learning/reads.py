"""Times how long the engine takes to read a prompt, and says when that was nothing else's time. Pure.

A reading is clean when nothing else was being read when it was sent, and nothing came to be read until its first token.
Times are seconds of one monotonic clock; ids that are not known are passed over.
"""

from __future__ import annotations


class Reads:
    """One per gateway: what the engine is reading now."""

    def __init__(self) -> None:
        self._sent_s: dict[int, float | None] = {}

    def sent(self, id: int, now_s: float) -> None:
        """A request went to the engine."""
        for other in self._sent_s:
            self._sent_s[other] = None
        self._sent_s[id] = None if self._sent_s else now_s

    def read(self, id: int, now_s: float) -> float | None:
        """Its first token is here. The seconds that took, None when the measurement is not clean."""
        sent_s = self._sent_s.pop(id, None)
        return now_s - sent_s if sent_s is not None and now_s > sent_s else None

    def gone(self, id: int) -> None:
        """It ended without a first token, or nobody will tell of one."""
        self._sent_s.pop(id, None)
