"""Waits until what a former engine held is free, before another is started. Touches the driver (a child under a
deadline, in a thread), /proc, and engine.cards in the state folder.

Rules:
- The figures from before a start, and whose processes it had, are on disk as long as they matter: a daemon that was
  killed or stopped leaves them to the next one, which waits as well; a service manager takes the runtime folder away at
  each stop. After a reboot they mean nothing.
- Boxes without a driver are not asked for cards; what outlived SIGKILL is waited for there too.
- It ends nobody's process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from appliance.box import nvml
from appliance.box.child import OneChild
from appliance.box.gpu import GpuReport
from appliance.engine import vram
from appliance.engine.failures import VramHolder
from appliance.engine.kernel_log import KernelLog
from appliance.engine.tree import start_of
from appliance.files import read_regular, write_private
from appliance.printable import printable
from appliance.unwaited import unwaited
from gateway.logs import Log
from gateway.state import Cause

NAME = "engine.cards"
PERIOD_S = 2.0
DEADLINE_S = 10.0
"""Of one look: the driver answers nobody while it frees hundreds of GiB of pinned memory."""
_LIMIT_BYTES = 1 << 20
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_DRIVER = ("proc/driver/nvidia", "dev/nvidiactl", "dev/dxg")


@dataclass(frozen=True, slots=True)
class _Run:
    """A run that may hold something. `cards`: before its start; `pids`: its processes and their start times; `stuck`:
    those that outlived SIGKILL; `ended_s`: when it ended, monotonic, None = nobody saw it."""

    cards: vram.Before = field(default_factory=dict)
    pids: Mapping[int, int] = field(default_factory=dict)
    stuck: Mapping[int, int] = field(default_factory=dict)
    ended_s: float | None = None


@dataclass(slots=True)
class CardsWait:
    """One per supervisor. For a run: `before_start`, `note`, `ended`; before the next, `free`. `uses_cards` False:
    the engine works without any."""

    state_dir: Path
    log: Log
    uses_cards: bool = True
    root: Path = Path("/")
    gather: Callable[[Path], GpuReport] = field(default_factory=lambda: _gather(OneChild()))
    now: Callable[[], float] = time.monotonic
    _run: _Run | None = field(init=False)
    _kernel: KernelLog | None = None

    def __post_init__(self) -> None:
        self._run = _read(self._file)

    @property
    def _file(self) -> Path:
        return self.state_dir / NAME

    @property
    def used_before(self) -> Mapping[int, int]:
        """What each card held before the present start, bytes by index; empty = not known."""
        return {} if self._run is None else {card.index: card.used_bytes for card in self._run.cards.values()}

    @property
    def holders(self) -> tuple[VramHolder, ...]:
        """Who held memory of the cards before the present start and lives still, who holds most first."""
        held: Counter[int] = Counter()
        for card in () if self._run is None else self._run.cards.values():
            held.update(card.held)
        alive = ((pid, bytes) for pid, bytes in held.most_common() if start_of(pid) is not None)
        return tuple(VramHolder(pid, _command(pid), bytes) for pid, bytes in alive)

    async def before_start(self) -> None:
        """Look at the cards, to have something to compare with. Raises nothing."""
        cards: vram.Before = {}
        if self._has_driver:
            cards, why = vram.before(await unwaited(lambda: self.gather(self.root)))
            if why:
                self.log.warning("engine.cards", waits=False, why=printable(why))
        self._run = _Run(cards)
        self._keep()
        self._close_kernel()
        self._kernel = KernelLog.opened(self.root)

    def note(self, pids: Mapping[int, int], *, kept: bool) -> None:
        """The run's processes, with their start times. `kept`: on disk as well; while it loads they change often."""
        if self._run is not None and self._run.pids != pids:
            self._run = replace(self._run, pids=dict(pids))
            if kept:
                self._keep()

    def ended(self, stuck: Mapping[int, int]) -> None:
        """The run is over; `stuck`: processes of it that outlived SIGKILL, with their start times."""
        if self._run is not None:
            self._run = replace(self._run, stuck=dict(stuck), ended_s=self.now())
            self._keep()

    async def kernel_lines(self) -> tuple[str, ...] | None:
        """What the kernel said of cards and memory since the start; None = its log cannot be read."""
        return () if self._kernel is None else await unwaited(self._kernel.lines)

    async def free(self, progress: Callable[[str, float | None], None]) -> Cause | None:
        """Wait for what the last run held. None = the next may start; else why it must not."""
        run = self._run
        if run is None:
            return None
        ended_s = self.now() if run.ended_s is None else run.ended_s
        self._run = run = replace(run, ended_s=ended_s)
        while True:
            seen = await unwaited(lambda: self._look(run)) if run.cards else vram.Look()
            stuck = [self._named(pid) for pid, start in run.stuck.items() if start_of(pid) == start]
            late = self.now() - ended_s >= vram.LIMIT_S
            match vram.decide(seen, stuck, self.now() - ended_s, await self.kernel_lines() if late else ()):
                case vram.Go(strangers=strangers):
                    for holder in strangers:
                        who = {"pid": holder.pid, "command": holder.command, "bytes": holder.bytes}
                        self.log.warning("engine.cards", waits=False, why="a process that is not ours", **who)
                    self._forget()
                    return None
                case vram.Held(cause=cause):
                    self._keep()
                    return cause
                case vram.Wait(step=step):
                    progress(step, None)
                    await asyncio.sleep(PERIOD_S)

    @property
    def _has_driver(self) -> bool:
        return self.uses_cards and any((self.root / name).exists() for name in _DRIVER)

    def _look(self, run: _Run) -> vram.Look:
        report = self.gather(self.root)
        ours = frozenset(pid for pid, start in (*run.pids.items(), *run.stuck.items()) if start_of(pid) == start)
        seen = {process.pid for gpu in report.gpus for process in gpu.processes}
        return vram.look(run.cards, report, ours, frozenset(pid for pid in seen if start_of(pid) is not None))

    def _named(self, pid: int) -> str:
        return f"process {pid} ({command})" if (command := _command(pid)) else f"process {pid}"

    def _keep(self) -> None:
        run = self._run or _Run()
        with contextlib.suppress(OSError):  # it is for a daemon that may never come
            if run.cards or run.stuck:
                write_private(self._file, _written(run))
            else:
                self._file.unlink(missing_ok=True)

    def _forget(self) -> None:
        self._run = None
        self._close_kernel()
        with contextlib.suppress(OSError):
            self._file.unlink(missing_ok=True)

    def _close_kernel(self) -> None:
        if self._kernel is not None:
            self._kernel.close()
        self._kernel = None


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return printable(Path(f"/proc/{pid}/comm").read_text(errors="replace").strip())
    return ""


def _gather(child: OneChild) -> Callable[[Path], GpuReport]:
    return lambda root: nvml.gather(root, DEADLINE_S, child=child, with_topo=False)


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def _written(run: _Run) -> bytes:
    cards = {uuid: [card.index, card.used_bytes, [*card.held.items()]] for uuid, card in run.cards.items()}
    kept = {"boot_id": _boot_id(), "cards": cards, "pids": [*run.pids.items()], "stuck": [*run.stuck.items()]}
    return json.dumps(kept | {"ended_s": run.ended_s}).encode()


def _read(file: Path) -> _Run | None:
    """The run that a former daemon left; None = there is none of this boot."""
    try:
        kept = json.loads(read_regular(file, _LIMIT_BYTES))
        if kept["boot_id"] != _boot_id():
            return None
        cards = {str(uuid): _card(*fields) for uuid, fields in kept["cards"].items()}
        ended_s = None if kept["ended_s"] is None else float(kept["ended_s"])
        return _Run(cards, _pairs(kept["pids"]), _pairs(kept["stuck"]), ended_s)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _card(index: Any, used_bytes: Any, held: Any) -> vram.Card:
    return vram.Card(int(index), int(used_bytes), _pairs(held))


def _pairs(items: Any) -> dict[int, int]:
    return {int(key): int(value) for key, value in items}
