"""Writes a StatusView as Prometheus text. Pure: a registry of its own for each rendering, no global state.

Rules:
- A figure that is not known is left out; no sample ever stands for "I do not know".
- Counters are since the gateway started, the engine's own since it started; their reset is a restart of either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from gateway.metrics_families import counter, gauge, gauges, one_of
from gateway.metrics_prompts import prompt_metrics
from gateway.overlay import Mode
from gateway.snapshot import Times
from gateway.state import Phase, Severity
from gateway.status.figures import Figure
from gateway.status.live import GaugesView, ResidencyView
from gateway.status.views import FindingRow, NumbersView, StatusView

_OUTCOMES = ("served", "refused", "failed")
_GPU_FIGURES = (
    ("busy_ratio", "Share of time in which the card computes.", "busy"),
    ("memory_used_bytes", "Memory in use.", "memory_used"),
    ("memory_total_bytes", "Memory of the card.", "memory_total"),
    ("temperature_celsius", "Temperature of the chip.", "temperature"),
    ("power_watts", "Power drawn.", "power"),
    ("power_limit_watts", "Power that the card may draw.", "power_limit"),
    ("pcie_rx_bytes_per_second", "Bytes that the card receives over PCIe.", "pcie_rx"),
    ("pcie_tx_bytes_per_second", "Bytes that the card sends over PCIe.", "pcie_tx"),
)


class _Status(Collector):
    def __init__(self, view: StatusView) -> None:
        self._view = view

    def describe(self) -> list[Metric]:
        """Nothing: the names depend on what is known."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All metrics of the view."""
        yield from _box(self._view)
        yield from _engine(self._view)
        yield from _plan(self._view)
        if self._view.residency is not None:
            yield from _residency(self._view.residency)
        if self._view.gauges is not None:
            yield from _gauges(self._view.gauges)
        if self._view.gateway.state != "absent":
            yield from _streams(self._view)
            yield from _seats(self._view)
            yield from _budgets(self._view)
            yield from _operator(self._view)
            yield from prompt_metrics(self._view)


def render(view: StatusView) -> tuple[bytes, str]:
    """The text and its content type."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Status(view))
    return generate_latest(registry), CONTENT_TYPE_PLAIN_0_0_4


def _box(view: StatusView) -> Iterator[Metric]:
    info = GaugeMetricFamily("moe_build_info", "1; the version is in the label.", labels=["version"])
    info.add_metric([view.version], 1.0)
    yield info
    yield from gauge("moe_uptime_seconds", "Time since the daemon started.", view.uptime)
    yield one_of(
        "moe_verdict", "1 for how the box is: ok, warn or bad.", "tone", ["ok", "warn", "bad"], view.verdict.tone
    )
    yield one_of(
        "moe_gateway_state",
        "1 for the state of the gateway.",
        "state",
        ["serving", "draining", "absent"],
        view.gateway.state,
    )
    yield CounterMetricFamily(
        "moe_gateway_restarts_total", "Restarts of the gateway by the daemon.", value=view.gateway.restarts
    )
    severities = Counter(row.severity for row in _flat(view.findings))
    findings = GaugeMetricFamily("moe_findings", "Findings, folded ones too.", labels=["severity"])
    for severity in Severity:
        findings.add_metric([str(severity)], severities[severity])
    yield findings


def _flat(rows: tuple[FindingRow, ...]) -> Iterator[FindingRow]:
    for row in rows:
        yield row
        yield from _flat(row.folded)


def _engine(view: StatusView) -> Iterator[Metric]:
    engine = view.engine
    yield one_of("moe_engine_phase", "1 for the engine's phase.", "phase", [str(p) for p in Phase], engine.phase)
    yield CounterMetricFamily("moe_engine_restarts_total", "Starts after a crash.", value=engine.restarts)
    yield from gauge("moe_engine_start_progress_ratio", "How far this step of a start is, 0 to 1.", engine.progress)
    yield from gauge("moe_engine_uptime_seconds", "Time since the engine became ready.", engine.uptime)
    yield from gauge("moe_engine_retry_seconds", "Time until the engine is started again.", engine.retry_in)
    yield from gauge("moe_engine_context_tokens", "Longest context, tokens.", engine.context_tokens)
    yield from gauge("moe_engine_floor_tokens_per_second", "Pace promised to one stream.", engine.floor)
    yield from gauge("moe_engine_warm_tokens_per_second", "Pace measured by the warm-up.", engine.warm_pace)
    yield from gauge("moe_engine_demo", "1 for a demo model.", float(engine.demo_label is not None))
    if view.probes:
        worth = {"ok": 1.0, "failed": 0.0}
        rows = [((row.id,), worth.get(row.verdict)) for row in view.probes]
        yield gauges("moe_engine_probe", "1 for what the engine showed, 0 where it failed.", ["probe"], rows)


def _plan(view: StatusView) -> Iterator[Metric]:
    plan = view.plan
    if plan is None:
        return
    yield from gauge("moe_plan_fits", "1 when every card and node holds what the plan puts there.", float(plan.fits))
    yield from gauge("moe_plan_cold_experts", "Experts that the plan keeps in host RAM.", plan.cold)
    held = GaugeMetricFamily("moe_budget_bytes", "What a card or node must hold.", labels=["place", "line"])
    most = GaugeMetricFamily("moe_budget_capacity_bytes", "What a card or node has.", labels=["place"])
    for bar in plan.bars:
        for piece in bar.pieces:
            held.add_metric([bar.id, piece.id], piece.bytes.value or 0.0)
        if bar.capacity.value is not None:
            most.add_metric([bar.id], bar.capacity.value)
    yield from (held, most)


def _residency(said: ResidencyView) -> Iterator[Metric]:
    """Of the last reading, however old: a box without work makes none."""
    yield from gauge("moe_residency_cold_visits_ratio", "Share of visits to experts in host RAM.", said.cold_share)
    help = "Bytes of a token that cross each card's link for them, at most."
    yield from gauge("moe_residency_cold_bytes_per_token", help, said.token_bytes)
    yield from gauge("moe_residency_cold_bytes_per_second", "The same, a second.", said.link_rate)
    help = "Time since visits were read, or since the engine's start where none were."
    yield from gauge("moe_residency_reading_age_seconds", help, said.age)
    help = "Experts exchanged since the engine's start."
    yield from counter("moe_residency_exchanges_total", help, said.exchanges)


def _streams(view: StatusView) -> Iterator[Metric]:
    lanes, numbers = view.lanes, view.numbers
    yield from gauge("moe_streams_running", "Streams that hold a ticket.", lanes.busy)
    yield from gauge("moe_streams_max", "Streams that may run at once.", lanes.streams_max)
    below = sum(lane.below_floor for lane in lanes.rows)
    yield from gauge("moe_streams_below_floor", "Streams slower than the floor; paces are estimates.", below)
    paces = [lane.tok_per_s.value for lane in lanes.rows if lane.tok_per_s.value is not None]
    slowest = min(paces, default=None)
    yield from gauge("moe_stream_slowest_tokens_per_second", "Pace of the slowest stream, an estimate.", slowest)
    yield from gauge("moe_queue_depth", "Requests in line.", view.queue.depth)
    yield from gauge("moe_queue_max", "Requests that may wait.", view.queue.max)
    yield from gauge("moe_runs_active", "Agents' runs with a request in the last 90 s.", numbers.runs)
    yield from gauge("moe_stream_hold_seconds", "Mean time of a stream.", numbers.mean_hold)
    yield from gauge("moe_body_bytes", "Bytes of request bodies held now.", numbers.body_bytes)
    yield from gauge("moe_body_budget_bytes", "Bytes of request bodies that may be held.", numbers.body_budget_bytes)
    yield from _times("moe_queue_wait_seconds", "Waits for a ticket.", view.queue_wait)
    yield from _times("moe_first_token_seconds", "From a request to its first token, wait included.", view.first_token)
    yield from _connections(numbers)
    for row in view.files:
        name, help = f"moe_{row.kind}_file_broken", f"1 while the file of {row.kind} on disk cannot be used."
        yield from gauge(name, help, float(row.state == "broken"))
    outcomes = CounterMetricFamily("moe_outcomes_total", "Requests of everybody, known or not.", labels=["outcome"])
    for outcome in (*_OUTCOMES, "left"):
        figure: Figure = getattr(numbers, outcome)
        outcomes.add_metric([outcome], figure.value or 0.0)
    yield outcomes
    yield from gauge("moe_gateway_start_time_seconds", "When the gateway started, epoch.", view.gateway.started_s)


def _times(name: str, help: str, times: Times | None) -> Iterator[Metric]:
    if times is not None:
        bounds = [*(str(bound) for bound in times.bounds_s), "+Inf"]
        buckets = list(zip(bounds, accumulate(times.counts), strict=True))
        yield HistogramMetricFamily(name, help, buckets=buckets, sum_value=times.sum_s)


def _connections(numbers: NumbersView) -> Iterator[Metric]:
    yield from gauge("moe_connections_open", "Connections of clients.", numbers.connections)
    yield from gauge("moe_connections_max", "Connections that may be open.", numbers.connections_max)
    for name, help, figure in (
        ("moe_connections_refused_total", "Connections for which there was no room.", numbers.connections_refused),
        ("moe_connections_given_up_total", "Idle connections closed for others.", numbers.connections_given_up),
    ):
        if figure.value is not None:
            yield CounterMetricFamily(name, help, value=figure.value)


def _seats(view: StatusView) -> Iterator[Metric]:
    requests = CounterMetricFamily("moe_requests_total", "Requests of each seat.", labels=["seat", "outcome"])
    tokens = CounterMetricFamily("moe_tokens_out_total", "Output tokens of each seat.", labels=["seat"])
    running = GaugeMetricFamily("moe_seat_streams_running", "Streams of each seat.", labels=["seat"])
    waiting = GaugeMetricFamily("moe_seat_queue_depth", "Requests of each seat in line.", labels=["seat"])
    for seat in view.seats:
        for outcome in _OUTCOMES:
            figure: Figure = getattr(seat, outcome)
            requests.add_metric([seat.name, outcome], figure.value or 0.0)
        tokens.add_metric([seat.name], seat.tokens_out.value or 0.0)
        running.add_metric([seat.name], seat.running)
        waiting.add_metric([seat.name], seat.waiting)
    yield from (requests, tokens, running, waiting)


def _budgets(view: StatusView) -> Iterator[Metric]:
    figures = (
        (
            CounterMetricFamily,
            "moe_prompt_tokens_total",
            "Prompt tokens of each seat, where the engine told.",
            "prompt_tokens",
        ),
        (CounterMetricFamily, "moe_cached_tokens_total", "Of those, tokens that came from the cache.", "cached_tokens"),
        (
            GaugeMetricFamily,
            "moe_seat_wait_p95_seconds",
            "Wait that 95 of 100 latest requests did not exceed.",
            "wait_p95",
        ),
        (
            GaugeMetricFamily,
            "moe_seat_month_tokens",
            "Tokens of this month, UTC, that count against a budget.",
            "month_tokens",
        ),
        (GaugeMetricFamily, "moe_seat_budget_tokens", "Soft budget of a month.", "budget_tokens"),
    )
    for family, name, help, field in figures:
        made = family(name, help, labels=["seat"])
        for seat in view.seats:
            figure: Figure = getattr(seat, field)
            if figure.value is not None:
                made.add_metric([seat.name], figure.value)
        yield made


def _operator(view: StatusView) -> Iterator[Metric]:
    modes = [str(mode) for mode in Mode]
    yield one_of("moe_operator_mode", "1 for the mode that an operator set.", "mode", modes, view.operator.mode)
    by_hand = float(sum(bool(seat.off_by) for seat in view.seats))
    yield from gauge("moe_seats_off_by_hand", "Seats that an operator switched off.", by_hand)
    if view.ledger is not None:
        ledger = view.ledger
        yield from gauge("moe_ledger_ok", "1 while every request is kept.", float(ledger.ok))
        yield from gauge("moe_ledger_rows", "Requests in the ledger.", ledger.rows)
        yield from gauge("moe_ledger_bytes", "Size of the ledger on disk.", ledger.size)
        yield CounterMetricFamily(
            "moe_ledger_rows_lost_total", "Requests that could not be kept.", value=ledger.lost.value or 0.0
        )
    if view.fifth is not None and view.fifth.enough:
        yield from gauge(
            "moe_above_streams_ratio", "Share of working time in which more streams were wanted.", view.fifth.chance
        )


def _gauges(gauges: GaugesView) -> Iterator[Metric]:
    """Figures that are too old to act on are left out."""
    yield from gauge("moe_gpu_gauges_stale", "1 while the cards do not answer.", float(gauges.stale))
    yield from gauge("moe_gpu_gauges_age_seconds", "Time since the cards answered.", gauges.age)
    if gauges.stale:
        return
    for name, help, field in _GPU_FIGURES:
        made = GaugeMetricFamily(f"moe_gpu_{name}", help, labels=["gpu"])
        for gpu in gauges.gpus:
            figure: Figure = getattr(gpu, field)
            if figure.value is not None:
                made.add_metric([str(gpu.index)], figure.value)
        yield made
    slowed = GaugeMetricFamily("moe_gpu_slowed", "1 for each reason why a card is slowed.", labels=["gpu", "reason"])
    for gpu in gauges.gpus:
        for reason in gpu.slowed_by:
            slowed.add_metric([str(gpu.index), reason], 1.0)
    yield slowed
