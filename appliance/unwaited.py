"""Blocking work in a thread that nobody waits for at the end of the process. Touches threads.

asyncio.to_thread would have the end of the program wait for a driver, a file system or a server that does not answer.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


async def unwaited(ask: Callable[[], T]) -> T:
    """What `ask` returns or raises. Cancelled, this returns at once, and the thread goes on to its own end."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def settle(act: Callable[[Any], None], value: object) -> None:
        if not answer.done():
            act(value)

    def run() -> None:
        try:
            act, value = answer.set_result, ask()
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            act, value = answer.set_exception, error  # type: ignore[assignment]
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, act, value)

    threading.Thread(target=run, daemon=True).start()
    return await answer
