"""What happened, for the operator's list: a fixed set of kinds, and the latest of them in memory.

Touches the wall clock and the system's random numbers. The daemon's events are merged in by their ids.

Rules:
- An event is something an operator may want to know a month later. Requests are none; refusals are told once a minute.
- Its text never holds a key, nor text of a prompt or an answer; names from files are shown as they are, so that whoever
  prints it escapes it.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from gateway.seats import counted
from gateway.state import Event, Severity

EVENT_KINDS = {
    "box.started": "the daemon started",
    "box.stopping": "the daemon ends",
    "box.finding": "a check of the box found something, or it is mended",
    "engine.phase": "the engine came into another phase",
    "engine.ended": "the engine ended, and why",
    "engine.pair": "another plan or engine environment is tried, or did not come to serve",
    "engine.restart_asked": "somebody asked for a restart of the engine",
    "engine.start_asked": "somebody asked for a start of the engine",
    "admission.cap": "the floor guard changed how many streams may run at once",
    "engine.cap": "another number of streams may run at once",
    "gateway.ended": "a gateway process ended, and how",
    "gateway.hung": "a gateway process did not answer and was killed",
    "gateway.replaced": "a gateway of another version took over",
    "operator.mode": "the box was paused, drained or resumed",
    "operator.seat": "a seat was switched off or on by hand",
    "operator.reload": "somebody had seats.toml and admins.toml read again",
    "operator.refused": "what an operator asked for was not done, and why",
    "files.seats": "seats.toml was taken, or is broken",
    "files.admins": "admins.toml was taken, or is broken",
    "files.overlay": "the kept mode and the seats that were off could not be read",
    "connections.full": "connections were refused, or idle ones closed for them, counted over a minute",
    "requests.refused": "requests were refused, counted over a minute",
    "admin.login": "an admin logged in to the page",
}
"""Every kind, and what it says."""
KEPT = 200
"""Events in memory; the ledger keeps the rest."""
TEXT_MAX = 500
REFUSALS_EVERY_S = 60.0

Sink = Callable[[Event], None]


@dataclass(slots=True)
class Events:
    """One per gateway. `sink` is told of each event once, the daemon's too: the ledger's `put_event`."""

    sink: Sink | None = None
    now: Callable[[], float] = time.time
    _kept: deque[Event] = field(default_factory=lambda: deque(maxlen=KEPT))
    _known: dict[str, None] = field(default_factory=dict)

    def note(self, kind: str, severity: Severity, text: str, who: str = "") -> Event:
        """Something happened now. Raises KeyError when `kind` is not one of EVENT_KINDS."""
        if kind not in EVENT_KINDS:
            raise KeyError(kind)
        text = text[:TEXT_MAX]
        event = Event(id=secrets.token_hex(12), at_s=self.now(), kind=kind, severity=severity, text=text, who=who)
        self._keep(event)
        return event

    def merge(self, events: Iterable[Event]) -> None:
        """Events that somebody else made, each taken once however often it is told."""
        for event in events:
            if event.id not in self._known:
                self._keep(event)

    def recent(self, count: int = KEPT) -> tuple[Event, ...]:
        """The latest, oldest first."""
        return tuple(sorted(self._kept, key=lambda event: event.at_s))[-count:] if count > 0 else ()

    def _keep(self, event: Event) -> None:
        self._kept.append(event)
        self._known[event.id] = None
        if len(self._known) > 4 * KEPT:
            del self._known[next(iter(self._known))]
        if self.sink is not None:
            self.sink(event)


@dataclass(slots=True)
class Refusals:
    """Counts refusals and tells of them once a minute for each reason. Times are seconds of one monotonic clock."""

    events: Events
    _counts: Counter[str] = field(default_factory=Counter)
    _since_s: dict[str, float] = field(default_factory=dict)

    def count(self, reason: str, now_s: float) -> None:
        """One more."""
        self._counts[reason] += 1
        self._since_s.setdefault(reason, now_s)

    def tell(self, now_s: float, *, all_of_them: bool = False) -> None:
        """Tell of those that were counted for REFUSALS_EVERY_S; at the end of the process of all."""
        for reason, since_s in tuple(self._since_s.items()):
            if all_of_them or now_s - since_s >= REFUSALS_EVERY_S:
                del self._since_s[reason]
                number = self._counts.pop(reason)
                said = f"{counted(number, 'request')} refused: {reason.replace('_', ' ')}"
                self.events.note("requests.refused", Severity.INFO, said)
