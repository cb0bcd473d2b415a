"""How many developers a box can take, and how many boxes a team needs. Pure.

Rules:
- A developer is a coin that is up while one of his streams reads or writes. What counts is the chance that more than
  `streams` of them are up at once; what a box makes in a month says nothing about it.
- Probabilities are computed through logarithms and stay right for 10,000 developers.
- `rho` is how much the developers go up together: 0 = each on his own (binomial), else beta-binomial.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from math import ceil, exp, lgamma, log, log1p

from gateway.sizing.profile import Profile

STUDY_TOK_PER_S = 168.0
"""Output tokens a second of four streams together, reading included. Source: study.txt, third pod, agent turns."""
STUDY_PREFILL_TOK_PER_S = 6983.0
"""Input tokens read a second. Source: study.txt, a fresh prompt of 128,000 tokens takes 18.33 s."""
STUDY_STREAMS = 4
STUDY_FLOOR_TOK_PER_S = 40.0
POD_EUR_A_MONTH = 3.7306 * 730
"""Source: study.txt prints 3.73 EUR an hour, 2,723 EUR a month, and 1,847 EUR more than 20 subscriptions for two pods;
only a price from 3.7305 to 3.7308 an hour gives all three."""
SEAT_EUR_A_MONTH = 180.0
"""Source: study.txt, one subscription."""
PROMISE = 0.01
"""The chance that a stream more than fit is wanted, which a box is sized for. Source: study.txt, 19 seats."""
RELAXED = 0.05
CAUTIOUS_RHO = 0.02
"""Source: admission-and-bench.md section 2: a team that shares deadlines; 15 seats where independence gives 19."""
RHO_LEAST = 1e-6
DEVELOPERS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Pace:
    """What one box can do. `tok_per_s`: output of all `streams` together; `floor_tok_per_s`: the pace promised to one;
    `prefill_tok_per_s`: input tokens read."""

    streams: int = STUDY_STREAMS
    floor_tok_per_s: float = STUDY_FLOOR_TOK_PER_S
    tok_per_s: float = STUDY_TOK_PER_S
    prefill_tok_per_s: float = STUDY_PREFILL_TOK_PER_S


@dataclass(frozen=True, slots=True)
class Cost:
    """Boxes against subscriptions for `developers`, EUR a month."""

    developers: int
    pods: int
    pods_eur: float
    seats_eur: float

    @property
    def more_eur(self) -> float:
        """EUR a month above the subscriptions; below 0 = that much less."""
        return self.pods_eur - self.seats_eur

    @property
    def saved_share(self) -> float:
        """Of the subscriptions' price; below 0 = the boxes cost more."""
        return -self.more_eur / self.seats_eur


def duty_share(profile: Profile, pace: Pace, hours_a_day: float | None = None) -> float:
    """Chance that the developer has a stream at a moment of working time; the same work in `hours_a_day` when they are
    given. Above 1 when one stream at the floor cannot do it. Source: study.txt, "7.1%"."""
    generating_s = profile.generating_s(pace.floor_tok_per_s, pace.prefill_tok_per_s)
    return generating_s / profile.window_s * (profile.hours_a_day / (hours_a_day or profile.hours_a_day))


def seats_by_volume(profile: Profile, pace: Pace, use: float = 1.0) -> int:
    """Developers whose output a box makes when it writes for `use` of all time, to the nearest. Source: study.txt,
    262 and, at half use, 131."""
    return round(pace.tok_per_s * use * 7 * 86400 / profile.output_tokens)


def at_once(developers: int, duty: float, rho: float = 0.0) -> list[float]:
    """The chance that exactly k of the developers have a stream, for k = 0 .. developers.

    Source: the binomial, or with `rho` the beta-binomial distribution whose coins correlate by rho, 0 <= rho < 1.
    `duty`: 0..1; a rho below RHO_LEAST other than 0 would drown in rounding. Raises ValueError.
    """
    if not 0 <= duty <= 1:
        raise ValueError(f"duty {duty} is no share")
    if rho != 0 and not RHO_LEAST <= rho < 1:
        raise ValueError(f"rho {rho} must be 0, or from {RHO_LEAST} to below 1")
    if duty in (0.0, 1.0):
        mass = [0.0] * (developers + 1)
        mass[developers if duty else 0] = 1.0
        return mass
    if rho == 0:
        up, down = log(duty), log1p(-duty)
        logs = [_choose(developers, k) + k * up + (developers - k) * down for k in range(developers + 1)]
    else:
        a, b = duty * (1 - rho) / rho, (1 - duty) * (1 - rho) / rho
        start = _beta(a, b)
        logs = [_choose(developers, k) + _beta(k + a, developers - k + b) - start for k in range(developers + 1)]
    return [exp(value) for value in logs]


def chances_above(developers: int, duty: float, rho: float = 0.0) -> list[float]:
    """The chance that more than k want a stream, for k = 0 .. developers; summed from the small end."""
    tail = list(accumulate(reversed(at_once(developers, duty, rho)), initial=0.0))
    return [min(1.0, chance) for chance in reversed(tail[:-1])]


def chance_above(developers: int, duty: float, streams: int, rho: float = 0.0) -> float:
    """The chance that more than `streams` developers want one at once."""
    return chances_above(developers, duty, rho)[streams] if streams < developers else 0.0


def seats(duty: float, streams: int, chance: float = PROMISE, rho: float = 0.0) -> int:
    """The most developers for whom the chance of one stream too many is at most `chance`; DEVELOPERS_MAX at most."""
    fits, tight = streams, streams + 1
    while chance_above(tight, duty, streams, rho) <= chance:
        fits = tight
        if fits == DEVELOPERS_MAX:
            return fits
        tight = min(2 * tight, DEVELOPERS_MAX)
    while tight - fits > 1:
        middle = (fits + tight) // 2
        if chance_above(middle, duty, streams, rho) <= chance:
            fits = middle
        else:
            tight = middle
    return fits


def pods(developers: int, duty: float, streams: int, chance: float = PROMISE, rho: float = 0.0) -> int:
    """Boxes whose streams, taken together, are enough but for `chance`. It takes for granted that anybody may be moved
    to any box at any time, and so to a cold cache; see `pods_apart`. Source: study.txt, 100 -> 4, 250 -> 7."""
    above = chances_above(developers, duty, rho)
    return next(
        (n for n in range(1, developers // streams + 1) if above[n * streams] <= chance),
        max(1, ceil(developers / streams)),
    )


def pods_apart(developers: int, seats_each: int) -> int:
    """Boxes when each developer has one of his own and stays there."""
    return max(1, ceil(developers / seats_each))


def cost(developers: int, boxes: int, pod_eur: float = POD_EUR_A_MONTH, seat_eur: float = SEAT_EUR_A_MONTH) -> Cost:
    """What `boxes` cost against a subscription for each developer. Source: study.txt, 20 seats cost 1,847 EUR more."""
    return Cost(developers, boxes, boxes * pod_eur, developers * seat_eur)


def break_even(pod_eur: float = POD_EUR_A_MONTH, seat_eur: float = SEAT_EUR_A_MONTH) -> float:
    """Subscriptions that one box costs. Source: study.txt, 15.1."""
    return pod_eur / seat_eur


def _choose(n: int, k: int) -> float:
    return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)


def _beta(a: float, b: float) -> float:
    return lgamma(a) + lgamma(b) - lgamma(a + b)
