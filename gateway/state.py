"""What the daemon publishes about the box and the engine, and what the gateway reads. Pure.

One definition for both sides of the control socket. JSON on the wire: `BoxState.model_dump_json()`.
Readers ignore unknown keys, so that an older gateway survives a newer daemon during an upgrade.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import PurePath

from pydantic import BaseModel, ConfigDict

UNIX = "unix:"
"""What an engine's URL begins with when the path of a Unix socket follows."""


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
    `forced`: why an operator goes on in spite of it; the severity is then WARN.
    """

    id: str
    severity: Severity
    title: str
    observed: str
    required: str
    remedy: str
    depends_on: str | None = None
    forced: str = ""


class Moment(StrEnum):
    """When a line of a budget is there: always, only while the engine loads, or only if memory is pinned in blocks of
    powers of two."""

    STEADY = "steady"
    LOAD = "load"
    ROUNDED = "rounded"


class BudgetLine(_Wire):
    """One thing that takes memory. `exact`: by arithmetic over headers; else an estimate, shown with a `~`. `formula`:
    how `bytes` came about, with its numbers; `source`: where the rule or the estimate is from."""

    id: str
    label: str
    bytes: int
    exact: bool
    formula: str
    source: str
    moment: Moment = Moment.STEADY


class BudgetBar(_Wire):
    """One card (`gpu0`) or one NUMA node (`node0`, or `host` when nodes are unknown) and what it must hold.
    `capacity_bytes`: what there is; None = not known."""

    id: str
    label: str
    capacity_bytes: int | None
    lines: tuple[BudgetLine, ...]

    def total_bytes(self, *moments: Moment) -> int:
        """The sum over the lines of some moments; over STEADY alone when none is given."""
        wanted = moments or (Moment.STEADY,)
        return sum(line.bytes for line in self.lines if line.moment in wanted)


class PlanState(_Wire):
    """The plan that the daemon checked. `fits`: every card and node holds what it must; `verdict`: the sentence that
    says it. `made`: the daemon made the plan itself. `remake`: the command that makes such a plan anew, without a
    number of experts."""

    plan_id: str
    file: str
    name: str
    cold_experts: int
    experts: int
    fits: bool
    verdict: str
    bars: tuple[BudgetBar, ...] = ()
    made: bool = False
    remake: str = ""


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
    NEEDS_REBOOT = "needs_reboot"


class EngineProfile(_Wire):
    """What the engine was measured or declared to be able to do.

    `floor_tok_per_s`: the pace promised to one stream. `cold_tokens`: a prompt with more uncached
    tokens than this is long, and cold unless it is read in a few seconds. `streams`: how many sequences may run at
    once. `kv_tokens`: what its cache holds, as declared. `demo` marks an engine that tests the plumbing, not the
    answers. `helps`: ADDRESS:PORT of the box that this one computes for; it serves nobody itself. "" = it serves.
    """

    name: str
    floor_tok_per_s: float
    cold_tokens: int
    streams: int
    kv_tokens: int | None = None
    demo: bool = False
    helps: str = ""


class EngineAbilities(_Wire):
    """What the engine was asked at warm-up and showed.

    `dialects`: the request paths that it answers; None = nobody asked, each is tried. `counters`: request path ->
    the engine's path that counts the tokens of the same body. `continuation`: request paths where a partial
    assistant turn at the end is continued rather than answered. `images`: None = unknown. `sequence_copies`: how many
    sequences it has, each with a cache of its own, of which one can be copied into the others by way of a file in
    `sequence_folder`, which is ours; 0 = it showed nothing of the kind. `kv_tokens`: what its cache holds, as it says.
    """

    dialects: tuple[str, ...] | None = None
    counters: dict[str, str] = {}
    continuation: tuple[str, ...] = ()
    images: bool | None = None
    sequence_copies: int = 0
    sequence_folder: str | None = None
    kv_tokens: int | None = None


class Cause(_Wire):
    """Why the engine ended or did not start: a stable id, a plain sentence, what to do. `evidence`: the line of its log
    that says so, "" = none does. `retry`: False = the same start would end the same way."""

    id: str
    title: str
    remedy: str
    evidence: str = ""
    retry: bool = True


class Verdict(StrEnum):
    """What came of asking a warm engine for one thing."""

    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"


class ProbeResult(_Wire):
    """One thing that was asked of the engine before it was called ready. `needed`: without it the engine is degraded.
    `observed` and `wanted` are for people; `remedy`: a change, "" where nothing is wrong."""

    id: str
    title: str
    verdict: Verdict
    observed: str
    wanted: str
    needed: bool = False
    remedy: str = ""


class Pair(_Wire):
    """What serves together: a plan file and an engine environment; None = as appliance.toml leaves it."""

    plan_file: str | None = None
    environment: str | None = None

    @property
    def shown(self) -> str:
        """For people: what of it is not as appliance.toml says."""
        parts = [f"plan {PurePath(self.plan_file).stem}"] if self.plan_file is not None else []
        parts += [f"environment {self.environment}"] if self.environment is not None else []
        return ", ".join(parts) or "what appliance.toml says"


class Reverted(_Wire):
    """A pair that was tried and did not come to READY, and why; the pair before serves again. `at_s`: wall clock."""

    tried: Pair
    cause: Cause
    at_s: float


class HostKv(_Wire):
    """The engine's KV tier in host RAM. `bytes`: what the configuration gives it, over all cards; 0 = it asks for none.
    `on`: this run of the engine has it, and a prompt came back from it at the warm-up. `off`: why the engine runs
    without it all the same."""

    bytes: int = 0
    on: bool = False
    off: Cause | None = None


class ResidencyFigures(_Wire):
    """What the residency plugin counted between its last two readings, at `at_s`, wall clock: `visits` to experts of
    `tokens` in `seconds` of work, `cold_visits` to those in host RAM. `cold_bytes`: of these visits, on each card:
    the most that can have crossed its link for them. `swapped`: exchanges of two experts since the engine's start.
    `tokens` 0: nothing was counted since that start, at `at_s`.
    """

    at_s: float
    tokens: int = 0
    seconds: float = 0.0
    visits: int = 0
    cold_visits: int = 0
    cold_bytes: int = 0
    swapped: int = 0


class EngineState(_Wire):
    """The engine as the daemon sees it.

    `start_id` changes with every start; `step` and `progress` (0..1, None = unknown) describe the phase;
    `url` has no trailing slash, or is `unix:` and the path of a socket; `key_file` is a 0600 file with the engine's API
    key, or None.
    `retry_at_s` is wall-clock time (seconds since the epoch), set in BACKOFF. `load_s`: what the last start that came
    to READY took, seconds, None = there was none. `left_s`: about how long this start still takes, by the last one;
    None = nobody knows. `start_progress`: how much of the whole start is behind it, 0..1, by the same. `leaving`: it is
    about to be restarted, and nothing new is sent to it. `environment`: id of the environment that it runs in. `trial`:
    the pair that this start tries. `reverted`: the last trial that failed, until the next one. `residency`: None = it
    counts no visits to experts.
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
    host_kv: HostKv = HostKv()
    cause: Cause | None = None
    retry_at_s: float | None = None
    restarts: int = 0
    load_s: float | None = None
    left_s: float | None = None
    start_progress: float | None = None
    probes: tuple[ProbeResult, ...] = ()
    leaving: bool = False
    environment: str = ""
    trial: Pair | None = None
    reverted: Reverted | None = None
    residency: ResidencyFigures | None = None
    log_tail: tuple[str, ...] = ()


class GatewayState(_Wire):
    """The gateway process as the daemon sees it. `version`: of the gateway, which an upgrade may have replaced while
    the daemon went on."""

    pid: int | None = None
    since_s: float = 0.0
    restarts: int = 0
    last_exit: str = ""
    version: str = ""


class Event(_Wire):
    """Something that happened, for the operator's list. `id` is unique for ever, so that telling it twice keeps it
    once; `kind` is dotted and fixed (gateway/events.py); `who`: the admin who did it, "" when nobody did."""

    id: str
    at_s: float
    kind: str
    severity: Severity
    text: str
    who: str = ""


class GpuGauge(_Wire):
    """One card as NVML saw it last; None = it does not say. Shares are 0..1; rates are bytes a second."""

    index: int
    name: str
    busy_share: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    pcie_rx_bytes_per_s: float | None = None
    pcie_tx_bytes_per_s: float | None = None
    link_gen: int | None = None
    link_width: int | None = None
    slowed_by: tuple[str, ...] = ()


class GaugesState(_Wire):
    """What the cards do. `at_s`: when they last answered, wall clock; `error`: why they do not answer now."""

    at_s: float
    gpus: tuple[GpuGauge, ...] = ()
    error: str = ""


class BoxState(_Wire):
    """Everything the daemon knows. `revision` grows by one with every change; long polls wait on it. `protocol` is
    raised when a gateway of the version before could not work with this daemon any more. `events`: the latest of the
    daemon's own, oldest first."""

    revision: int = 0
    version: str = ""
    started_s: float = 0.0
    public_url: str = ""
    stopping: bool = False
    engine: EngineState = EngineState()
    gateway: GatewayState = GatewayState()
    findings: tuple[Finding, ...] = ()
    plan: PlanState | None = None
    protocol: int = 1
    events: tuple[Event, ...] = ()
    gauges: GaugesState | None = None
