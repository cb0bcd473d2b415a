"""What one start of an engine shows of itself, from its log and its processes: which step it is at, how long it still
takes, whether it stands still, whether the lines came that must come. Pure: times are arguments, of one clock.

Rules:
- `line` for each line of its log, `look` every few seconds, until `healthy`; `ready` at its end.
- A step that stands still and a hang in the first collective operation are looked for until it is healthy; then the
  warm-up has limits of its own.
- Lines that are required are looked for all the time: the log's ring may have lost them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from appliance.engine import boot_times, stall, step_limits
from appliance.engine.adapter import Required, Step
from appliance.engine.boot_times import Boot, Course, Estimate
from appliance.engine.failures.observed import collective_hang
from appliance.engine.stall import Silence, Usage
from appliance.engine.step_limits import Life
from gateway.state import BoxState, Cause

WARMING = "warming up"
"""The step of a boot between its first healthy answer and READY."""


@dataclass(slots=True)
class StartWatch:
    """One start, from its spawn at `began_s`. `step_of`: reads a line; `last`: the last good start of the same, () =
    there was none; `before`: what each card held before it, bytes by index, empty = not known."""

    began_s: float
    step_of: Callable[[str], Step | None]
    required: tuple[Required, ...] = ()
    last: Boot = ()
    before: Mapping[int, int] = field(default_factory=dict)
    _course: Course = field(init=False)
    _life: Life = field(default_factory=Life)
    _silence: Silence = field(default_factory=Silence)
    _usage: Usage = field(default_factory=Usage)
    _looked_s: float = field(init=False)
    _missing: list[Required] = field(init=False)
    _healthy: bool = False
    _share: float = 0.0

    def __post_init__(self) -> None:
        self._course = boot_times.began(self.began_s)
        self._looked_s = self.began_s
        self._missing = list(self.required)

    def line(self, text: str, now_s: float) -> Step | None:
        """Take a line of the log; the step that it announces."""
        if self._missing:
            self._missing = [wanted for wanted in self._missing if not wanted.pattern.search(text)]
        if self._healthy:
            return None
        self._silence = Silence()
        step = self.step_of(text)
        if step is not None:
            self._life = step_limits.announced(self._life, step)
            self._course = boot_times.stepped(self._course, step.name, step.progress, now_s)
        return step

    def look(self, usage: Usage, cards: Mapping[int, int] | None, now_s: float) -> Cause | None:
        """What its processes have used by now, and what each card holds, bytes by index, None = not known. Why the
        start must be ended, or None."""
        elapsed_s, self._looked_s = now_s - self._looked_s, now_s
        before, self._usage = self._usage, usage
        if self._healthy:
            return None
        read, cpu_s = usage.read_bytes - before.read_bytes, usage.cpu_s - before.cpu_s
        self._life = step_limits.looked(self._life, elapsed_s, read, None if cards is None else sum(cards.values()))
        self._silence = stall.looked(self._silence, elapsed_s, cpu_s, read)
        grown = self._grown(cards)
        if stall.hangs(self._silence, grown):
            silent_s, busy_s = self._silence.silent_s, self._silence.cpu_s
            return collective_hang(tuple((grown or {}).values()), 100 * busy_s / silent_s, silent_s, self._course.name)
        return step_limits.timeout(self._life, first=not self.last)

    def _grown(self, cards: Mapping[int, int] | None) -> Mapping[int, int] | None:
        if cards is None or not self.before:
            return None
        return {index: max(0, held - self.before[index]) for index, held in cards.items() if index in self.before}

    def healthy(self, now_s: float) -> None:
        """It answers; what follows is the warm-up."""
        self._healthy = True
        self._course = boot_times.stepped(self._course, WARMING, None, now_s)

    def ready(self, now_s: float) -> Boot:
        """What its steps took, now that it serves."""
        return boot_times.whole(self._course, now_s)

    def estimate(self, now_s: float) -> Estimate | None:
        """How long it still takes; None = nobody knows. What a share has once been it stays: a step that takes longer
        than the last time makes those to come longer, too, and nobody expects a start to go backwards."""
        found = boot_times.estimate(self.last, self._course, now_s) if self.last else None
        if found is None:
            return None
        self._share = max(self._share, found.share)
        return replace(found, share=self._share)

    @property
    def missing(self) -> Required | None:
        """A line that must have come and has not."""
        return next(iter(self._missing), None)


def watched(box: BoxState) -> Mapping[int, int] | None:
    """`used`, as the cards are watched all the time; None also when they do not answer."""
    gauges = box.gauges
    if gauges is None or gauges.error:
        return None
    return used((gpu.index, gpu.memory_used_bytes) for gpu in gauges.gpus)


def used(gauges: Iterable[tuple[int, int | None]]) -> Mapping[int, int] | None:
    """What each card holds, by index; None = one of them does not say."""
    held = dict(gauges)
    known = {index: size for index, size in held.items() if size is not None}
    return known if known and len(known) == len(held) else None
