"""How long a turn waits when a known number of developers share the streams of one box. Pure.

The queue M/M/c//N: each of N developers thinks for a while, wants one turn, waits for one of c streams, and thinks
again. Source: D. Gross, C. Harris, "Fundamentals of Queueing Theory", finite-source queues; who arrives finds what N-1
developers make of the box (the arrival theorem).

Rule: it knows nothing of cold caches. A wait far above what it says is a sign of those, not of bad luck.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from math import exp, lgamma, log

_STEPS = 60


@dataclass(frozen=True, slots=True)
class Wait:
    """How long turns wait for a stream, seconds, those that do not wait among them. `chance`: that one waits at all."""

    developers: int
    chance: float
    mean_s: float
    p95_s: float
    p99_s: float


def wait(developers: int, duty: float, streams: int, turn_s: float) -> Wait:
    """The waits of `developers`, who would each have a stream for the share `duty` of the time if they never waited
    (0 <= duty < 1), in turns of `turn_s` seconds."""
    if not 0 <= duty < 1 or turn_s <= 0 or developers < 1:
        raise ValueError(f"no queue of {developers} developers with duty {duty} and turns of {turn_s} s")
    if duty == 0 or developers <= streams:
        return Wait(developers, 0.0, 0.0, 0.0, 0.0)
    found = _found_in_box(developers - 1, duty / (1 - duty), streams)
    longer = list(reversed(list(accumulate(reversed(found[streams:])))))
    one_s = turn_s / streams
    mean_s = sum(share * (ahead + 1) * one_s for ahead, share in enumerate(found[streams:]))
    p95_s, p99_s = (_exceeded(longer, one_s, chance) for chance in (0.05, 0.01))
    return Wait(developers, min(1.0, longer[0]), mean_s, p95_s, p99_s)


def turn_s(reply_tokens: float, generating_s: float, output_tokens: float) -> float:
    """Seconds that a turn takes when `output_tokens` take `generating_s`, reading included."""
    return generating_s * reply_tokens / output_tokens


def _found_in_box(others: int, ratio: float, streams: int) -> list[float]:
    """The chance that n of `others` are in the box, running or in line. `ratio`: a turn's time over a thought's."""
    logs = []
    for n in range(others + 1):
        value = lgamma(others + 1) - lgamma(n + 1) - lgamma(others - n + 1) + n * log(ratio)
        if n > streams:
            value += lgamma(n + 1) - lgamma(streams + 1) - (n - streams) * log(streams)
        logs.append(value)
    top = max(logs)
    weights = [exp(value - top) for value in logs]
    whole = sum(weights)
    return [weight / whole for weight in weights]


def _exceeded(longer: list[float], one_s: float, chance: float) -> float:
    """The wait that only the share `chance` of turns exceeds. `longer[j]`: the chance of j or more in line ahead;
    `one_s`: mean time between two turns that end while all streams are busy."""
    if longer[0] <= chance:
        return 0.0
    low, high = 0.0, one_s * (len(longer) + 1) * 20
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if _waits_longer(longer, middle / one_s) > chance:
            low = middle
        else:
            high = middle
    return high


def _waits_longer(longer: list[float], ends: float) -> float:
    """The chance of a wait in which `ends` turns end on average: j end, Poisson, and j or more were ahead."""
    if ends == 0:
        return longer[0]
    scale = log(ends)
    return sum(exp(-ends + j * scale - lgamma(j + 1)) * more for j, more in enumerate(longer))
