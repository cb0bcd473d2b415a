"""Tells the service manager what the box does: ready, status, watchdog, longer limits. Touches the notify socket.

Rules:
1. READY=1 when the gateway first answers its probe. The engine may load for many minutes then; STATUS= says so, and no
   limit of the unit runs meanwhile. The wait for the cards' memory is a part of the next start, not of a stop.
2. WATCHDOG=1 comes from the daemon's loop, so a loop that is blocked sends none. It also stops when the gateway's
   supervision has not taken a step for so many beats that they make `STUCK_S`: counted, not timed, so that a machine
   that slept is not taken for one that hangs. It never depends on the engine's health, nor on the gateway's: both are
   the daemon's to mend.
3. Before READY=1 and at a stop the limits of the unit are extended beat by beat, while there is reason to: for
   `START_LIMIT_S` at most, and at a stop for as long as drain and engine may take. A box that hangs still ends.
4. STATUS= is sent when it changes, `PAUSE_S` apart.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Protocol

from appliance.board import Board
from appliance.notify import Notify
from appliance.printable import printable
from appliance.units import count
from gateway.state import BoxState, EngineState, Phase

BEAT_S = 5.0
EXTEND_S = 30.0
START_LIMIT_S = 300.0
STUCK_S = 60.0
"""A probe and its pause take 6 s at most; see gatewayproc.py."""
PAUSE_S = 1.0
READY_AGAIN_S = 0.2
TITLE_MAX = 160


@dataclass(frozen=True, slots=True)
class Load:
    """What a gateway said at its last probe: streams that run, requests in line, the operator's mode, and which start
    of the engine answered a request to its end last; "" when it does not tell."""

    streams: int = 0
    waiting: int = 0
    mode: str = ""
    served: str = ""


class Gateway(Protocol):
    """What is asked of the gateway's supervision."""

    @property
    def answers(self) -> bool:
        """Whether the gateway answered its last probe."""
        ...

    @property
    def load(self) -> Load:
        """What it said then."""
        ...

    @property
    def pulse(self) -> int:
        """A number that grows with every step of the supervision."""
        ...

    async def answered(self) -> None:
        """Wait until a gateway answers."""
        ...


class Service:
    """One per daemon. `run()` until cancelled. `drain_s`: how long streams may go on at a stop; `stop_limit_s`: how
    long a whole stop may take."""

    def __init__(self, notify: Notify, board: Board, gateway: Gateway, drain_s: float, stop_limit_s: float) -> None:
        self._notify = notify
        self._board = board
        self._gateway = gateway
        self._drain_s = drain_s
        self._stop_limit_s = stop_limit_s
        self._ready = False
        self._stopping_s: float | None = None
        self._started_s = time.monotonic()
        self._said = ""
        self._pulse, self._still = -1, 0
        self._pause_s = BEAT_S if notify.watchdog_s is None else min(BEAT_S, notify.watchdog_s / 3)

    async def run(self) -> None:
        """Speak for the daemon."""
        if not self._notify.address:
            return
        self._board.listen(self._changed)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._say_ready())
            group.create_task(self._say_status())
            group.create_task(self._beat())

    def _changed(self, box: BoxState) -> None:
        """The word that cannot wait: from here on the unit's limit for a stop runs."""
        if box.stopping and self._stopping_s is None:
            self._stopping_s = time.monotonic()
            self._notify.stopping()
            self._notify.extend_timeout(EXTEND_S)
            self._tell()

    async def _say_ready(self) -> None:
        """Rule 1."""
        await self._gateway.answered()
        self._tell()
        while not self._notify.ready():  # noqa: ASYNC110 - a full socket tells nobody when it has room
            await asyncio.sleep(READY_AGAIN_S)
        self._ready = True

    async def _say_status(self) -> None:
        """Rule 4. What the gateway's probe brings changes no board, so it is looked at again and again."""
        while True:
            self._tell()
            await asyncio.sleep(PAUSE_S)

    async def _beat(self) -> None:
        while True:
            self.beat()
            await asyncio.sleep(self._pause_s)

    def beat(self) -> None:
        """Rules 2 and 3, once."""
        pulse = self._gateway.pulse
        self._still = 0 if pulse != self._pulse else self._still + 1
        self._pulse = pulse
        moving = self._stopping_s is not None or self._still * self._pause_s < STUCK_S
        if self._notify.watchdog_s is not None and moving:
            self._notify.watchdog()
        if self._may_take_longer(time.monotonic(), moving=moving):
            self._notify.extend_timeout(EXTEND_S)

    def _may_take_longer(self, now_s: float, *, moving: bool) -> bool:
        if self._stopping_s is not None:
            return now_s - self._stopping_s < self._stop_limit_s
        return not self._ready and moving and now_s - self._started_s < START_LIMIT_S

    def _tell(self) -> None:
        gateway = self._gateway
        said = sentence(self._board.state, gateway.load if gateway.answers else None, self._drain_s)
        if said != self._said and self._notify.status(said):
            self._said = said


def sentence(box: BoxState, load: Load | None, drain_s: float) -> str:
    """What the box does, for `systemctl status`. `load`: None while no gateway answers. Pure."""
    if box.stopping:
        if load is None:
            return "stopping: the engine is being ended"
        if not load.streams:
            return "stopping: no stream runs"
        return f"stopping: {count(load.streams, 'stream')} may end for {drain_s:g} s"
    engine = _engine(box.engine)
    if load is None:
        gone = f", the last one ended: {box.gateway.last_exit}" if box.gateway.last_exit else ""
        return f"no gateway answers yet{printable(gone, TITLE_MAX)}; {engine}"
    held = "" if load.mode in ("", "serving") else f"{printable(load.mode, 40)} by the operator; "
    if box.engine.phase is not Phase.READY:
        return f"{held}not serving: {engine}"
    line = f", {load.waiting} in line" if load.waiting else ""
    return f"{held}{count(load.streams, 'stream')} of {box.engine.profile.streams}{line}; {engine}"


def _engine(engine: EngineState) -> str:
    title = printable(engine.cause.title, TITLE_MAX).rstrip(".") if engine.cause is not None else "no cause is known"
    match engine.phase:
        case Phase.READY:
            return f"engine ready ({printable(engine.profile.name, 80)})"
        case Phase.REFUSED:
            return f"engine refused: {title}; see: moe-appliance status"
        case Phase.FAILED:
            return f"engine failed: {title}; after mending: moe-appliance restart"
        case Phase.NEEDS_REBOOT:
            return f"engine ended, and the box needs a reboot: {title}"
        case Phase.BACKOFF:
            return f"engine ended: {title}; it is started again within a minute"
        case Phase.OFF:
            return "engine off"
        case phase:
            part = f" {engine.progress:.0%}" if engine.progress is not None else ""
            part += f", ~{_rough(engine.left_s)} left" if engine.left_s is not None else ""
            step = f": {printable(engine.step, TITLE_MAX)}{part}" if engine.step and engine.step != phase else ""
            return f"engine {phase}{step}"


def _rough(left_s: float) -> str:
    """Seconds in steps of ten, then minutes: the line is sent when it changes."""
    return f"{max(10, round(left_s, -1)):.0f} s" if left_s < 120 else f"{left_s / 60:.0f} min"
