"""Where the engine is and what is remembered of it: the state that lifecycle.py decides on. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from gateway.state import Cause, EngineAbilities, Phase, ProbeResult


class After(Enum):
    """What follows STOPPING."""

    OFF = "off"
    START = "start"
    CRASH = "crash"
    DIED = "died"


@dataclass(frozen=True, slots=True)
class State:
    """Where the engine is and what is remembered. Times are `now_s` values, seconds on a monotonic clock.

    `alive`: a Spawn has not been answered by its Exited. `cause`: why it ended, did not start, or is being
    killed. `crashes`: in a row, sets the backoff; `same_cause`: how many of the last had `cause_id`.
    `restarts`: starts after a crash, never cleared. `warm_tok_per_s`: measured by the warm-up. `served`: this run
    answered somebody, or is to answer nobody. `host_kv`: this run has the KV tier in host RAM; `host_kv_off`: why the
    next start does without.
    """

    phase: Phase = Phase.OFF
    since_s: float = 0.0
    alive: bool = False
    after: After = After.OFF
    start_id: str = ""
    pid: int | None = None
    step: str = ""
    progress: float | None = None
    models: tuple[str, ...] = ()
    context_tokens: int | None = None
    warm_tok_per_s: float | None = None
    abilities: EngineAbilities = field(default_factory=EngineAbilities, hash=False)
    probes: tuple[ProbeResult, ...] = ()
    host_kv: bool = False
    host_kv_off: Cause | None = None
    cause: Cause | None = None
    causes: tuple[Cause, ...] = ()
    cause_id: str = ""
    same_cause: int = 0
    crashes: int = 0
    restarts: int = 0
    served: bool = False
    ready_at_s: float | None = None
    retry_at_s: float | None = None
