"""Looks after an engine that only computes for another box: it has no server that could be asked. Touches what `gone`
does.

Rules:
- It is well once its log has said all that it must, and as long as what it helps is there.
- What it helps may go while it still starts: nothing will come of that start either.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from gateway.state import Cause


@dataclass(slots=True)
class Part:
    """One run's. `gone`: waits until what it helps has gone, and says so. `spawned`: there is a process. `ok` is called
    once `joined` is set, which whoever reads the log does; `lost` with the cause."""

    gone: Callable[[], Awaitable[Cause]]
    spawned: asyncio.Event
    ok: Callable[[], None]
    lost: Callable[[Cause], None]
    joined: asyncio.Event = field(default_factory=asyncio.Event)
    healthy: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Watch until what it helps has gone."""
        await self.spawned.wait()
        async with asyncio.TaskGroup() as group:
            joining = group.create_task(self._join())
            cause = await self.gone()
            joining.cancel()
        self.lost(cause)

    async def _join(self) -> None:
        await self.joined.wait()
        self.healthy.set()
        self.ok()
