"""Holds the box's state: everyone writes to it, long polls wait on it. Touches the event loop's timer.

Rules:
- Every change that is shown raises `revision` by one; a reader that has revision N waits for more than N.
- Changes of progress and log lines are gathered for `GATHER_S`; all others are shown at once.
- What follows from a change (its events) is shown with it, in the same revision.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from gateway.state import BoxState

GATHER_S = 0.2


class Board:
    """One per daemon. `listen(callback)`: told of every shown state, on the event loop. `follow(before, after)`: the
    state to show instead of `after`."""

    def __init__(self, first: BoxState, follow: Callable[[BoxState, BoxState], BoxState] | None = None) -> None:
        self._follow = follow
        self._shown = first
        self._next = first
        self._timer: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()
        self._listeners: list[Callable[[BoxState], None]] = []

    @property
    def state(self) -> BoxState:
        """The state as shown."""
        return self._shown

    def listen(self, callback: Callable[[BoxState], None]) -> None:
        """Call `callback` with the present state and with every later one."""
        self._listeners.append(callback)
        callback(self._shown)

    def update(self, *, at_once: bool = True, **changes: Any) -> None:
        """Change fields of the state."""
        self._next = self._next.model_copy(update=changes)
        if at_once:
            self._show()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(GATHER_S, self._show)

    async def newer_than(self, revision: int, wait_s: float) -> BoxState:
        """The state once its revision is above `revision` (any, when it is unknown here), or after `wait_s`."""
        try:
            async with asyncio.timeout(wait_s):
                while self._shown.revision == revision:
                    await self._changed.wait()
        except TimeoutError:
            pass
        return self._shown

    def _show(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        changed = self._next if self._follow is None else self._follow(self._shown, self._next)
        self._shown = self._next = changed.model_copy(update={"revision": self._shown.revision + 1})
        self._changed.set()
        self._changed = asyncio.Event()
        for callback in self._listeners:
            callback(self._shown)
