"""The last hour of a gateway in steps of five seconds: streams, slowest pace, cached share. Pure.

Rules:
- Bounded: STEPS steps, whatever the time between two looks. A time without a look (the process was stopped) is a
  gap of unknown steps, not a line between its ends.
- A step keeps what an operator must not miss: the most streams, the slowest pace.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from gateway.snapshot import HistoryView

STEP_S = 5.0
STEPS = 720


@dataclass(slots=True)
class _Step:
    number: int
    streams: int = 0
    slowest: float | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0


class History:
    """Fed by `add` about once a second, read as a HistoryView. Times are seconds of a clock that never goes back."""

    def __init__(self) -> None:
        self._steps: deque[_Step] = deque(maxlen=STEPS)
        self._before = (0, 0)

    def add(
        self, now_s: float, streams: int, slowest_tok_per_s: float | None, prompt_tokens: int, cached_tokens: int
    ) -> None:
        """One look at `now_s`. `prompt_tokens`, `cached_tokens`: of all requests since the start."""
        step = self._at(int(now_s // STEP_S))
        step.streams = max(step.streams, streams)
        if slowest_tok_per_s is not None:
            step.slowest = slowest_tok_per_s if step.slowest is None else min(step.slowest, slowest_tok_per_s)
        step.prompt_tokens += prompt_tokens - self._before[0]
        step.cached_tokens += cached_tokens - self._before[1]
        self._before = (prompt_tokens, cached_tokens)

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
        )

    def _at(self, number: int) -> _Step:
        if not self._steps or self._steps[-1].number < number:
            self._steps.append(_Step(number))
        return self._steps[-1]


def _share(step: _Step) -> float | None:
    return step.cached_tokens / step.prompt_tokens if step.prompt_tokens > 0 else None
