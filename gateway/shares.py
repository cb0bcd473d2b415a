"""Who has had more than a fair share of the engine lately. Pure.

A seat's use is its output tokens and a tenth of the prompt tokens that were read for it, each fading with a time
constant of DECAY_S. A seat is over its share when its use is above `factor` times the mean of those with work.
Source: facts/admission-search.md section 2, step 1.
"""

from __future__ import annotations

from collections.abc import Collection
from math import exp

DECAY_S = 300.0
PROMPT_WEIGHT = 0.1
"""What a prompt token that had to be read counts, an output token being 1."""
MEAN_TOKENS = 1000.0
"""The mean counts as this at least: a few replies are no more than a share, whoever else has had none yet."""
_REBASED_AT = 50.0


class Shares:
    """Use by seat. Instead of fading what is there, what is added grows with time: only ratios are asked for."""

    def __init__(self) -> None:
        self._use: dict[str, float] = {}
        self._epoch_s = 0.0

    def add(self, seat: str, tokens: float, now_s: float) -> None:
        """`seat` has had `tokens`, output or weighted prompt."""
        if tokens <= 0:
            return
        age = (now_s - self._epoch_s) / DECAY_S
        if age > _REBASED_AT:
            self._rebase(age, now_s)
            age = 0.0
        self._use[seat] = self._use.get(seat, 0.0) + tokens * exp(age)

    def over(self, seats: Collection[str], factor: float, now_s: float) -> frozenset[str]:
        """Those of `seats`, which are all that have work, that are over their share. `factor` 0 = nobody is."""
        if not factor or len(seats) < 2:
            return frozenset()
        faded = exp((self._epoch_s - now_s) / DECAY_S)
        use = {seat: faded * self._use.get(seat, 0.0) for seat in seats}
        bound = factor * max(sum(use.values()) / len(use), MEAN_TOKENS)
        return frozenset(seat for seat in use if use[seat] > bound)

    def _rebase(self, age: float, now_s: float) -> None:
        """Everything as seen from now; what has faded to nothing is forgotten."""
        faded = ((seat, use * exp(-age)) for seat, use in self._use.items())
        self._use = {seat: use for seat, use in faded if use >= 1e-6}
        self._epoch_s = now_s
