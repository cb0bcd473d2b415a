"""Lowers the cap while streams are slower than the floor, where that helps, and says so where it does not. Pure.

Times are whole windows (`window_s`, five minutes); the pace is the median of streams without a cold neighbour.

1. Off with a window or a floor of 0: the cap is the validated one.
2. Another start of the engine, another validated cap, floor or window: all begins anew, from the validated cap.
3. Fewer than REPLIES_MIN replies are no evidence. Whatever was under way is looked at again once there is some.
4. A window without a pause under the floor lowers the cap by one. With a cap of one it is a finding.
5. One window later that lowering is judged, by replies that began since (paces.py). A pace that grew by GAIN_MIN keeps
   it. Else it is put back and becomes a finding, and the next lowering takes twice as long a time under the floor, up
   to PATIENCE_MAX windows.
6. A lowered cap is raised by one when, for RAISE_WINDOWS, the pace has been so high that with what the lowering gained
   taken off it would still be MARGIN above the floor. That is no more than what the stream less had for itself: a box
   that went quiet is faster too. A raise that is lowered again doubles the time of the next.
7. One window at the floor or above ends the finding; FORGIVE_WINDOWS with the whole cap make both times what they were.
8. There is a whole window between two changes. The cap is never under one and never above the validated one.

Source: issue 6, item 2 (5 min, one at a time, 10 %, the finding, hysteresis).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gateway.learning.paces import Pace
from gateway.seats import counted
from gateway.state import Finding, Severity

REPLIES_MIN = 5
GAIN_MIN = 1.1
MARGIN = 1.05
RAISE_WINDOWS = 2
FORGIVE_WINDOWS = 12
PATIENCE_MAX = 64
"""Windows: five hours."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What the guard works with. `streams`: the validated cap, the plan's or a smaller setting; `window_s`: the setting
    `floor_guard_s`, 0 = off."""

    start_id: str
    floor_tok_per_s: float
    streams: int
    window_s: float


class Why(StrEnum):
    """What changed the cap."""

    SLOW = "slow"
    NO_HELP = "no_help"
    FASTER = "faster"
    ANEW = "anew"


@dataclass(frozen=True, slots=True)
class CapChange:
    """From now on `cap` streams may run at once. `text`: the sentence for the list of events."""

    before: int
    cap: int
    why: Why
    text: str


@dataclass(slots=True)
class _Lowering:
    """One lowering that is in force: the pace under which it was done, and how much faster it made the streams, None =
    not judged yet."""

    pace: float
    gain: float | None = None


class FloorGuard:
    """One per gateway; `handle` about once a second. `cap`: streams that may run at once. Times are seconds of one
    monotonic clock."""

    def __init__(self, terms: Terms) -> None:
        self._begin(terms)

    def _begin(self, terms: Terms) -> None:
        self._terms = terms
        self.cap = max(1, terms.streams)
        self._lowered: list[_Lowering] = []
        self._changed_s: float | None = None
        self._slow_s: float | None = None
        self._fast_s: float | None = None
        self._held_s: float | None = None
        self._lower_windows = 1
        self._raise_windows = RAISE_WINDOWS
        self._raised = False
        self._finding: Finding | None = None

    def handle(self, now_s: float, pace: Pace, terms: Terms) -> CapChange | None:
        """What follows from the pace as it is now; None when the cap stays."""
        if terms != self._terms:
            return self._anew(terms)
        if terms.window_s <= 0 or terms.floor_tok_per_s <= 0:  # 1
            return None
        if pace.tok_per_s is None or pace.replies < REPLIES_MIN:  # 3
            self._slow_s = self._fast_s = self._held_s = None
            return None
        self._note(now_s, pace.tok_per_s)
        if self._changed_s is not None and now_s - self._changed_s < terms.window_s:  # 8
            return None
        if self._lowered and self._lowered[-1].gain is None:
            return self._judged(now_s, pace)
        if self._lasts(self._slow_s, now_s, self._lower_windows):
            return self._slow(now_s, pace)
        if self._lowered and self._lasts(self._fast_s, now_s, self._raise_windows):
            return self._raise(now_s, pace.tok_per_s)
        return None

    def findings(self) -> tuple[Finding, ...]:
        """What an operator must look into."""
        return (self._finding,) if self._finding is not None else ()

    def _anew(self, terms: Terms) -> CapChange | None:
        """Rule 2."""
        before, lowered = self.cap, bool(self._lowered)
        self._begin(terms)
        if not lowered or before == self.cap:
            return None
        text = f"The floor guard begins anew: {_streams(self.cap)} may run at once again."
        return CapChange(before, self.cap, Why.ANEW, text)

    def _note(self, now_s: float, pace: float) -> None:
        """How long the pace has been where it is; rule 7."""
        slow = pace < self._terms.floor_tok_per_s
        self._slow_s = (self._slow_s if self._slow_s is not None else now_s) if slow else None
        self._held_s = None if slow else (self._held_s if self._held_s is not None else now_s)
        if self._lasts(self._held_s, now_s, 1):
            self._finding = None
        if not self._lowered and self._lasts(self._held_s, now_s, FORGIVE_WINDOWS):
            self._lower_windows, self._raise_windows, self._raised = 1, RAISE_WINDOWS, False
        gain = self._lowered[-1].gain if self._lowered else None
        fast = gain is not None and pace / gain >= MARGIN * self._terms.floor_tok_per_s
        self._fast_s = (self._fast_s if self._fast_s is not None else now_s) if fast else None

    def _lasts(self, since_s: float | None, now_s: float, windows: int) -> bool:
        return since_s is not None and now_s - since_s >= windows * self._terms.window_s

    def _slow(self, now_s: float, pace: Pace) -> CapChange | None:
        """Rule 4."""
        assert pace.tok_per_s is not None
        if self.cap == 1:
            self._finding = self._cannot(f"{_told(pace)} with one stream at a time")
            return None
        if self._raised:
            self._raise_windows = min(2 * self._raise_windows, PATIENCE_MAX)
        self._lowered.append(_Lowering(pace.tok_per_s))
        long = f"for {self._lower_windows * self._terms.window_s / 60:g} min"
        return self._change(
            now_s, self.cap - 1, Why.SLOW, f"Streams ran at {pace.tok_per_s:.1f} tok/s {long}, {self._under()}"
        )

    def _judged(self, now_s: float, pace: Pace) -> CapChange | None:
        """Rule 5."""
        assert pace.tok_per_s is not None
        lowering = self._lowered[-1]
        if pace.tok_per_s >= GAIN_MIN * lowering.pace:
            lowering.gain = min(pace.tok_per_s / lowering.pace, (self.cap + 1) / self.cap)
            self._lower_windows = 1
            return None
        self._lowered.pop()
        self._lower_windows = min(2 * self._lower_windows, PATIENCE_MAX)
        fewer = f"{lowering.pace:.1f} tok/s with {self.cap + 1} at once, {pace.tok_per_s:.1f} with {self.cap}"
        self._finding = self._cannot(fewer)
        return self._change(now_s, self.cap + 1, Why.NO_HELP, f"Fewer streams did not make them faster ({fewer})")

    def _raise(self, now_s: float, pace: float) -> CapChange:
        """Rule 6."""
        self._lowered.pop()
        change = self._change(now_s, self.cap + 1, Why.FASTER, f"Streams run at {pace:.1f} tok/s again")
        self._raised = True
        return change

    def _change(self, now_s: float, cap: int, why: Why, because: str) -> CapChange:
        before, self.cap = self.cap, min(max(1, cap), max(1, self._terms.streams))
        self._changed_s = now_s
        self._slow_s = self._fast_s = self._held_s = None
        self._raised = False
        return CapChange(before, self.cap, why, f"{because}: {_streams(self.cap)} may run at once from now on.")

    def _under(self) -> str:
        return f"under the floor of {self._terms.floor_tok_per_s:g}"

    def _cannot(self, observed: str) -> Finding:
        return Finding(
            id="engine.pace",
            severity=Severity.WARN,
            title="Streams are slower than the floor, and fewer at once are not faster",
            observed=observed,
            required=f"{self._terms.floor_tok_per_s:g} tok/s for each stream: the cards are slowed down, or the plan "
            "keeps too few experts on them",
            remedy="nvidia-smi -q -d PERFORMANCE\nmoe-appliance preflight",
        )


def _streams(count: int) -> str:
    return counted(count, "stream")


def _told(pace: Pace) -> str:
    return f"a median of {pace.tok_per_s:.1f} tok/s over {counted(pace.replies, 'answer')}"
