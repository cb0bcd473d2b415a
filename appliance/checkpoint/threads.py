"""Blocking work on files in threads, from asyncio: with progress, and never left behind. Touches threads."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from functools import partial
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


async def abandonable(act: Callable[[], T]) -> T:
    """Run `act`, which touches no file, in a thread that is left behind when this is cancelled: a server that does not
    answer must not keep anybody who stopped the program."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(set_it: Callable[[], None]) -> None:
        if not done.done():
            set_it()

    def run() -> None:
        try:
            result = act()
        except BaseException as error:  # noqa: BLE001
            settled = partial(done.set_exception, error)
        else:
            settled = partial(done.set_result, result)
        with contextlib.suppress(RuntimeError):  # the loop is gone
            loop.call_soon_threadsafe(settle, settled)

    threading.Thread(target=run, daemon=True).start()
    return await done


@contextlib.asynccontextmanager
async def together() -> AsyncIterator[asyncio.TaskGroup]:
    """A TaskGroup out of which the first error that we expect comes as itself; the other tasks are ended by then."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except ExceptionGroup as failed:
        raise next((error for error in failed.exceptions if isinstance(error, MoeError | OSError)), failed) from None
