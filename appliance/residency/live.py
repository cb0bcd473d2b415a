"""One rank's part in following traffic: counts read, swaps agreed on, and rows exchanged, at the top of each step.

Touches what it is given, the clock, and starts threads. Rules:
1. Everything goes by the number of steps and of counted ones, which are the same on all ranks, and what to swap is
   decided by one rank and told to the others at such a step: all exchange the same rows before the same step.
2. The card is never waited for, and the decision neither: counts are looked at some steps after they were copied, in a
   thread that rests between layers, and what that decides is taken when the ranks meet next.
3. Swaps are carried out a few a step, and nothing is decided before they are: a decision rests on where rows stand.
4. Who decides may fail: then residency stays as it is, and a line says why. An exchange may not: the rows would be
   lost, and the engine ends.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from threading import Thread
from typing import TYPE_CHECKING, Protocol

from .errors import SAYS
from .following import MIB, Orders

if TYPE_CHECKING:  # they need torch
    from .counters import Counters, Reading
    from .exchange import Exchange, Rows
    from .placing import Placed

ROUND_STEPS = 128
"""Counted ones, from one reading to the next."""
LOOK_STEPS = 8
"""From copying counts to looking at them: more steps than are ever in flight."""
MEET_STEPS = 16
"""From one chance to agree to the next."""
STEP_BYTES = 64 * MIB
"""Exchanged before one step at most, or one swap if that is more: 1.3 ms of a link of 50 GB/s."""
STEP_SWAPS = 8
"""Nor more than these: each is some dozens of calls of torch."""
IDLE_S = 1.0
"""A longer time between two steps is not work."""

Move = tuple[int, int, int]
"""Layer, hot expert, cold expert: logical ids."""


def half_round_bytes(row_bytes: int) -> int:
    """What half of a round's steps exchange, rows being that large."""
    return ROUND_STEPS // 2 * min(STEP_BYTES, STEP_SWAPS * 2 * row_bytes)


class Decides(Protocol):
    """What one of the ranks makes of the counts."""

    def decide(self, reading: Reading, then: Orders, now: Orders, seconds: float) -> Sequence[Move]:
        """`then`: the orders of rows when the counts were copied; `now`: where they stay until what is decided was
        carried out; `seconds`: of work, since the counts before."""


class Live:
    """`placed`: all layers that are counted; `rows`: of those whose rows may be exchanged. `agree`: what the deciding
    rank gives it all ranks get. `exchanged` is told the layer. `decider`: None on the others."""

    def __init__(
        self,
        placed: Mapping[int, Placed],
        rows: Mapping[int, Rows],
        counters: Counters,
        exchange: Exchange,
        agree: Callable[[Sequence[Move]], Sequence[Move]],
        exchanged: Callable[[int], None],
        decider: Decides | None,
    ) -> None:
        self._placed, self._rows, self._counters, self._exchange = placed, rows, counters, exchange
        self._agree, self._exchanged, self._decider = agree, exchanged, decider
        self._read: tuple[Reading, Orders, float] | None = None
        self._decision: _Decision | None = None
        self._left: deque[Move] = deque()
        self._counted = 0
        self._worked_s, self._stepped_at = 0.0, time.monotonic()

    def step(self, is_counted: bool) -> None:
        """A step begins. Raises RuntimeError: an exchange failed, and rows are lost."""
        now = time.monotonic()
        self._worked_s += min(IDLE_S, now - self._stepped_at)
        self._stepped_at = now
        if is_counted:
            self._counted += 1
            if self._counted % MEET_STEPS == 0:
                self._left.extend(self._agree(self._decided()))
            if self._counted % ROUND_STEPS == 0:
                self._copy_counts()
            elif self._counted % ROUND_STEPS >= LOOK_STEPS and not self._left:
                self._look()
        self._exchange_some()

    def _decided(self) -> Sequence[Move]:
        if self._decision is None or self._decision.is_alive():
            return ()
        decision, self._decision = self._decision, None
        if decision.moves is None:  # 4
            sys.stderr.write(f"{SAYS}: residency no longer follows traffic: {decision.why}\n")
            self._decider = None
        return decision.moves or ()

    def _copy_counts(self) -> None:
        if self._decider is None:
            self._counters.read()  # or they would overflow
        elif self._decision is None and self._read is None:
            self._read = (self._counters.read(), self._orders(), self._worked_s)
            self._worked_s = 0.0

    def _look(self) -> None:  # 2, 3
        if self._read is not None and self._decider is not None:
            (reading, then, seconds), self._read = self._read, None
            decide, now = self._decider.decide, self._orders()
            self._decision = _Decision(lambda: decide(reading, then, now, seconds))
            self._decision.begin()

    def _exchange_some(self) -> None:
        moved = 0
        for _ in range(min(STEP_SWAPS, len(self._left))):
            layer, hot, cold = self._left[0]
            row_bytes = self._rows[layer].row_bytes
            if moved and moved + 2 * row_bytes > STEP_BYTES:
                return
            moved += 2 * row_bytes
            self._left.popleft()
            placed = self._placed[layer]
            places = placed.places
            self._exchanged(layer)
            placed.rows = self._exchange.swap(self._rows[layer], placed.rows, places[hot], places[cold])

    def _orders(self) -> Orders:
        return {layer: placed.rows for layer, placed in self._placed.items()}


class _Decision(Thread):
    """A decision on its way, in a thread that an engine which ends does not wait for. `moves`: None = it has failed,
    and `why` says how."""

    def __init__(self, decide: Callable[[], Sequence[Move]]) -> None:
        super().__init__(name=SAYS, daemon=True)
        self._decide = decide
        self.moves: Sequence[Move] | None = None
        self.why = ""

    def begin(self) -> None:
        """A thread that cannot begin is a decision that has failed."""
        try:
            self.start()
        except RuntimeError as error:
            self.why = f"{type(error).__name__}: {error}"

    def run(self) -> None:
        """Decide."""
        try:
            self.moves = self._decide()
        finally:
            if error := sys.exc_info()[1]:  # Python says the rest of it
                self.why = f"{type(error).__name__}: {error}"
