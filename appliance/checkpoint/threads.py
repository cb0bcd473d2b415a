"""Blocking work on files in threads, from asyncio: with progress, and never left behind. Touches threads."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from typing import TypeAlias, TypeVar

from appliance.errors import MoeError

T = TypeVar("T")
Report: TypeAlias = Callable[[int], None]
"""Takes how many bytes were done since the last call."""


class Stopped(Exception):
    """Ends work whose caller was cancelled."""


def _silent(_bytes: int) -> None:
    pass


async def in_thread(act: Callable[[], T]) -> T:
    """Run `act` in a thread, to its end also when this is cancelled: no file is closed under it."""
    return await reporting(lambda _report: act())


async def reporting(act: Callable[[Report], T], on_bytes: Report = _silent) -> T:
    """Run `act` in a thread; what it reports reaches `on_bytes` on the event loop.

    Cancelled, its next report raises Stopped, and this returns only when the thread is done with its files.
    """
    loop = asyncio.get_running_loop()
    stop = threading.Event()

    def report(count: int) -> None:
        if stop.is_set():
            raise Stopped
        loop.call_soon_threadsafe(on_bytes, count)

    task = asyncio.ensure_future(asyncio.to_thread(act, report))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        stop.set()
        with contextlib.suppress(Stopped, OSError, MoeError):
            await task
        raise


@contextlib.asynccontextmanager
async def together() -> AsyncIterator[asyncio.TaskGroup]:
    """A TaskGroup out of which the first error that we expect comes as itself; the other tasks are ended by then."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except ExceptionGroup as failed:
        raise next((error for error in failed.exceptions if isinstance(error, MoeError | OSError)), failed) from None
