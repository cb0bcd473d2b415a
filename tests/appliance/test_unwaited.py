"""Blocking work that the end of the process does not wait for."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time

import pytest

from appliance.unwaited import unwaited


@pytest.mark.anyio
async def test_what_it_returns_and_raises_comes_back() -> None:
    assert await unwaited(lambda: threading.current_thread().daemon)
    with pytest.raises(ZeroDivisionError):
        await unwaited(lambda: 1 // 0)


@pytest.mark.anyio
async def test_cancelled_it_is_not_waited_for() -> None:
    go_on = threading.Event()
    asked = asyncio.create_task(unwaited(lambda: go_on.wait(20)))
    await asyncio.sleep(0)
    asked.cancel()
    started = time.monotonic()
    await asyncio.wait((asked,))
    assert asked.cancelled()
    assert time.monotonic() - started < 1
    go_on.set()


def test_the_process_ends_while_the_work_hangs() -> None:
    code = (
        "import asyncio, time; from appliance.unwaited import unwaited\n"
        "async def main():\n"
        "    task = asyncio.create_task(unwaited(lambda: time.sleep(600)))\n"
        "    await asyncio.sleep(0.1)\n"
        "    task.cancel()\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stderr) == (0, "")
