"""How long the engine reads the longest prompt, by what the gateway measured on this box. Touches learned.json in the
state folder, when it has changed.

Rule: only measurements count. Before there are any, the answer is that nobody knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gateway.learning.learned import NAME, Known, read


@dataclass(slots=True)
class ReadingSpeed:
    """One per daemon. The gateway writes the file once a minute at most."""

    state_dir: Path
    _engines: Mapping[tuple[str, str], Known] = field(default_factory=dict)
    _stamp: tuple[int, int] | None = None

    def longest_prefill_s(self, profile: str, model: str, tokens: int) -> float | None:
        """Seconds for a cold prompt of so many tokens; None = it was never measured with it. Raises nothing."""
        self._refresh()
        known = self._engines.get((profile, model))
        if known is None or not known.curve.measured:
            return None
        return known.curve.overhead_s + known.curve.predict_s(tokens, 0)

    def _refresh(self) -> None:
        path = self.state_dir / NAME
        try:
            there = path.stat()
            stamp = there.st_mtime_ns, there.st_ino
            if stamp != self._stamp:
                self._stamp, self._engines = stamp, read(path)
        except (OSError, ValueError):
            self._engines = {}
