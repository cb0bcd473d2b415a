"""For tests: an event loop whose clock jumps to the next timer, so that hours of traffic take as long as their work.

Touches sockets and threads as any loop does, and no clock. Rules:
- Time stands still while anything is under way: a socket with something to read or to write, bytes that the kernel has
  not handed to their reader, a job in a thread. Then it jumps to the next timer.
- What is under way must be inside this process: nobody outside gets the time to answer.
- Where nothing is due and nothing is under way nobody would ever wake: StuckError.
- Only what asks `loop.time()` sees this clock; `time.monotonic()` and `time.time()` go on as ever.
"""

from __future__ import annotations

import asyncio
import fcntl
import selectors
import struct
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Executor
from typing import Any, TypeVar

T = TypeVar("T")
START_S = 1000.0
"""The clock's first time: above 0, as on a machine that has been up for a while."""
LOOK_S = 0.001
STUCK_S = 20.0
"""Real seconds that something may be under way without anything happening."""
_SIOCOUTQNSD = 0x894B
"""How many bytes of a TCP socket were written and not sent. Source: linux/sockios.h."""


class StuckError(RuntimeError):
    """Nobody would ever wake."""


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """The standard library's loop on a virtual clock."""

    def __init__(self) -> None:
        self._now_s = START_S
        self.jobs = 0
        super().__init__(_Selector(self))

    def time(self) -> float:
        """Virtual seconds."""
        return self._now_s

    def jump(self, seconds: float) -> None:
        """Let time pass at once."""
        self._now_s += seconds

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """As ever; time stands still until it is done."""
        future: asyncio.Future[T] = super().run_in_executor(executor, func, *args)
        self.jobs += 1
        future.add_done_callback(self._job_done)
        return future

    async def shutdown_default_executor(self) -> None:
        """As ever, in a thread of its own."""
        self.jobs += 1
        try:
            await super().shutdown_default_executor()
        finally:
            self.jobs -= 1

    def _job_done(self, _: asyncio.Future[Any]) -> None:
        self.jobs -= 1


class _Selector(selectors.BaseSelector):
    """Waits in real time for what is under way only, and lets the loop's time jump otherwise."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        self._loop = loop
        self._real = selectors.DefaultSelector()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if events := self._real.select(0):
            return events
        if timeout == 0:
            return []
        give_up_s = time.monotonic() + STUCK_S
        while self._loop.jobs or self._under_way():
            if events := self._real.select(LOOK_S):
                return events
            if time.monotonic() > give_up_s:
                raise StuckError(f"something was under way for {STUCK_S:g} s and never came")
        if timeout is None:
            raise StuckError("everybody waits, and nothing is due")
        self._loop.jump(timeout)
        return []

    def _under_way(self) -> bool:
        return any(key.events & selectors.EVENT_WRITE or _unsent(key.fd) for key in self._real.get_map().values())

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.modify(fileobj, events, data)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._real.get_map()

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.get_key(fileobj)

    def close(self) -> None:
        self._real.close()


def _unsent(fd: int) -> int:
    """Bytes that the kernel still keeps from the reader; 0 for what is no connected TCP socket."""
    try:
        unsent: int = struct.unpack("i", fcntl.ioctl(fd, _SIOCOUTQNSD, b"\0\0\0\0"))[0]
    except OSError:
        return 0
    return unsent


def run(main: Coroutine[Any, Any, T]) -> T:
    """As `asyncio.run`, in virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
