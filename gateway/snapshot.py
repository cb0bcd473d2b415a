"""What the gateway knows of itself at one moment: streams, line, seats, counts. Pure.

Served on the gateway's own socket and turned into the page by status.py. Ages are seconds before `at_s`.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from gateway.learning.watch import WatchRow
from gateway.ledger.rows import LedgerState
from gateway.prewarm.queue import PrewarmState
from gateway.state import Event, Finding


class _Wire(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class StreamView(_Wire):
    """One running stream. `step` is prefill or decode; `tokens` and `tok_per_s` are estimates (`~`) until the
    engine has counted."""

    request_id: str
    seat: str
    route: str
    step: str
    age_s: float
    tokens: int
    tok_per_s: float | None
    estimated: bool


class WaitingView(_Wire):
    """One request in line, in the order of service. `predicted_s`: None while the line is paused. `why`, `why_s`,
    `why_tokens`, `why_own`: see admission_types.Wait. `uncached_tokens`: what the engine has to read of it, an
    estimate."""

    request_id: str
    seat: str
    position: int
    waited_s: float
    predicted_s: float | None
    why: str = ""
    why_s: float | None = None
    why_tokens: int | None = None
    why_own: bool = False
    uncached_tokens: int | None = None


class SeatView(_Wire):
    """One seat: `state` is active, disabled or expired; counts are since the gateway started, `off_by` names the admin
    who switched it off by hand. `hit_share`: cached of prompt tokens, 0..1, where the engine told both;
    `expected_share`: what the gateway expected of the same requests, in tokens `expected_tokens`; `over_share`: see
    admission.py; `wait_p95_s`: of the latest requests that got a ticket. `month_tokens`: against the budget, None
    without a ledger."""

    name: str
    state: str
    max_streams: int | None
    running: int
    waiting: int
    served: int
    refused: int
    failed: int
    tokens_out: int
    prompt_tokens: int = 0
    cached_tokens: int = 0
    hit_share: float | None = None
    expected_share: float | None = None
    expected_tokens: int = 0
    wait_p95_s: float | None = None
    over_share: bool = False
    off_by: str = ""
    month_tokens: int | None = None
    budget_tokens: int | None = None
    over_budget: bool = False


class LaneSnapshot(_Wire):
    """The cold lane; see admission_types.Lane. `cold_tokens`, `short_s`: a prompt of which more is not cached, and that
    takes as long to read, is cold; seats are "" for none."""

    cold_tokens: int
    short_s: float = 0.0
    reading_seat: str = ""
    reading_tokens: int | None = None
    reading_left_s: float = 0.0
    next_seat: str = ""
    next_tokens: int | None = None
    spacing_left_s: float = 0.0
    quiet_left_s: float = 0.0
    closed: bool = False


class CacheView(_Wire):
    """What the engine's cache is believed to hold, tokens; `capacity_tokens` None = not known. `losses`: how often the
    engine had less than was believed, `losses_lately` in the last 5 min."""

    held_tokens: int
    capacity_tokens: int | None
    losses: int
    losses_lately: int


class SpeedView(_Wire):
    """What was measured of the engine. `pace_tok_per_s`: the median of streams without a cold neighbour over 5 min,
    over `pace_replies`. `prefill_100k_s`: predicted reading of 100,000 tokens, from `prefill_measured` measurements;
    `prefill_fitted`: they give the shape of the curve as well. `cap`, `cap_validated`: streams at once, as they are and
    as they were validated."""

    pace_tok_per_s: float | None
    pace_replies: int
    prefill_100k_s: float
    prefill_measured: int
    prefill_fitted: bool
    cap: int
    cap_validated: int


class FileView(_Wire):
    """A file that is read while the gateway runs; `error` is set while the file on disk is broken and the last
    good version is in use."""

    path: str
    error: str | None
    missing: bool


class HistoryView(_Wire):
    """The last hour in steps of `step_s`, oldest first, the last one ending at `until_s` (wall clock). None = nothing
    was measured in that step. `streams`: the most that ran at once; `slowest_tok_per_s`: the slowest stream's pace;
    `cached_share`: cached of prompt tokens of the requests that ended, 0..1; `reading_share`: of the time, in which a
    cold prompt was read. Since the gateway started: `reading_s` of that, `closed_s` with the gate closed, `waited_s`
    that requests have waited, by WaitKind."""

    step_s: float
    until_s: float
    streams: tuple[int | None, ...] = ()
    slowest_tok_per_s: tuple[float | None, ...] = ()
    cached_share: tuple[float | None, ...] = ()
    reading_share: tuple[float | None, ...] = ()
    reading_s: float = 0.0
    closed_s: float = 0.0
    waited_s: dict[str, float] = {}


class ConnectionsView(_Wire):
    """Connections of clients: those there are, the most there may be; since the gateway started: refused, and idle ones
    given up for others."""

    open: int
    most: int
    refused: int
    given_up: int


class Times(_Wire):
    """How long something took, since the gateway started: see tallies.Histogram."""

    bounds_s: tuple[float, ...]
    counts: tuple[int, ...]
    sum_s: float


class GatewaySnapshot(_Wire):
    """Everything the page shows of the gateway. `mean_hold_s` is the measured mean time of a stream, None before
    the first one ended. `runs`: agents' chains of turns with a request in the last 90 s. `mode`: see overlay.py;
    `mode_by` and `mode_since_s` (wall clock) tell who set it, while it is not serving. `events`: the gateway's own,
    oldest first. `findings`: what the gateway itself found. `ledger`: None = none is kept. `prewarm`: what was read
    into the engine ahead of requests; `watch`: whose prompts continue each other, by seat and client."""

    at_s: float
    started_s: float
    pid: int
    draining: bool
    closed: str | None
    streams_max: int
    running: tuple[StreamView, ...]
    waiting: tuple[WaitingView, ...]
    queue_max: int
    queue_deadline_s: float
    mean_hold_s: float | None
    body_bytes: int
    body_budget_bytes: int
    seats: tuple[SeatView, ...]
    files: tuple[FileView, ...]
    outcomes: dict[str, int]
    runs: int = 0
    mode: str = "serving"
    mode_by: str = ""
    mode_since_s: float | None = None
    events: tuple[Event, ...] = ()
    findings: tuple[Finding, ...] = ()
    ledger: LedgerState | None = None
    history: HistoryView | None = None
    connections: ConnectionsView | None = None
    queue_wait: Times | None = None
    first_token: Times | None = None
    lane: LaneSnapshot | None = None
    cache: CacheView | None = None
    speed: SpeedView | None = None
    prewarm: PrewarmState | None = None
    watch: tuple[WatchRow, ...] = ()
