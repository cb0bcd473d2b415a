"""What was set by hand, what may be done now, and what happened. Pure.

Rules:
- Only what makes sense now is offered: no resume while serving, nothing at all while the gateway does not answer or
  ends.
- An action's effect is told before it is done, with the number of streams that it touches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from gateway.overlay import Mode
from gateway.snapshot import GatewaySnapshot, SeatView
from gateway.state import BoxState, EngineState, Event, Phase
from gateway.status.figures import seconds
from gateway.status.live import ActionView, EventRow, OperatorView

EVENTS_SHOWN = 30
_STAYS = "It stays so, also over a restart of the box, until somebody resumes."
_STOPPED = frozenset({Phase.OFF, Phase.REFUSED, Phase.FAILED, Phase.NEEDS_REBOOT})


def operator_view(box: BoxState, gateway: GatewaySnapshot | None, now_s: float) -> OperatorView:
    """The operator's part of the status at `now_s`, wall-clock seconds."""
    if gateway is None:
        return OperatorView()
    mode = gateway.mode
    may_act = not gateway.draining and not box.stopping
    return OperatorView(
        mode=mode,
        by=gateway.mode_by,
        sentence=mode_said(gateway, now_s),
        actions=tuple(_actions(box.engine, gateway)) if may_act else (),
        seat_actions=tuple(_seat_actions(gateway.seats)) if may_act else (),
    )


def mode_said(gateway: GatewaySnapshot, now_s: float) -> str:
    """The mode, who set it and when; "" while it is serving."""
    if gateway.mode == Mode.SERVING:
        return ""
    said = gateway.mode.capitalize() + (f" by {gateway.mode_by}" if gateway.mode_by else "")
    since_s = gateway.mode_since_s
    return said if since_s is None else f"{said} {seconds(now_s - since_s)} ago"


def _actions(engine: EngineState, gateway: GatewaySnapshot) -> Iterator[ActionView]:
    runs, limit = _streams(len(gateway.running)), seconds(gateway.queue_deadline_s)
    if gateway.mode != Mode.SERVING:
        yield ActionView(
            name="resume",
            label="Resume",
            question="Serve again?",
            effect=f"{_waiting(len(gateway.waiting))} new requests are taken as ever.",
        )
    if gateway.mode != Mode.PAUSED:
        yield ActionView(
            name="pause",
            label="Pause",
            question="Pause the line?",
            effect=f"{runs} Who comes waits in line, {limit} at most, and is refused then. {_STAYS}",
        )
    if gateway.mode != Mode.DRAINED:
        yield ActionView(
            name="drain",
            label="Drain",
            question="Drain this box?",
            effect=f"{runs} Who waits or comes is refused and told when to come back. {_STAYS}",
            grave=True,
        )
    yield from _engine_actions(engine, len(gateway.running))
    yield ActionView(
        name="reload",
        label="Reload seats",
        question="Read seats and admins again?",
        effect="The files are looked at each second anyway; this says at once whether they can be used.",
    )


def _engine_actions(engine: EngineState, running: int) -> Iterator[ActionView]:
    if engine.kind == "static" or engine.phase is Phase.STOPPING:
        return
    if engine.phase in _STOPPED:
        yield ActionView(
            name="start-engine",
            label="Start engine",
            question="Start the engine?",
            effect="The box is examined again first. Loading the weights takes some minutes.",
        )
        return
    cut = f"It ends {_count(running)} in the middle. " if running else ""
    yield ActionView(
        name="restart-engine",
        label="Restart engine",
        question="Restart the engine?",
        effect=f"{cut}Nobody is served until the weights are loaded again, which takes some minutes.",
        grave=True,
    )


def _seat_actions(seats: Iterable[SeatView]) -> Iterator[ActionView]:
    for seat in seats:
        if seat.off_by:
            yield ActionView(
                name="enable-seat",
                label="Enable",
                seat=seat.name,
                question=f"Let {seat.name} in again?",
                effect="Its key works again at once, unless seats.toml says otherwise.",
            )
        elif seat.state == "active":
            ends = f"{_count(seat.running)} of it ends soon. " if seat.running else ""
            yield ActionView(
                name="disable-seat",
                label="Disable",
                seat=seat.name,
                question=f"Disable {seat.name}?",
                effect=f"{ends}Its key is refused until somebody enables it again. seats.toml is not changed.",
                grave=True,
            )


def _count(streams: int) -> str:
    return f"{streams} running {'stream' if streams == 1 else 'streams'}"


def _streams(running: int) -> str:
    goes = "goes" if running == 1 else "go"
    return f"{_count(running)} {goes} on to the end." if running else "Nothing runs now."


def _waiting(waiting: int) -> str:
    return f"Who waits ({waiting}) is let through in turn;" if waiting else "Nobody waits;"


def event_rows(box: BoxState, gateway: GatewaySnapshot | None, now_s: float) -> tuple[EventRow, ...]:
    """The latest events of daemon and gateway, newest first; one told by both is there once."""
    found = {event.id: event for event in (*box.events, *(gateway.events if gateway else ()))}
    latest = sorted(found.values(), key=lambda event: (event.at_s, event.id), reverse=True)[:EVENTS_SHOWN]
    return tuple(_event(event, now_s) for event in latest)


def _event(event: Event, now_s: float) -> EventRow:
    at, now = datetime.fromtimestamp(event.at_s, UTC), datetime.fromtimestamp(now_s, UTC)
    return EventRow(
        id=event.id,
        at_s=event.at_s,
        at=at.strftime("%H:%M:%S" if at.date() == now.date() else "%d %b %H:%M"),
        kind=event.kind,
        severity=str(event.severity),
        text=event.text,
        who=event.who,
    )
