"""The words of admission: limits, events in, effects out. Pure.

See admission.py for what follows from which event.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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
    SEAT_COLD_QUEUE_FULL = "seat_cold_queue_full"
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
    """The numbers of the policy; see settings.AdmissionSettings for units. 0 disables where it does there.
    `floor_tok_per_s` and `cold_tokens` are the engine profile's."""

    streams: int = 4
    floor_tok_per_s: float = 40.0
    cold_tokens: int = 12_000
    short_s: float = 4.0
    spacing: float = 8.0
    quiet_s: float = 20.0
    last_wait_s: float = 90.0
    aged_s: float = 60.0
    over_share: float = 1.5
    queue_cold_per_seat: int = 1
    queue_max: int = 32
    queue_per_seat: int = 8
    queue_bytes: int = 64 * 1024 * 1024
    queue_deadline_s: float = 180.0
    max_stream_s: float = 1800.0
    seat_grace_s: float = 30.0

    @property
    def gated(self) -> bool:
        """Whether tickets are withheld at all: where nobody may wait they are not."""
        return self.queue_max > 0


@dataclass(frozen=True, slots=True)
class Cost:
    """What a prompt asks of the engine: its length, what of it is not cached, and the seconds that reading that is
    predicted to take. All are estimates."""

    prompt_tokens: int = 0
    uncached_tokens: int = 0
    prefill_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Sent:
    """Output tokens of a running reply, and the time at which it had them."""

    tokens: float
    at_s: float


# Events


@dataclass(frozen=True, slots=True)
class Arrive:
    """A request wants a ticket. `id` must be new. `seat_max_streams` None = no bound of its own. `helper`: a call
    that an agent makes beside its turns, see runs.py. `over_budget`: its seat has used more than its soft budget.
    `run_started_s`: when its run began, None = now. `streamed`: somebody reads along; else nobody tells of its first
    token and no pace is promised to it."""

    id: TicketId
    seat: str
    seat_max_streams: int | None
    body_bytes: int
    helper: bool = False
    over_budget: bool = False
    cost: Cost = Cost()
    run_started_s: float | None = None
    streamed: bool = True


@dataclass(frozen=True, slots=True)
class Costs:
    """What some of those who wait ask of the engine now: the cache has changed. Unknown ids are ignored."""

    costs: Mapping[TicketId, Cost]


@dataclass(frozen=True, slots=True)
class FirstToken:
    """The engine has read the prompt of `id`. Unknown ids are ignored."""

    id: TicketId


@dataclass(frozen=True, slots=True)
class Leave:
    """A request is over: it was cancelled while waiting, or its stream ended after `tokens` of output. Unknown ids
    are ignored."""

    id: TicketId
    tokens: float = 0.0


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


Event: TypeAlias = (
    Arrive | Costs | FirstToken | Leave | Tick | Reload | SeatsGone | SeatsBack | SeatLimit | Close | Open | Hold
)


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


class WaitKind(StrEnum):
    """Why a request waits, the first that applies to it."""

    HELD = "held"
    """The operator paused the box."""
    SEAT_BUSY = "seat_busy"
    """Its seat holds as many tickets as it may."""
    STREAMS_BUSY = "streams_busy"
    """All tickets are out."""
    READING = "reading"
    """It is cold, and another cold prompt is being read."""
    SPACING = "spacing"
    """It is cold, and the last cold prompt was not long ago."""
    QUIET = "quiet"
    """It is the next cold prompt: running replies end first."""
    GATE = "gate"
    """The next cold prompt, another's, is read before anybody else is admitted."""
    COLD_LINE = "cold_line"
    """It is cold, and another cold prompt goes first."""
    PACE = "pace"
    """The last ticket is free, but a running reply would fall behind its pace."""
    ORDER = "order"
    """Others go first."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Why a request waits. `seconds`: how long that is likely to last, `tokens`: of the cold prompt that it is about;
    None = not known, or none. `own`: that prompt is of the same seat."""

    kind: WaitKind
    seconds: float | None = None
    tokens: int | None = None
    own: bool = False


@dataclass(frozen=True, slots=True)
class Lane:
    """The cold lane: one cold prompt at a time. `reading`: the one that is read, `next`: the one that goes next; None =
    none. `reading_left_s`, `spacing_left_s`, `quiet_left_s` (the longest that the gate stays closed for `next`) are
    seconds, 0 = none. `closed`: the gate is closed for `next`."""

    reading: TicketId | None = None
    reading_left_s: float = 0.0
    next: TicketId | None = None
    spacing_left_s: float = 0.0
    quiet_left_s: float = 0.0
    closed: bool = False


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
    lane: Lane = Lane()
    costs: Mapping[TicketId, Cost] = field(default_factory=dict)
    over_share: frozenset[str] = frozenset()
