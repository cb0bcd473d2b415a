"""What the daemon publishes about the box and the engine, and what the gateway reads. Pure.

One definition for both sides of the control socket. JSON on the wire: `BoxState.model_dump_json()`.
Readers ignore unknown keys, so that an older gateway survives a newer daemon during an upgrade.
"""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict


class _Wire(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Severity(StrEnum):
    """How bad a finding is: FAIL keeps the engine from starting, WARN and INFO do not."""

    FAIL = "fail"
    WARN = "warn"
    INFO = "info"


class Finding(_Wire):
    """One thing a check saw that the operator should know.

    `id` is dotted and stable (`cpu.avx2`); `remedy` is a command or a change, never advice in general.
    `depends_on` names the finding that causes this one, so that one cause is one line.
    """

    id: str
    severity: Severity
    title: str
    observed: str
    required: str
    remedy: str
    depends_on: str | None = None


class Phase(StrEnum):
    """Where the engine is. Only READY serves; see appliance/engine/lifecycle.py for the transitions."""

    OFF = "off"
    REFUSED = "refused"
    PREPARING = "preparing"
    STARTING = "starting"
    WARMING = "warming"
    READY = "ready"
    STOPPING = "stopping"
    BACKOFF = "backoff"
    FAILED = "failed"


class EngineProfile(_Wire):
    """What the engine was measured or declared to be able to do.

    `floor_tok_per_s`: the pace promised to one stream. `cold_tokens`: a prompt with more uncached
    tokens than this is cold. `streams`: how many sequences may run at once. `demo` marks an engine that
    tests the plumbing, not the answers.
    """

    name: str
    floor_tok_per_s: float
    cold_tokens: int
    streams: int
    demo: bool = False


class EngineAbilities(_Wire):
    """What the engine was asked at warm-up and showed.

    `dialects`: the request paths that it answers; None = nobody asked, each is tried. `counters`: request path ->
    the engine's path that counts the tokens of the same body. `continuation`: request paths where a partial
    assistant turn at the end is continued rather than answered. `images`: None = unknown.
    """

    dialects: tuple[str, ...] | None = None
    counters: dict[str, str] = {}
    continuation: tuple[str, ...] = ()
    images: bool | None = None


class Cause(_Wire):
    """Why the engine ended or did not start: a stable id, a plain sentence, what to do."""

    id: str
    title: str
    remedy: str


class EngineState(_Wire):
    """The engine as the daemon sees it.

    `start_id` changes with every start; `step` and `progress` (0..1, None = unknown) describe the phase;
    `url` has no trailing slash; `key_file` is a 0600 file with the engine's API key, or None.
    `retry_at_s` is wall-clock time (seconds since the epoch), set in BACKOFF.
    """

    phase: Phase = Phase.OFF
    kind: str = ""
    start_id: str = ""
    step: str = ""
    progress: float | None = None
    since_s: float = 0.0
    pid: int | None = None
    url: str | None = None
    key_file: str | None = None
    models: tuple[str, ...] = ()
    context_tokens: int | None = None
    warm_tok_per_s: float | None = None
    profile: EngineProfile = EngineProfile(name="none", floor_tok_per_s=40.0, cold_tokens=12_000, streams=4)
    abilities: EngineAbilities = EngineAbilities()
    cause: Cause | None = None
    retry_at_s: float | None = None
    restarts: int = 0
    log_tail: tuple[str, ...] = ()


class GatewayState(_Wire):
    """The gateway process as the daemon sees it."""

    pid: int | None = None
    since_s: float = 0.0
    restarts: int = 0
    last_exit: str = ""


class BoxState(_Wire):
    """Everything the daemon knows. `revision` grows by one with every change; long polls wait on it."""

    revision: int = 0
    version: str = ""
    started_s: float = 0.0
    public_url: str = ""
    stopping: bool = False
    engine: EngineState = EngineState()
    gateway: GatewayState = GatewayState()
    findings: tuple[Finding, ...] = ()
