"""What page, JSON, terminal and Prometheus say: one set of names. Pure.

figures.py says how a figure is written, live.py has the parts that move: operator, events, gauges, history; prompts.py
those about prompts: cold lane, cache, prewarm, watch, speed.
"""

from __future__ import annotations

from pydantic import Field, computed_field

from gateway.snapshot import Times
from gateway.state import Severity
from gateway.status.figures import Figure, Tone, View
from gateway.status.live import EventRow, FifthView, GaugesView, HistoryRow, LedgerRow, OperatorView, ResidencyView
from gateway.status.probes import ProbeRow
from gateway.status.prompts import CacheRow, ColdView, HostKvView, PrewarmRow, SpeedRow, WatchLine


class Verdict(View):
    """How the box is, in one sentence. `rule` is the number in verdict.py's list; `command` is what to
    type, None when nothing is to be done; `text` is the sentence up to it."""

    rule: int
    tone: Tone
    text: str
    command: str | None = None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def sentence(self) -> str:
        """Text and command."""
        return self.text if self.command is None else f"{self.text} {self.command}"


class EngineView(View):
    """The engine. `progress`: of the step; `start_progress`, `left`: of the whole start, by the last one. `phase_for`:
    time in this phase; `uptime`: the same while ready. `floor`: the pace promised to
    one stream, declared; `warm_pace`: measured by the warm-up. `cause`, `remedy`: why it is not ready."""

    phase: str
    headline: str
    tone: Tone
    step: str
    progress: Figure
    kind: str
    profile: str
    demo_label: str | None
    models: tuple[str, ...]
    context_tokens: Figure
    streams: int
    floor: Figure
    warm_pace: Figure
    pid: int | None
    phase_for: Figure
    uptime: Figure
    restarts: int
    cause: str | None
    remedy: str | None
    retry_in: Figure
    log_tail: tuple[str, ...]
    start_progress: Figure = Figure()
    left: Figure = Figure()


class LaneView(View):
    """The place of one stream. `share` is the pace on a scale that ends at `LanesView.scale_tok_per_s`, 0..1.
    `extra`: a stream above a cap that was lowered while it ran."""

    number: int
    busy: bool
    extra: bool = False
    seat: str = ""
    request_id: str = ""
    route: str = ""
    step: str = ""
    age: Figure = Figure()
    tokens: Figure = Figure()
    tok_per_s: Figure = Figure()
    share: float | None = None
    below_floor: bool = False


class LanesView(View):
    """All lanes. `known` is False while the gateway does not answer, `open` while a free lane takes nobody.
    `floor_share`: where the floor stands on the scale, 0..1; None = no floor."""

    known: bool
    open: bool
    busy: int
    streams_max: int
    scale_tok_per_s: float
    floor_share: float | None
    rows: tuple[LaneView, ...]


class QueueRow(View):
    """One request in line; position 1 is next. `kind`: see admission_types.WaitKind, "" = not told; `why`: the same in
    words, for the operator; `why_said`: for the person who waits, without anything of others. `uncached`: tokens that
    the engine has to read of it."""

    position: int
    seat: str
    request_id: str
    waited: Figure
    predicted: Figure
    kind: str = ""
    why: str = ""
    why_said: str = ""
    uncached: Figure = Figure()


class QueueView(View):
    """The line. `next_free`: when the next ticket is predicted to come back; `deadline`: the longest wait. `waited_s`:
    seconds that requests have waited since the gateway started, by the kind of their wait."""

    depth: int
    max: int
    deadline: Figure
    next_free: Figure
    rows: tuple[QueueRow, ...]
    waited_s: dict[str, float] = Field(default_factory=dict)


class SeatRow(View):
    """One seat; counts are since the gateway started. `off_by`: the admin who switched it off by hand, "" = nobody.
    `hit_share` against `expected_share`, which is what the gateway expected to be cached of its prompts, in tokens
    `expected_tokens`; `over_share`: it has used more than others want, and stands behind them.
    `month_tokens` against `budget_tokens`: what the engine had to work for in this calendar month, UTC."""

    name: str
    state: str
    max_streams: Figure
    running: int
    waiting: int
    served: Figure
    refused: Figure
    failed: Figure
    tokens_out: Figure
    prompt_tokens: Figure = Figure()
    cached_tokens: Figure = Figure()
    hit_share: Figure = Figure()
    expected_share: Figure = Figure()
    expected_tokens: Figure = Figure()
    over_share: bool = False
    wait_p95: Figure = Figure()
    month_tokens: Figure = Figure()
    budget_tokens: Figure = Figure()
    budget_share: float | None = None
    over_budget: bool = False
    off_by: str = ""


class FileRow(View):
    """A file that is read while the gateway runs: `kind` is seats or admins, `state` ok, missing or broken."""

    kind: str
    path: str
    name: str
    state: str
    error: str | None


class PieceView(View):
    """A piece of a bar. `kind`: the number of its colour; `when`: "" = always; `start`, `share`: of the bar's
    length, 0..1."""

    id: str
    label: str
    kind: int
    bytes: Figure
    when: str
    start: float
    share: float
    formula: str
    source: str


class BarView(View):
    """What a card or a NUMA node must hold. `capacity_share`: where its capacity ends on the bar, 0..1; `used`: always;
    `peak`: while the engine loads; `left`, `over`: at the peak."""

    id: str
    label: str
    capacity: Figure
    capacity_share: float | None
    used: Figure
    peak: Figure
    left: Figure
    over: Figure
    holds: bool
    pieces: tuple[PieceView, ...]


class KindRow(View):
    """One kind of piece over all bars: its bytes in each, in the bars' order; unknown where a bar has none of it."""

    kind: int
    label: str
    when: str
    cells: tuple[Figure, ...]


class PlanView(View):
    """The plan: which experts sit in host RAM, and what that asks of each card and node. `made`: by the daemon."""

    plan_id: str
    file: str
    name: str
    cold: Figure
    experts: Figure
    fits: bool
    tone: Tone
    verdict: str
    made: bool
    bars: tuple[BarView, ...]
    kinds: tuple[KindRow, ...]


class FindingRow(View):
    """One finding; `folded` are those that it causes; `forced`: why an operator goes on in spite of it."""

    id: str
    severity: Severity
    title: str
    observed: str
    required: str
    remedy: str
    forced: str = ""
    folded: tuple[FindingRow, ...] = ()


class GatewayView(View):
    """The gateway process: `state` is serving, draining or absent; `closed` why admission is closed."""

    state: str
    pid: int | None
    restarts: int
    uptime: Figure
    started_s: float | None
    last_exit: str
    closed: str | None


class NumbersView(View):
    """All seats together, since the gateway started. `runs`: agents at work now, see runs.py. `mean_hold`: mean time
    of a stream; `drain_rate`: tickets
    that come back in a minute when the box is full, from it."""

    served: Figure
    refused: Figure
    failed: Figure
    left: Figure
    runs: Figure
    mean_hold: Figure
    drain_rate: Figure
    body_bytes: Figure
    body_budget_bytes: Figure
    connections: Figure
    connections_max: Figure
    connections_refused: Figure
    connections_given_up: Figure


class StatusView(View):
    """Everything that is said about the box at `at_s`, wall-clock seconds."""

    at_s: float
    at: str
    version: str
    public_url: str
    uptime: Figure
    verdict: Verdict
    engine: EngineView
    probes: tuple[ProbeRow, ...] = ()
    lanes: LanesView
    queue: QueueView
    seats: tuple[SeatRow, ...]
    files: tuple[FileRow, ...]
    findings: tuple[FindingRow, ...]
    plan: PlanView | None = None
    residency: ResidencyView | None = None
    gateway: GatewayView
    numbers: NumbersView
    operator: OperatorView = OperatorView()
    events: tuple[EventRow, ...] = ()
    history: HistoryRow | None = None
    gauges: GaugesView | None = None
    fifth: FifthView | None = None
    ledger: LedgerRow | None = None
    cold: ColdView | None = None
    cache: CacheRow | None = None
    speed: SpeedRow | None = None
    host_kv: HostKvView | None = None
    prewarm: PrewarmRow | None = None
    watch: tuple[WatchLine, ...] = ()
    queue_wait: Times | None = None
    first_token: Times | None = None
