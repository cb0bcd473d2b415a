"""Decide when a serving engine is asked for a token of our own, and when it hangs. Pure.

An engine answers its health probe while its core hangs, and its metrics say then that nothing runs. So:
1. Busy: the gateway has streams, or the engine says that it runs or waits for something.
2. Movement: a counter of tokens changed. It clears every suspicion. Prompts are counted when they have been read, not
   while: `hang_s` must be longer than the longest legal prefill.
3. Suspicion: busy and nothing moved, for `hang_s` in all. Idle time in between neither counts nor clears it: a client
   whose stream was cut comes back, and a hung engine must not look new then.
4. A suspicion asks for one token. An answer clears it: the gateway may have a stream whose client reads slowly while
   the engine has long written its end. No answer: it hangs.
5. Idle for `IDLE_S`: one token is asked for as well; no answer twice in a row: it hangs. What somebody sent meanwhile
   makes the question void: it may have waited behind that. (What the engine says to run then is our own question.)
6. A counter that a look cannot read is as it was: it shows no movement, and the other one is believed.
7. Time is counted in looks, each for `LOOK_MAX_S` at most, so that a daemon that stood still suspects nobody.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from appliance.engine.adapter import MetricNames
from appliance.engine.probe_forms import counter
from gateway.state import Cause

IDLE_S = 60.0
MISSES_MAX = 2
LOOK_MAX_S = 30.0
"""Three looks of health.py."""
HANG_MIN_S = 60.0
PREFILLS = 2.0
"""`hang_s` in longest prefills, where their time is known."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What an engine counts: tokens written and read since its start, None = not known; requests that run and wait
    now."""

    written: float | None
    read: float | None
    running: float
    waiting: float


@dataclass(frozen=True, slots=True)
class Limits:
    """`hang_s`: see rule 3; 0 = nothing is suspected. `canary_s`: how long one token may take; 0 = none is asked for,
    and rule 4 is decided without."""

    hang_s: float
    canary_s: float


@dataclass(frozen=True, slots=True)
class Watch:
    """What was seen of an engine. `streams`: the gateway's, at the last look; `quiet_s`: busy and unmoved, in all;
    `idle_s`: since it was busy or answered; `misses`: of rule 5, in a row."""

    counts: Counts | None = None
    streams: int = 0
    quiet_s: float = 0.0
    idle_s: float = 0.0
    misses: int = 0

    @property
    def busy(self) -> bool:
        """Rule 1."""
        counts = self.counts
        return self.streams > 0 or (counts is not None and counts.running + counts.waiting > 0)


class Act(Enum):
    """What to do now."""

    WAIT = "wait"
    ASK = "ask for a token"
    HUNG = "it hangs"


def counts_of(metrics: str, names: MetricNames) -> Counts | None:
    """The four figures in a text of Prometheus; None when neither counter of tokens can be read."""
    written, read = counter(metrics, names.written), counter(metrics, names.read)
    if written is None and read is None:
        return None
    return Counts(written, read, counter(metrics, names.running) or 0.0, counter(metrics, names.waiting) or 0.0)


def hang_limit_s(declared_s: float, longest_prefill_s: float | None) -> float:
    """How long nothing may move, seconds. `declared_s`: where the box's own reading speed is not known; 0 = never."""
    if declared_s <= 0:
        return 0.0
    return max(HANG_MIN_S, declared_s if longest_prefill_s is None else PREFILLS * longest_prefill_s)


def looked(watch: Watch, counts: Counts | None, streams: int, elapsed_s: float, *, counted: bool = True) -> Watch:
    """After a look `elapsed_s` after the last one. `counts` None: it did not say. `counted` False: this engine has no
    such counters, so that nothing is ever suspected of it."""
    now = replace(watch, counts=_known(watch.counts, counts), streams=streams)
    elapsed_s = min(elapsed_s, LOOK_MAX_S)
    if _moved(watch.counts, now.counts):
        return replace(now, quiet_s=0.0, idle_s=0.0, misses=0)
    if now.busy:
        return replace(now, quiet_s=watch.quiet_s + elapsed_s if counted else 0.0, idle_s=0.0)
    return replace(now, idle_s=watch.idle_s + elapsed_s)


def act(watch: Watch, limits: Limits) -> Act:
    """What to do after a look."""
    if limits.hang_s and watch.quiet_s >= limits.hang_s:
        return Act.ASK if limits.canary_s else Act.HUNG
    if not limits.canary_s or watch.busy:
        return Act.WAIT
    return Act.ASK if watch.misses or watch.idle_s >= IDLE_S else Act.WAIT


def answered(watch: Watch) -> Watch:
    """The token came."""
    return replace(watch, quiet_s=0.0, idle_s=0.0, misses=0)


def unanswered(watch: Watch, after: Watch, limits: Limits) -> tuple[Watch, Act]:
    """It did not come in time. `watch`: when it was asked for; `after`: a look since."""
    suspected = bool(limits.hang_s) and watch.quiet_s >= limits.hang_s
    if _moved(watch.counts, after.counts) or (after.streams > 0 and not suspected):
        return after, Act.WAIT
    missed = replace(after, misses=after.misses + 1)
    return missed, Act.HUNG if suspected or missed.misses >= MISSES_MAX else Act.WAIT


def hung(watch: Watch, limits: Limits) -> Cause:
    """`engine.hung`, with what was seen."""
    if limits.hang_s and watch.quiet_s >= limits.hang_s:
        work = f"{watch.streams} streams run" if watch.streams != 1 else "a stream runs"
        title = f"The engine hangs: it moved no token for {watch.quiet_s:.0f} s although {work}."
        if not watch.streams:
            title = f"The engine hangs: it moved no token for {watch.quiet_s:.0f} s although it has work."
    else:
        title = f"The engine hangs: idle, it did not write one token in {limits.canary_s:g} s, twice in a row."
    return Cause(id="engine.hung", title=title, remedy="moe-appliance status (shows its last log lines)")


def _known(before: Counts | None, now: Counts | None) -> Counts | None:
    """What is known after a look: rule 6."""
    if before is None or now is None:
        return now or before
    written = before.written if now.written is None else now.written
    return replace(now, written=written, read=before.read if now.read is None else now.read)


def _moved(before: Counts | None, now: Counts | None) -> bool:
    return before is not None and now is not None and (before.written, before.read) != (now.written, now.read)
