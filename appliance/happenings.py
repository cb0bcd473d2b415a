"""Tells what happened to the box as events: from what changed between two of its states.

`happened` is pure. `Happenings` touches the wall clock and the system's random numbers.

Rules:
- Kinds are those of gateway/events.py; the gateway keeps these events for months, by their ids.
- What is being tried again and again is told once an hour: an engine that cannot start says so every few minutes.
- Notes (INFO findings) are none: they are facts of the box, and shown where it is described.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from appliance.gatewayproc import HUNG, REPLACED
from appliance.printable import printable
from gateway.state import BoxState, EngineState, Event, Finding, Phase, Severity

KEPT = 100
REPEAT_S = 3600.0
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Told:
    """An event before it has its id and its time."""

    kind: str
    severity: Severity
    text: str


@dataclass(slots=True)
class Happenings:
    """One per daemon. `add(before, after)` is the board's `follow`."""

    now: Callable[[], float] = time.time
    _boot: str = field(default_factory=lambda: _boot_id())
    _count: int = 0

    def began(self, box: BoxState) -> BoxState:
        """The first state, with the event that says so."""
        return self._with(box, (Told("box.started", Severity.INFO, f"moe-appliance {box.version} was started"),))

    def add(self, before: BoxState, after: BoxState) -> BoxState:
        """`after` with the events of what changed, the oldest dropped."""
        now_s = self.now()
        return self._with(after, tuple(told for told in happened(before, after) if not _repeats(after, told, now_s)))

    def _with(self, box: BoxState, news: tuple[Told, ...]) -> BoxState:
        if not news:
            return box
        made = tuple(self._event(told) for told in news)
        return box.model_copy(update={"events": (*box.events, *made)[-KEPT:]})

    def _event(self, told: Told) -> Event:
        self._count += 1
        id = f"{self._boot}-{self._count}-{secrets.token_hex(4)}"
        return Event(id=id, at_s=self.now(), kind=told.kind, severity=told.severity, text=told.text)


def happened(before: BoxState, after: BoxState) -> Iterator[Told]:
    """What an operator may want to know of this change. Pure."""
    if after.stopping and not before.stopping:
        yield Told("box.stopping", Severity.INFO, "the box is being stopped")
    yield from _engine(before.engine, after.engine)
    yield from _gateway(before, after)
    yield from _findings(before.findings, after.findings)


def _engine(before: EngineState, after: EngineState) -> Iterator[Told]:
    known = before.profile.name != EngineState().profile.name
    if known and before.profile.streams != after.profile.streams:
        changed = f"from {before.profile.streams} to {after.profile.streams}"
        yield Told("engine.cap", Severity.INFO, f"the streams that may run at once went {changed}")
    yield from _pair(before, after)
    if after.phase is before.phase:
        return
    title = printable(after.cause.title).rstrip(".") if after.cause is not None else "no cause is known"
    match after.phase:
        case Phase.READY:
            took = f", {after.load_s:.0f} s after its start" if after.load_s is not None else ""
            yield Told("engine.phase", Severity.INFO, f"the engine is ready{took}")
        case Phase.REFUSED:
            yield Told("engine.phase", Severity.FAIL, f"the engine is not started: {title}")
        case Phase.FAILED:
            why = "failed too often" if after.cause is None or after.cause.retry else "ended"
            yield Told("engine.ended", Severity.FAIL, f"the engine {why} and stays off: {title}")
        case Phase.NEEDS_REBOOT:
            yield Told("engine.ended", Severity.FAIL, f"the engine cannot be started again before a reboot: {title}")
        case Phase.BACKOFF:
            yield Told("engine.ended", Severity.WARN, f"the engine ended and is started again: {title}")
        case Phase.STOPPING if before.phase is Phase.READY and after.cause is None:
            yield Told("engine.phase", Severity.INFO, "the engine is being stopped, as it was asked to")


def _pair(before: EngineState, after: EngineState) -> Iterator[Told]:
    if after.trial is not None and after.trial != before.trial:
        yield Told("engine.pair", Severity.INFO, f"{printable(after.trial.shown)} is tried")
    if after.reverted is not None and after.reverted != before.reverted:
        tried, title = printable(after.reverted.tried.shown), printable(after.reverted.cause.title).rstrip(".")
        yield Told("engine.pair", Severity.WARN, f"{tried} did not come to serve, what served before returns: {title}")


def _gateway(before: BoxState, after: BoxState) -> Iterator[Told]:
    was, now = before.gateway, after.gateway
    how = printable(now.last_exit)
    if now.restarts > was.restarts:
        kind = "gateway.hung" if now.last_exit.startswith(HUNG) else "gateway.ended"
        yield Told(kind, Severity.WARN, f"the gateway ended and is started again: {how}")
    elif was.pid is None and now.pid is not None and now.last_exit == REPLACED:
        yield Told("gateway.replaced", Severity.INFO, f"a gateway of version {printable(now.version)} took over")


def _findings(before: tuple[Finding, ...], after: tuple[Finding, ...]) -> Iterator[Told]:
    was, now = _weighty(before), _weighty(after)
    for id in sorted(now.keys() - was.keys()):
        title, observed = printable(now[id].title), printable(now[id].observed)
        yield Told("box.finding", now[id].severity, f"{title}: {observed}")
    for id in sorted(was.keys() - now.keys()):
        yield Told("box.finding", Severity.INFO, f"no longer: {printable(was[id].title)}")


def _weighty(findings: tuple[Finding, ...]) -> dict[tuple[str, Severity], Finding]:
    return {(found.id, found.severity): found for found in findings if found.severity is not Severity.INFO}


def _repeats(box: BoxState, told: Told, now_s: float) -> bool:
    """Whether it was told within the hour, and the engine has not been ready since."""
    if told.severity is Severity.INFO or not told.kind.startswith("engine."):
        return False
    for event in reversed(box.events):
        if now_s - event.at_s > REPEAT_S or (event.kind == "engine.phase" and event.severity is Severity.INFO):
            return False
        if (event.kind, event.text) == (told.kind, told.text):
            return True
    return False


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text().strip()[:8]
    except OSError:  # /proc is hidden: the random part alone has to do
        return "box"
