"""What the lifecycle is told (events) and what it asks for (effects). Pure values; see lifecycle.py."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from gateway.state import Cause, EngineAbilities, ProbeResult

# Events: what happened


@dataclass(frozen=True, slots=True)
class StartAsked:
    """Somebody wants the engine to run: the daemon at its own start, or the operator."""


@dataclass(frozen=True, slots=True)
class RestartAsked:
    """Stop whatever goes on, then start."""


@dataclass(frozen=True, slots=True)
class StopAsked:
    """End the engine and leave it OFF."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Checks speak against a start; the first cause is the one that is shown."""

    causes: tuple[Cause, ...]


@dataclass(frozen=True, slots=True)
class PrepareStarted:
    """The preparation is under way."""


@dataclass(frozen=True, slots=True)
class Progress:
    """A step for people to read; `progress` 0..1, None = unknown."""

    step: str
    progress: float | None = None


@dataclass(frozen=True, slots=True)
class MemoryHeld:
    """What the former engine held is not given back, so that none may be started beside it."""

    cause: Cause


@dataclass(frozen=True, slots=True)
class Prepared:
    """The engine can be spawned."""


@dataclass(frozen=True, slots=True)
class PrepareFailed:
    """The preparation failed in a way that may pass, a download for one; counts as a crash."""

    cause: Cause


@dataclass(frozen=True, slots=True)
class Spawned:
    """The engine's process runs; `pid` is None for an engine that somebody else runs. `host_kv`: it was started with a
    KV tier in host RAM."""

    pid: int | None
    start_id: str
    host_kv: bool = False


@dataclass(frozen=True, slots=True)
class HealthOk:
    """The engine answered its health probe. `start_id`: of which start; "" = the present one."""

    start_id: str = ""


@dataclass(frozen=True, slots=True)
class WarmUpDone:
    """A real completion came back; `tok_per_s` was measured with it, `abilities` and `probes` were asked afterwards."""

    models: tuple[str, ...]
    context_tokens: int | None
    tok_per_s: float | None
    abilities: EngineAbilities = field(default_factory=EngineAbilities, hash=False)
    start_id: str = ""
    probes: tuple[ProbeResult, ...] = ()


@dataclass(frozen=True, slots=True)
class Served:
    """The engine has answered a request of somebody else's to its end."""

    start_id: str = ""


@dataclass(frozen=True, slots=True)
class WarmUpFailed:
    """The engine is healthy and does not answer as it should."""

    cause: Cause
    start_id: str = ""


@dataclass(frozen=True, slots=True)
class HostKvUnproven:
    """The engine answers, and its KV tier in host RAM was not proven to work."""

    cause: Cause
    start_id: str = ""


@dataclass(frozen=True, slots=True)
class HealthLost:
    """A READY engine missed its health probes, or works no more. `ended`: its process is gone, and its Exited will know
    better why."""

    cause: Cause
    ended: bool = field(default=False, kw_only=True)
    start_id: str = ""


@dataclass(frozen=True, slots=True)
class StartTimeout:
    """`after_s` seconds have passed since the Spawn; 0 = not told."""

    after_s: float = 0.0
    start_id: str = ""


@dataclass(frozen=True, slots=True)
class StartFailed:
    """The engine runs, does not serve yet, and will not: it stands still or hangs."""

    cause: Cause
    start_id: str = ""


@dataclass(frozen=True, slots=True)
class Exited:
    """The engine and everything below it is gone, or could not be started; `cause` from failures.py."""

    cause: Cause


@dataclass(frozen=True, slots=True)
class StopDone:
    """A preparation has ended, by itself or cancelled: nothing of it goes on any more."""


@dataclass(frozen=True, slots=True)
class TimerDue:
    """The time of the last SetTimer has come."""


Event: TypeAlias = (
    StartAsked
    | RestartAsked
    | StopAsked
    | Refused
    | PrepareStarted
    | Progress
    | MemoryHeld
    | Prepared
    | PrepareFailed
    | Spawned
    | HealthOk
    | WarmUpDone
    | Served
    | WarmUpFailed
    | HostKvUnproven
    | HealthLost
    | StartTimeout
    | StartFailed
    | Exited
    | StopDone
    | TimerDue
)

# Effects: what is to be done


@dataclass(frozen=True, slots=True)
class Prepare:
    """Run the checks and the adapter's preparation."""


@dataclass(frozen=True, slots=True)
class Spawn:
    """Start the engine's process, then probe its health. `host_kv`: with its KV tier in host RAM, if it has one."""

    host_kv: bool = True


@dataclass(frozen=True, slots=True)
class WarmUp:
    """Send a first completion and measure it."""


@dataclass(frozen=True, slots=True)
class Kill:
    """Cancel the preparation or end the engine; `cause` is for the log."""

    cause: Cause


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Report TimerDue at `at_s`, a time of the lifecycle's clock; replaces the former timer."""

    at_s: float


@dataclass(frozen=True, slots=True)
class Publish:
    """Tell the board: the state has changed."""


Effect: TypeAlias = Prepare | Spawn | WarmUp | Kill | SetTimer | Publish
