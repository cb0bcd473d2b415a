"""What page, JSON, terminal and Prometheus say: one set of names, one way to write a figure. Pure.

Rules:
- A figure that was not measured has `estimated` set and `~` in its text; one that is not known is `–`.
- `value` is for programs (units in the field's name or docstring), `text` for people. Both say the same.
- Readers ignore unknown keys: an older command line reads a newer gateway.
"""

from __future__ import annotations

import math
from enum import StrEnum

from pydantic import BaseModel, ConfigDict, computed_field

from gateway.state import Severity

UNKNOWN = "–"


class _View(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Tone(StrEnum):
    """How good that is: BAD = nobody is served and somebody must act, WARN = look at it."""

    OK = "ok"
    WARN = "warn"
    BAD = "bad"


class Figure(_View):
    """A number as it is shown. `value` None = not known."""

    value: float | None = None
    text: str = UNKNOWN
    estimated: bool = False

    def __str__(self) -> str:
        return self.text


def _figure(value: float | None, text: str, estimated: bool) -> Figure:
    if value is None or not math.isfinite(value):
        return Figure()
    return Figure(value=value, text=f"~{text}" if estimated else text, estimated=estimated)


def count(value: int | None, *, estimated: bool = False) -> Figure:
    """A number of things, in groups of three: 128 000."""
    return _figure(value, f"{value or 0:,}".replace(",", " "), estimated)


def pace(value: float | None, *, estimated: bool = False) -> Figure:
    """Output tokens per second; what was declared (40) is not given a decimal that it never had."""
    rate = value or 0.0
    digits = 0 if rate >= 100 or (rate.is_integer() and not estimated) else 1
    return _figure(value, f"{rate:.{digits}f} tok/s", estimated)


def seconds(value: float | None, *, estimated: bool = False) -> Figure:
    """A time, seconds; never negative (clocks of two processes differ)."""
    value = None if value is None or not math.isfinite(value) else max(0.0, value)
    return _figure(value, _duration(value or 0.0, exact=not estimated), estimated)


def per_minute(value: float | None, *, estimated: bool = False) -> Figure:
    """How many a minute."""
    return _figure(value, f"{value or 0:.1f} / min", estimated)


def size(value: int | None) -> Figure:
    """Bytes, in MiB."""
    return _figure(value, f"{(value or 0) / (1024 * 1024):.1f} MiB", False)


def gib(value: int | None, *, estimated: bool = False) -> Figure:
    """Bytes, in GiB; what is there but small keeps a second decimal."""
    held = (value or 0) / 1024**3
    return _figure(value, f"{held:.2f} GiB" if 0 < abs(held) < 0.95 else f"{held:.1f} GiB", estimated)


def percent(share: float | None) -> Figure:
    """0..1 as per cent."""
    held = None if share is None or not math.isfinite(share) else min(1.0, max(0.0, share))
    return _figure(held, f"{int((held or 0.0) * 100)} %", False)


def _duration(value: float, exact: bool) -> str:
    """Seconds with a decimal below ten when they were measured, then minutes, hours, days."""
    if exact and value < 9.95:
        return f"{value:.1f} s" if value % 1 >= 0.05 else f"{value:.0f} s"
    whole = round(value) if exact else max(1, round(value))
    if whole < 120:
        return f"{whole} s"
    minutes = whole // 60
    if minutes < 60:
        return f"{minutes} min"
    hours = minutes // 60
    return f"{hours} h {minutes % 60} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


class Verdict(_View):
    """How the box is, in one sentence. `rule` is the number in status_verdict.py's list; `command` is what to
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


class EngineView(_View):
    """The engine. `phase_for`: time in this phase; `uptime`: the same while ready. `floor`: the pace promised to
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


class LaneView(_View):
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


class LanesView(_View):
    """All lanes. `known` is False while the gateway does not answer, `open` while a free lane takes nobody.
    `floor_share`: where the floor stands on the scale, 0..1; None = no floor."""

    known: bool
    open: bool
    busy: int
    streams_max: int
    scale_tok_per_s: float
    floor_share: float | None
    rows: tuple[LaneView, ...]


class QueueRow(_View):
    """One request in line; position 1 is next."""

    position: int
    seat: str
    request_id: str
    waited: Figure
    predicted: Figure


class QueueView(_View):
    """The line. `next_free`: when the next ticket is predicted to come back; `deadline`: the longest wait."""

    depth: int
    max: int
    deadline: Figure
    next_free: Figure
    rows: tuple[QueueRow, ...]


class SeatRow(_View):
    """One seat; counts are since the gateway started."""

    name: str
    state: str
    max_streams: Figure
    running: int
    waiting: int
    served: Figure
    refused: Figure
    failed: Figure
    tokens_out: Figure


class FileRow(_View):
    """A file that is read while the gateway runs: `kind` is seats or admins, `state` ok, missing or broken."""

    kind: str
    path: str
    name: str
    state: str
    error: str | None


class PieceView(_View):
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


class BarView(_View):
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


class KindRow(_View):
    """One kind of piece over all bars: its bytes in each, in the bars' order; unknown where a bar has none of it."""

    kind: int
    label: str
    when: str
    cells: tuple[Figure, ...]


class PlanView(_View):
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


class FindingRow(_View):
    """One finding; `folded` are those that it causes; `forced`: why an operator goes on in spite of it."""

    id: str
    severity: Severity
    title: str
    observed: str
    required: str
    remedy: str
    forced: str = ""
    folded: tuple[FindingRow, ...] = ()


class GatewayView(_View):
    """The gateway process: `state` is serving, draining or absent; `closed` why admission is closed."""

    state: str
    pid: int | None
    restarts: int
    uptime: Figure
    started_s: float | None
    last_exit: str
    closed: str | None


class NumbersView(_View):
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


class StatusView(_View):
    """Everything that is said about the box at `at_s`, wall-clock seconds."""

    at_s: float
    at: str
    version: str
    public_url: str
    uptime: Figure
    verdict: Verdict
    engine: EngineView
    lanes: LanesView
    queue: QueueView
    seats: tuple[SeatRow, ...]
    files: tuple[FileRow, ...]
    findings: tuple[FindingRow, ...]
    plan: PlanView | None = None
    gateway: GatewayView
    numbers: NumbersView
