"""One rank's part in following traffic: counts read, swaps agreed on, and rows exchanged, at the top of each step.

Touches what it is given, the clock, and starts a thread. Rules:
1. Everything goes by the number of counted steps, which is the same on all ranks, and what to swap is decided by one
   rank and told to the others at such a step: all exchange the same rows before the same step.
2. Nothing waits: counts are looked at some steps after they were copied, in a thread, and what that decides is taken
   when the ranks meet next.
3. Swaps are carried out a few a step, and nothing is decided before they are: a decision rests on where rows stand.
4. Who decides may fail: then residency stays as it is, and a line says so. An exchange may not: the rows would be lost,
   and the engine ends.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

from .errors import SAYS
from .following import ROUND_STEPS, STEP_BYTES, STEP_SWAPS, Orders

if TYPE_CHECKING:  # they need torch
    from .counters import Counters, Reading
    from .exchange import Exchange, Rows
    from .placing import Placed

LOOK_STEPS = 8
"""From copying counts to looking at them: more steps than are ever in flight."""
MEET_STEPS = 16
"""From one chance to agree to the next."""

Move = tuple[int, int, int]
"""Layer, hot expert, cold expert: logical ids."""


class Decides(Protocol):
    """What one of the ranks makes of the counts."""

    def decide(self, reading: Reading, then: Orders, now: Orders, seconds: float) -> Sequence[Move]:
        """`then`: the orders of rows when the counts were copied; `now`: where they stay until what is decided was
        carried out; `seconds`: since the counts before."""


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
        self._thread = ThreadPoolExecutor(1, "moe-residency")
        self._decision: Future[Sequence[Move]] | None = None
        self._read: tuple[Reading, Orders, float] | None = None
        self._read_at = time.monotonic()
        self._left: deque[Move] = deque()
        self._step = 0

    def step(self, is_counted: bool) -> None:
        """A step begins. Raises RuntimeError: an exchange failed, and rows are lost."""
        if is_counted:
            self._step += 1
            if self._step % MEET_STEPS == 0:
                self._left.extend(self._agree(self._decided()))
            if self._step % ROUND_STEPS == 0:
                self._copy_counts()
            elif self._step % ROUND_STEPS >= LOOK_STEPS and not self._left:
                self._look()
        self._exchange_some()

    def _decided(self) -> Sequence[Move]:
        if self._decision is None or not self._decision.done():
            return ()
        decision, self._decision = self._decision, None
        if (failed := decision.exception()) is not None:  # 4
            sys.stderr.write(f"{SAYS}: residency no longer follows traffic: {type(failed).__name__}: {failed}\n")
            self._decider = None
            return ()
        return decision.result()

    def _copy_counts(self) -> None:
        if self._decider is None:
            self._counters.read()  # or they would overflow
        elif self._decision is None and self._read is None:
            now = time.monotonic()
            self._read = (self._counters.read(), self._orders(), now - self._read_at)
            self._read_at = now

    def _look(self) -> None:  # 2, 3
        if self._read is not None and self._decider is not None:
            (reading, then, seconds), self._read = self._read, None
            self._decision = self._thread.submit(self._decider.decide, reading, then, self._orders(), seconds)

    def _exchange_some(self) -> None:
        room = STEP_BYTES
        for _ in range(min(STEP_SWAPS, len(self._left))):
            layer, hot, cold = self._left[0]
            room -= 2 * self._rows[layer].row_bytes
            if room < 0 and 2 * self._rows[layer].row_bytes + room < STEP_BYTES:
                return
            self._left.popleft()
            placed = self._placed[layer]
            places = placed.places
            self._exchanged(layer)
            placed.rows = self._exchange.swap(self._rows[layer], placed.rows, places[hot], places[cold])

    def _orders(self) -> Orders:
        return {layer: placed.rows for layer, placed in self._placed.items()}

    def close(self) -> None:
        """Nothing more is decided."""
        self._thread.shutdown(wait=False, cancel_futures=True)
