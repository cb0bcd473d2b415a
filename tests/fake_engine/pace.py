"""How fast tokens come: decode pace, prefill time, and the clock that all decoding sequences share. Pure.

Rules: all sequences decode at one pace, so one clock counts tokens for all of them. A change of pace moves the
future, never the past: the clock is continuous and its deadlines are absolute, so nothing drifts.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf


def ms_per_token(table: Sequence[float], running: int) -> float:
    """Milliseconds between two tokens of one stream while `running` sequences decode.

    `table[i]` is for i + 1 sequences; beyond its end the last step repeats.
    """
    if running <= len(table):
        return table[max(running, 1) - 1]
    step = table[-1] - table[-2] if len(table) > 1 else 0.0
    return table[-1] + (running - len(table)) * step


def prefill_s(prompt_tokens: int, cached_tokens: int, tok_per_s: float = 0.0) -> float:
    """Seconds to prefill what is not cached; `tok_per_s` above 0 replaces the formula.

    Without cache it is .11397 K + 2.284e-4 K^2 for K thousand tokens. Behind a cached prefix the new tokens
    attend to it, so it is the difference of two such values (3.5K on top of 88K = .54 s).
    Source: facts/admission-and-bench.md section 3.
    """
    if tok_per_s > 0:
        return max(prompt_tokens - cached_tokens, 0) / tok_per_s
    return max(_whole_prefill_s(prompt_tokens) - _whole_prefill_s(cached_tokens), 0.0)


def _whole_prefill_s(tokens: int) -> float:
    thousands = tokens / 1000
    return 0.11397 * thousands + 2.284e-4 * thousands**2


def decode_tok_per_s(table: Sequence[float], running: int, *, slowdown: float = 1.0, time_scale: float = 1.0) -> float:
    """Tokens per second of one stream; `slowdown` is its share of normal speed (prefill_decode_factor)."""
    return 1000.0 / ms_per_token(table, running) * slowdown / time_scale


class DecodeClock:
    """Counts the tokens that one ever-decoding stream would have had.

    A sequence that starts at position p has its k-th token (from 0) at position p + k. Times are seconds of any
    one monotonic clock.
    """

    __slots__ = ("_position", "_rate", "_since")

    def __init__(self, now: float, tok_per_s: float = 0.0) -> None:
        self._since = now
        self._position = 0.0
        self._rate = tok_per_s

    def position(self, now: float) -> float:
        """Tokens counted until `now`."""
        return self._position + (now - self._since) * self._rate

    def set_rate(self, now: float, tok_per_s: float) -> None:
        """From `now` on count at another pace; what was counted stays."""
        self._position = self.position(now)
        self._since = now
        self._rate = tok_per_s

    def when(self, position: float) -> float:
        """The time at which `position` is reached at the present pace; inf while the clock stands."""
        missing = position - self._position
        if missing <= 0:
            return self._since
        return self._since + missing / self._rate if self._rate > 0 else inf
