"""From one pair to another in a running box: streams end first, then the engine is restarted. Touches the clock.

Rules:
- While `wanted` is set, nothing new is sent to the engine (EngineState.leaving), whatever the operator's mode is.
- The wait ends with the last stream, with `drain_s`, or with the engine, whichever is first.
- A later wish takes the place of an earlier one. A stop of the box forgets it: nothing was begun yet.
- `wanted` stays set until the restart has begun, so that nobody takes the engine that ends for the one that was wanted.
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
    `wanted` changes; `restart`: ends the engine and starts what is in use."""

    in_use: InUse
    serving: Callable[[], bool]
    serves_in: Callable[[], str]
    changed: Callable[[], None]
    restart: Callable[[], None]
    wanted: Pair | None = None
    _leaving: asyncio.Task[None] | None = None

    def begin(
        self, group: asyncio.TaskGroup, pair: Pair, *, prove: bool, drained: Callable[[], bool], drain_s: float
    ) -> None:
        """Put `pair` on trial as soon as `drained` says so, after `drain_s` seconds at the latest."""
        self.cancel()
        self.wanted = pair
        self._leaving = group.create_task(self._leave(pair, prove, drained, drain_s))
        self.changed()

    def cancel(self) -> None:
        """Forget what is wanted."""
        if self._leaving is not None:
            self._leaving.cancel()
        self._leaving, self.wanted = None, None

    async def _leave(self, pair: Pair, prove: bool, drained: Callable[[], bool], drain_s: float) -> None:
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + drain_s
        while self.serving() and not drained() and loop.time() < ends_s:  # noqa: ASYNC110 - told by a probe's figures
            await asyncio.sleep(LOOK_S)
        self.in_use.try_(pair, prove=prove, serves_in=self.serves_in())
        self.restart()
        await asyncio.sleep(LOOK_S)
        self._leaving, self.wanted = None, None
        self.changed()
