"""From one pair to another in a running box: streams end first, then the engine is restarted. Touches the clock.

Rules:
- While `wanted` is set, nothing new is sent to the engine (EngineState.leaving), whatever the operator's mode is.
- The wait ends with the last stream, with `drain_s`, with `hasten`, or with the engine, whichever is first.
- A later wish takes the place of an earlier one. A stop of the box forgets it: nothing was begun yet.
- `wanted` stays set until the supervisor has handled the restart (`begun`), so that nobody takes the engine that ends
  for the one that was wanted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from appliance.engine.in_use import InUse
from gateway.state import Pair

LOOK_S = 0.25


@dataclass(slots=True)
class Switch:
    """One per supervisor. `serving`: whether the engine is READY; `serves_in`: its environment; `changed`: told when
    `wanted` is set; `restart`: asks the lifecycle to end the engine and start what is in use."""

    in_use: InUse
    serving: Callable[[], bool]
    serves_in: Callable[[], str]
    changed: Callable[[], None]
    restart: Callable[[], None]
    wanted: Pair | None = None
    _leaving: asyncio.Task[None] | None = None
    _ends_s: float = 0.0

    def begin(
        self, group: asyncio.TaskGroup, pair: Pair, *, prove: bool, drained: Callable[[], bool], drain_s: float
    ) -> None:
        """Put `pair` on trial as soon as `drained` says so, after `drain_s` seconds at the latest."""
        self.cancel()
        self.wanted = pair
        self._ends_s = asyncio.get_running_loop().time() + drain_s
        self._leaving = group.create_task(self._leave(pair, prove, drained))
        self.changed()

    def hasten(self) -> Pair | None:
        """Wait for streams no longer; the pair that this brings about, None = none is wanted."""
        self._ends_s = 0.0
        return self.wanted

    def begun(self) -> None:
        """A restart begins: the one for `wanted`, when the wait for it is over."""
        if self._leaving is None:
            self.wanted = None

    def cancel(self) -> None:
        """Forget what is wanted."""
        if self._leaving is not None:
            self._leaving.cancel()
        self._leaving, self.wanted = None, None

    async def _leave(self, pair: Pair, prove: bool, drained: Callable[[], bool]) -> None:
        now_s = asyncio.get_running_loop().time
        while self.serving() and not drained() and now_s() < self._ends_s:  # noqa: ASYNC110 - told by a probe's figures
            await asyncio.sleep(LOOK_S)
        self._leaving = None
        self.in_use.try_(pair, prove=prove, serves_in=self.serves_in())
        self.restart()
