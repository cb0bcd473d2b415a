"""Keeps one child that watches the cards, and tells the board what it says. Touches that child, the clock, the loop.

Rules:
- This process never loads NVML: a driver that hangs or crashes takes nothing with it.
- No line for SILENT_S: the child is killed and started again after a pause that grows. One that SIGKILL does not end
  hangs in the driver: it is waited for, and no second one is started beside it.
- A box without a driver has no gauges at all (None), which is no error; it is looked at again now and then.
- Names are the driver's words: they are made printable here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pydantic import TypeAdapter, ValidationError

from appliance.box.gauges_child import NO_DRIVER
from appliance.printable import printable
from gateway.state import GaugesState, GpuGauge

PERIOD_S = 5.0
"""Each look is a new BoxState for everybody who waits for one."""
SILENT_S = 15.0
PAUSE_MIN_S = 5.0
PAUSE_MAX_S = 60.0
DYING_S = 1.0
_LINE_MAX = 1 << 20
_CARDS = TypeAdapter(tuple[GpuGauge, ...])


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds: between two looks, until silence is an error, and the pauses before another child."""

    period_s: float = PERIOD_S
    silent_s: float = SILENT_S
    pause_min_s: float = PAUSE_MIN_S
    pause_max_s: float = PAUSE_MAX_S


class Gauges:
    """One per daemon. `tell` is called on the event loop with every new state, None = there are no cards."""

    def __init__(
        self,
        tell: Callable[[GaugesState | None], None],
        environ: Mapping[str, str] | None = None,
        pace: Pace | None = None,
    ) -> None:
        self._tell = tell
        self._environ = environ
        self._pace = pace or Pace()
        self._last: GaugesState | None = None
        self._answered = False

    async def run(self) -> None:
        """Watch for ever; the child ends with the task."""
        pause_s = self._pace.pause_min_s
        while True:
            self._answered = False
            why = await self._watch()
            if why:
                self._fail(why)
            elif self._last is not None:
                self._last = None
                self._tell(None)
            pause_s = self._pace.pause_min_s if self._answered else min(2 * pause_s, self._pace.pause_max_s)
            await asyncio.sleep(self._pace.pause_max_s if not why else pause_s)

    def _say(self, state: GaugesState) -> None:
        self._last = state
        self._tell(state)

    def _fail(self, why: str) -> None:
        """The last figures stay, marked."""
        self._say((self._last or GaugesState(at_s=0.0)).model_copy(update={"error": why}))

    async def _watch(self) -> str:
        """One child to its end. Returns why it ended, "" = there is no driver."""
        argv = [sys.executable, "-I", "-m", "appliance.box.gauges_child", f"{self._pace.period_s:g}"]
        try:
            child = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env=dict(os.environ if self._environ is None else self._environ),
                start_new_session=True,
                limit=_LINE_MAX,
            )
        except OSError as error:
            return printable(f"{sys.executable} cannot be started: {error}")
        try:
            why = await self._read(child)
        except asyncio.CancelledError:
            await _end(child)
            raise
        if not await _end(child):
            self._fail(f"{why}; process {child.pid} hangs in the driver")
            await child.wait()
        if child.returncode == NO_DRIVER:
            return ""
        return why or f"the child that watches the cards ended with {child.returncode}"

    async def _read(self, child: asyncio.subprocess.Process) -> str:
        """Its lines until it ends or is silent. Returns what was wrong, "" = it ended."""
        assert child.stdout is not None
        while True:
            try:
                async with asyncio.timeout(self._pace.silent_s):
                    line = await child.stdout.readline()
            except TimeoutError:
                return f"the driver has not answered for {self._pace.silent_s:g} s"
            except ValueError:
                return "the child that watches the cards wrote nonsense"
            if not line:
                await _gone(child)  # a signal of ours would hide its exit code, which says why
                return ""
            cards = _cards(line)
            if cards is None:
                return "the child that watches the cards wrote nonsense"
            self._answered = True
            self._say(GaugesState(at_s=time.time(), gpus=cards))


def _cards(line: bytes) -> tuple[GpuGauge, ...] | None:
    """The cards of one line, None when it is none of ours."""
    try:
        cards = _CARDS.validate_python(json.loads(line))
    except (ValueError, ValidationError):
        return None
    return tuple(card.model_copy(update={"name": printable(card.name)}) for card in cards)


async def _end(child: asyncio.subprocess.Process) -> bool:
    """SIGKILL to its group. Returns whether it is gone."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    return await _gone(child)


async def _gone(child: asyncio.subprocess.Process) -> bool:
    """Whether it ends within DYING_S."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DYING_S):
            await child.wait()
    return child.returncode is not None
