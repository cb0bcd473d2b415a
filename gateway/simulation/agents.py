"""Who sits at the pod: developers' sessions, their turns and pauses, from seeded random numbers. Pure.

Rules:
- Every agent has streams of random numbers of its own (seed, agent, purpose), so that a policy changes when a turn
  comes but never what is in it: all policies meet the same work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, log
from typing import Any

from numpy.random import default_rng

_BLOCK = 1600
"""Numbers drawn at once: more than most agents need in a day."""


@dataclass(frozen=True, slots=True)
class Developer:
    """How one works. `think_s`: the mean pause between runs, 0 = none; `turns`: the mean number of turns in a run;
    `gap_s`: the median from a reply to the next turn of its run; `reply_tokens`: the mean; `input_tokens`: new ones in
    each turn. A context starts with `context_tokens` to `context_spread_tokens` more; it is cut to `compact_to_tokens`
    when it reaches `compact_at_tokens`. Source: facts/simulation-model.md section 1."""

    think_s: float = 1320.0
    turns: float = 10.0
    gap_s: float = 3.0
    gap_sigma: float = 1.0
    reply_tokens: float = 400.0
    reply_sigma: float = 0.8
    input_tokens: int = 3500
    context_tokens: int = 20_000
    context_spread_tokens: int = 140_000
    compact_at_tokens: int = 160_000
    compact_to_tokens: int = 30_000
    source: str = "the study"

    @property
    def mean_gap_s(self) -> float:
        """Seconds from a reply to the next turn of its run."""
        return self.gap_s * exp(self.gap_sigma**2 / 2)


STUDY = Developer()


class Agent:
    """One session, kept all day. `context_tokens`, `prompt_tokens`, `reply_tokens`: of the turn that is next or under
    way, what it begins with, what the engine is sent, what it answers, at least 2. `compacted`: the context was cut
    since the engine last read it. `hog`: it never pauses to think."""

    __slots__ = (
        "_developer", "_gaps", "_lengths", "_log_reply", "_pauses", "_replies", "_run", "_turn", "_turns_left",
        "compacted", "context_tokens", "hog", "index", "prompt_tokens", "reply_tokens", "seat",
    )  # fmt: skip

    def __init__(self, seed: int, index: int, seat: str, developer: Developer = STUDY, *, hog: bool = False) -> None:
        self.index, self.seat, self.hog, self.compacted = index, seat, hog, False
        self._developer = developer
        replies, gaps, pauses, lengths, start = (default_rng([seed, index, purpose]) for purpose in range(5))
        self._replies, self._gaps = _Stream(replies.standard_normal), _Stream(gaps.standard_normal)
        self._pauses = _Stream(pauses.standard_exponential)
        self._lengths = _Stream(lambda count: lengths.geometric(1 / developer.turns, count))
        self._log_reply = log(developer.reply_tokens) - developer.reply_sigma**2 / 2
        self._turn, self._run = 0, 0
        self._turns_left: int = self._lengths[0]
        self._begin_turn(developer.context_tokens + int(developer.context_spread_tokens * start.random()))

    def first_pause_s(self) -> float:
        """Seconds from the beginning of the day to the first turn."""
        return self._think_s()

    def turn_done(self) -> tuple[float, bool]:
        """The turn has ended. Returns the seconds until the next one arrives, and whether that begins a run."""
        context_tokens = self.prompt_tokens + self.reply_tokens
        self.compacted = context_tokens >= self._developer.compact_at_tokens
        self._turn += 1
        self._begin_turn(self._developer.compact_to_tokens if self.compacted else context_tokens)
        self._turns_left -= 1
        if self._turns_left > 0:
            return self._gap_s(), False
        self._run += 1
        self._turns_left = self._lengths[self._run]
        return self._think_s(), True

    def _begin_turn(self, context_tokens: int) -> None:
        normal = self._replies[self._turn]
        self.context_tokens = context_tokens
        self.prompt_tokens = context_tokens + self._developer.input_tokens
        self.reply_tokens = max(2, round(exp(self._log_reply + self._developer.reply_sigma * normal)))

    def _gap_s(self) -> float:
        normal: float = self._gaps[self._turn]
        return self._developer.gap_s * exp(self._developer.gap_sigma * normal)

    def _think_s(self) -> float:
        if self._developer.think_s == 0:
            return self._gap_s()
        pause: float = self._pauses[self._run]
        return self._developer.think_s * pause


class _Stream:
    """One kind of an agent's random numbers, by their place."""

    __slots__ = ("_draw", "_drawn")

    def __init__(self, draw: Callable[[int], Any]) -> None:
        self._draw = draw
        self._drawn: list[Any] = draw(_BLOCK).tolist()

    def __getitem__(self, at: int) -> Any:
        while at >= len(self._drawn):
            self._drawn += self._draw(_BLOCK).tolist()
        return self._drawn[at]
