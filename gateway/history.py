"""The last hour of a gateway in steps of five seconds: streams, pace, cached share, cold reading. Pure.

Rules:
- Bounded: STEPS steps, whatever the time between two looks. A time without a look (the process was stopped) is a
  gap of unknown steps, not a line between its ends.
- A step keeps what an operator must not miss: the most streams, the slowest pace.
- What a look saw counts until the next one, for GAP_S at most. So seconds are as good as there are looks: about one.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.snapshot import HistoryView

STEP_S = 5.0
STEPS = 720
GAP_S = 5.0


@dataclass(frozen=True, slots=True)
class Look:
    """How the gateway is at one moment. `prompt_tokens`, `cached_tokens`: of all requests since the start. `reading`: a
    cold prompt is read; `closed`: the gate is closed for one; `waiting`: requests in line, by WaitKind."""

    streams: int = 0
    slowest_tok_per_s: float | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    reading: bool = False
    closed: bool = False
    waiting: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Step:
    number: int
    streams: int = 0
    slowest: float | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    looks: int = 0
    reading: int = 0


class History:
    """Fed by `add` about once a second, read as a HistoryView. Times are seconds of a clock that never goes back."""

    def __init__(self) -> None:
        self._steps: deque[_Step] = deque(maxlen=STEPS)
        self._before = Look()
        self._before_s: float | None = None
        self._reading_s = 0.0
        self._closed_s = 0.0
        self._waited_s: defaultdict[str, float] = defaultdict(float)

    def add(self, now_s: float, look: Look) -> None:
        """One look at `now_s`."""
        step = self._at(int(now_s // STEP_S))
        step.streams = max(step.streams, look.streams)
        pace = look.slowest_tok_per_s
        if pace is not None:
            step.slowest = pace if step.slowest is None else min(step.slowest, pace)
        step.prompt_tokens += look.prompt_tokens - self._before.prompt_tokens
        step.cached_tokens += look.cached_tokens - self._before.cached_tokens
        step.looks += 1
        step.reading += look.reading
        self._add_up(now_s)
        self._before, self._before_s = look, now_s

    def view(self, now_s: float, wall_s: float) -> HistoryView | None:
        """The steps up to `now_s`, which is `wall_s` on the wall clock; None before the first look."""
        if not self._steps:
            return None
        last, current = self._steps[-1].number, int(now_s // STEP_S)
        if current > last + 1:  # a step that has just begun is no gap
            last = current
        first = max(self._steps[0].number, last - STEPS + 1)
        by_number = {step.number: step for step in self._steps}
        steps = [by_number.get(number) for number in range(first, last + 1)]
        return HistoryView(
            step_s=STEP_S,
            until_s=wall_s,
            streams=tuple(None if step is None else step.streams for step in steps),
            slowest_tok_per_s=tuple(None if step is None else step.slowest for step in steps),
            cached_share=tuple(None if step is None else _share(step) for step in steps),
            reading_share=tuple(None if step is None else step.reading / step.looks for step in steps),
            reading_s=self._reading_s,
            closed_s=self._closed_s,
            waited_s=dict(self._waited_s),
        )

    def _add_up(self, now_s: float) -> None:
        """What the look before this one saw has lasted until now."""
        before, before_s = self._before, self._before_s
        if before_s is None:
            return
        lasted_s = min(GAP_S, max(0.0, now_s - before_s))
        self._reading_s += before.reading * lasted_s
        self._closed_s += before.closed * lasted_s
        for kind, requests in before.waiting.items():
            self._waited_s[kind] += requests * lasted_s

    def _at(self, number: int) -> _Step:
        if not self._steps or self._steps[-1].number < number:
            self._steps.append(_Step(number))
        return self._steps[-1]


def _share(step: _Step) -> float | None:
    return step.cached_tokens / step.prompt_tokens if step.prompt_tokens > 0 else None
