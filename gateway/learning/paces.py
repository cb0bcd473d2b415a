"""How fast the engine writes with so many streams at once, measured from its replies. Pure.

Rules:
- A reply counts for the number of streams that decoded beside it, itself included, on the mean over its time; between
  two whole numbers it counts for both in part.
- A reply has a cold neighbour when a prompt that is long by tokens (care.py) was read while it decoded. It tells
  nothing of the pace.
- A pace of fewer than SETTLED_TOKENS tokens is an accident of its first pauses.
- After a change of the cap the rolling pace is that of replies that began since: what was before is no evidence of it.
- More streams are never faster: the table is the nearest one that rises.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Any

from gateway.learning.robust_fit import weighted_median

SETTLED_TOKENS = 32
STREAMS_MAX = 256
KEPT = 40
"""Replies kept for each number of streams."""
WEIGHT_MIN = 3.0
"""A number of streams is measured with this many whole replies."""
ROLLING_S = 300.0
ROLLING_MAX = 4096
_MS_MAX = 1e6


@dataclass(frozen=True, slots=True)
class Pace:
    """The median pace of streams without a cold neighbour over ROLLING_S at most, and the replies that it rests on.
    None without any."""

    tok_per_s: float | None
    replies: int


@dataclass(frozen=True, slots=True)
class Written:
    """One reply, finished or so far: the mean number of streams beside and with it (1 and more), `tok_per_s` after its
    first token, `tokens` by the engine's usage where it is known. `began_s`: when its first token came."""

    streams: float
    tok_per_s: float
    tokens: float
    cold_neighbour: bool
    began_s: float = math.inf

    @property
    def counts(self) -> bool:
        """Whether its pace says something about the engine."""
        return self.tokens >= SETTLED_TOKENS and 1000 / _MS_MAX <= self.tok_per_s <= 1000 * _MS_MAX


class Together:
    """Who decodes beside whom. Ids are the caller's; times are seconds of one monotonic clock. An id that is not
    known is passed over, one that begins twice begins anew."""

    def __init__(self) -> None:
        self._since: dict[int, tuple[float, float, int]] = {}
        self._reading: set[int] = set()
        self._colds = 0
        self._stream_seconds = 0.0
        self._at_s = 0.0

    def reading(self, id: int) -> None:
        """A cold prompt is being read from now on."""
        self._reading.add(id)
        self._colds += 1

    def decoding(self, id: int, now_s: float) -> None:
        """The first token of a reply is here; it is read, if it was cold."""
        self._reading.discard(id)
        self._pass(now_s)
        self._since[id] = (now_s, self._stream_seconds, self._colds - len(self._reading))

    def so_far(self, id: int, now_s: float) -> tuple[float, bool] | None:
        """The mean number of streams since this one decodes, and whether it has a cold neighbour."""
        since = self._since.get(id)
        if since is None:
            return None
        self._pass(now_s)
        began_s, stream_seconds, colds = since
        elapsed_s = now_s - began_s
        streams = (self._stream_seconds - stream_seconds) / elapsed_s if elapsed_s > 0 else float(len(self._since))
        return max(1.0, streams), self._colds > colds

    def ended(self, id: int, now_s: float) -> tuple[float, bool] | None:
        """The same, and it is over: read, given up or written."""
        found = self.so_far(id, now_s)
        self._reading.discard(id)
        self._since.pop(id, None)
        return found

    def _pass(self, now_s: float) -> None:
        self._stream_seconds += len(self._since) * max(0.0, now_s - self._at_s)
        self._at_s = max(self._at_s, now_s)


class Paces:
    """One per engine and model. Times are seconds of one monotonic clock and are not kept over a restart."""

    def __init__(self) -> None:
        self._by_streams: dict[int, deque[tuple[float, float]]] = {}
        self._rolling: deque[tuple[float, float]] = deque(maxlen=ROLLING_MAX)
        self._from_s = -math.inf

    def note(self, reply: Written, now_s: float) -> None:
        """A reply is finished."""
        if not reply.counts or reply.cold_neighbour or not 1 <= reply.streams <= STREAMS_MAX:
            return
        if reply.began_s >= self._from_s:
            self._rolling.append((now_s, reply.tok_per_s))
        self._expire(now_s)
        low = math.floor(reply.streams)
        for streams, weight in ((low, low + 1 - reply.streams), (low + 1, reply.streams - low)):
            if weight > 0.01:
                self._of(streams).append((1000 / reply.tok_per_s, weight))

    def rolling(self, now_s: float, running: Iterable[Written] = ()) -> Pace:
        """The median pace of the last five minutes. `running`: what still writes, so that a long slow reply counts."""
        self._expire(now_s)
        paces = [pace for _, pace in self._rolling]
        there = (reply for reply in running if reply.began_s >= self._from_s)
        paces += [reply.tok_per_s for reply in there if reply.counts and not reply.cold_neighbour]
        return Pace(median(paces), len(paces)) if paces else Pace(None, 0)

    def forget_rolling(self, now_s: float) -> None:
        """The engine started anew, or another number of streams may run at once: what it was is no evidence of what it
        is."""
        self._rolling.clear()
        self._from_s = now_s

    def table(self) -> tuple[float | None, ...]:
        """ms per token with 1, 2, ... streams, rising; None where it was not measured. Empty without any."""
        measured: list[tuple[int, float, float]] = []
        for streams in sorted(self._by_streams):
            weight = sum(own for _, own in self._by_streams[streams])
            middle = weighted_median(self._by_streams[streams])
            if middle is not None and weight >= WEIGHT_MIN:
                measured.append((streams, middle, weight))
        if not measured:
            return ()
        rising = dict(zip((found[0] for found in measured), _rising(measured), strict=True))
        return tuple(rising.get(streams) for streams in range(1, measured[-1][0] + 1))

    def as_dict(self) -> dict[str, Any]:
        """The measurements by number of streams, to be kept."""
        return {"replies": {str(streams): [list(own) for own in kept] for streams, kept in self._by_streams.items()}}

    @classmethod
    def from_dict(cls, kept: Any) -> Paces:
        """Raises ValueError for what `as_dict` never gives."""
        rows = kept.get("replies") if isinstance(kept, dict) else None
        if not isinstance(rows, dict) or len(rows) > STREAMS_MAX + 1:
            raise ValueError("paces have no replies by number of streams, or too many")
        paces = cls()
        for streams, replies in rows.items():
            number = int(streams) if isinstance(streams, str) and streams.isdecimal() and len(streams) < 5 else 0
            if not (1 <= number <= STREAMS_MAX + 1 and isinstance(replies, list)):
                raise ValueError("paces are not by number of streams")
            paces._of(number).extend(_reply_of(reply) for reply in replies[-KEPT:])
        return paces

    def _of(self, streams: int) -> deque[tuple[float, float]]:
        return self._by_streams.setdefault(streams, deque(maxlen=KEPT))

    def _expire(self, now_s: float) -> None:
        while self._rolling and self._rolling[0][0] <= now_s - ROLLING_S:
            self._rolling.popleft()


def _rising(measured: list[tuple[int, float, float]]) -> list[float]:
    """The nearest values that never fall: neighbours that do are put together at their mean."""
    pools: list[tuple[float, float, int]] = []
    for _, value, weight in measured:
        pools.append((value, weight, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (one, one_weight, ones), (other, other_weight, others) = pools[-2:]
            weight = one_weight + other_weight
            pools[-2:] = [((one * one_weight + other * other_weight) / weight, weight, ones + others)]
    return [value for value, _, count in pools for _ in range(count)]


def _reply_of(reply: Any) -> tuple[float, float]:
    match reply:
        case [int() | float() as ms, int() | float() as weight] if 0 < ms <= _MS_MAX and 0 < weight <= 1:
            return float(ms), float(weight)
    raise ValueError("a reply of paces is not [ms per token, weight]")
