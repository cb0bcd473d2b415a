"""The words of admission: limits, events in, effects out. Pure.

See admission.py for what follows from which event.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NewType, TypeAlias

TicketId = NewType("TicketId", int)

RETRY_MIN_S = 10
"""Source: facts/clients.md section 3.1: after 3 s agents use up their tries within 16 s."""
RETRY_MAX_S = 59
"""Source: facts/gateway-peers.md finding 4: Claude Code gives up at 61 s and more."""


class Reason(StrEnum):
    """Why a request was refused or a stream was ended; the word in `x-moe-reject-reason`."""

    QUEUE_FULL = "queue_full"
    QUEUE_BYTES = "queue_bytes"
    SEAT_QUEUE_FULL = "seat_queue_full"
    PREDICTED_WAIT = "predicted_wait"
    DEADLINE = "deadline"
    ENGINE_NOT_READY = "engine_not_ready"
    ENGINE_LOST = "engine_lost"
    DRAINING = "draining"
    MAINTENANCE = "maintenance"
    PAUSED = "paused"
    SEAT_GONE = "seat_gone"
    MAX_STREAM = "max_stream"


@dataclass(frozen=True, slots=True)
class Limits:
    """The numbers of the policy; see settings.AdmissionSettings for units. 0 disables where it does there."""

    streams: int = 4
    queue_max: int = 32
    queue_per_seat: int = 8
    queue_bytes: int = 64 * 1024 * 1024
    queue_deadline_s: float = 180.0
    max_stream_s: float = 1800.0
    seat_grace_s: float = 30.0


# Events


@dataclass(frozen=True, slots=True)
class Arrive:
    """A request wants a ticket. `id` must be new. `seat_max_streams` None = no bound of its own. `helper`: a call
    that an agent makes beside its turns, see runs.py. `over_budget`: its seat has used more than its soft budget."""

    id: TicketId
    seat: str
    seat_max_streams: int | None
    body_bytes: int
    helper: bool = False
    over_budget: bool = False


@dataclass(frozen=True, slots=True)
class Leave:
    """A request is over: it was cancelled while waiting, or its stream ended. Unknown ids are ignored."""

    id: TicketId


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; nothing else happened."""


@dataclass(frozen=True, slots=True)
class Reload:
    """New limits. Streams above a lowered cap go on; waiters above a lowered bound keep their place."""

    limits: Limits


@dataclass(frozen=True, slots=True)
class SeatsGone:
    """Seats that were removed, disabled or expired: drop what waits, end what runs after the grace."""

    seats: frozenset[str]


@dataclass(frozen=True, slots=True)
class SeatsBack:
    """Seats that are good again: streams of theirs that were to be ended go on."""

    seats: frozenset[str]


@dataclass(frozen=True, slots=True)
class SeatLimit:
    """A seat's own `max_streams` changed; also for its requests that are here already."""

    seat: str
    max_streams: int | None


@dataclass(frozen=True, slots=True)
class Close:
    """Stop admitting: `reason` is given to waiters and to arrivals until Open."""

    reason: Reason
    retry_after_s: int = RETRY_MIN_S


@dataclass(frozen=True, slots=True)
class Open:
    """Admit again."""


@dataclass(frozen=True, slots=True)
class Hold:
    """`held`: hand out no ticket from now on; who is here waits on, and who comes waits as well, until a Hold that is
    not held. Running streams go on."""

    held: bool


Event: TypeAlias = Arrive | Leave | Tick | Reload | SeatsGone | SeatsBack | SeatLimit | Close | Open | Hold


# Effects


@dataclass(frozen=True, slots=True)
class Granted:
    """`id` holds a ticket now. `position` is where it stood when it arrived (0 = it never waited)."""

    id: TicketId
    position: int


@dataclass(frozen=True, slots=True)
class Queued:
    """`id` waits at `position` (1 = next) of `depth`; `wait_s` is the predicted wait, None while tickets are held."""

    id: TicketId
    position: int
    depth: int
    wait_s: float | None


@dataclass(frozen=True, slots=True)
class Rejected:
    """`id` will not run. `retry_after_s` is whole seconds, 10 to 59; 0 = do not retry. `position`: where it stood, or
    would stand; `depth`: how many wait without it, with a line that was cleared as it was."""

    id: TicketId
    reason: Reason
    retry_after_s: int
    position: int
    depth: int


@dataclass(frozen=True, slots=True)
class Ended:
    """The stream of `id` must end now. It holds its ticket until it leaves."""

    id: TicketId
    reason: Reason


Effect: TypeAlias = Granted | Queued | Rejected | Ended


@dataclass(frozen=True, slots=True)
class Decision:
    """What follows from one event, in order, and when the policy wants a Tick (None = never)."""

    effects: tuple[Effect, ...]
    wake_at_s: float | None


@dataclass(frozen=True, slots=True)
class AdmissionView:
    """What the page shows: ids with their seats and times, in the order in which they will be served. `held`: no ticket
    is handed out."""

    limits: Limits
    closed: Reason | None
    running: tuple[tuple[TicketId, str, float], ...]
    waiting: tuple[tuple[TicketId, str, float], ...]
    waiting_bytes: int
    mean_hold_s: float
    measured_holds: int
    held: bool = False
