"""States of a made-up box, for the tests of the page and its twins."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gateway.learning.divergence import Divergence, Origin
from gateway.learning.watch import WatchRow
from gateway.ledger.rows import Activity, LedgerState
from gateway.prewarm.queue import PrewarmState
from gateway.snapshot import (
    CacheView,
    FileView,
    GatewaySnapshot,
    HistoryView,
    LaneSnapshot,
    SeatView,
    SpeedView,
    StreamView,
    WaitingView,
)
from gateway.state import (
    BoxState,
    Cause,
    EngineProfile,
    EngineState,
    Event,
    Finding,
    GatewayState,
    GaugesState,
    GpuGauge,
    HostKv,
    Phase,
    Severity,
)

NOW_S = 1_800_000_000.0
GPU = Cause(id="engine.gpu_memory", title="No space is left on the GPU.", remedy="nvidia-smi")
PROFILE = EngineProfile(name="sample", floor_tok_per_s=40.0, cold_tokens=12_000, streams=4)


def engine(phase: Phase = Phase.READY, **changes: Any) -> EngineState:
    base = EngineState(
        phase=phase,
        kind="command",
        start_id="one",
        since_s=NOW_S - 125,
        models=("sample-model",),
        context_tokens=131_072,
        profile=PROFILE,
        log_tail=("main: model loaded", "srv init: listening"),
    )
    return base.model_copy(update=changes)


def box(phase: Phase = Phase.READY, *, findings: tuple[Finding, ...] = (), **changes: Any) -> BoxState:
    return BoxState(
        revision=3,
        version="0.1.0",
        started_s=NOW_S - 300,
        public_url="http://box.example:8080",
        engine=engine(phase, **changes),
        gateway=GatewayState(pid=11, since_s=NOW_S - 200, restarts=1),
        findings=findings,
    )


def stream(seat: str = "ana", **changes: Any) -> StreamView:
    base = StreamView(
        request_id=f"req-{seat}",
        seat=seat,
        route="/v1/chat/completions",
        step="decode",
        age_s=12.3,
        tokens=500,
        tok_per_s=61.2,
        estimated=True,
    )
    return base.model_copy(update=changes)


def waiting(position: int, seat: str = "ben", **changes: Any) -> WaitingView:
    base = WaitingView(
        request_id=f"wait-{position}", seat=seat, position=position, waited_s=2.0, predicted_s=5.6 * position
    )
    return base.model_copy(update=changes)


def lane(**changes: Any) -> LaneSnapshot:
    """The gate is closed for a long prompt of ana."""
    base = LaneSnapshot(
        cold_tokens=12_000, short_s=5.0, next_seat="ana", next_tokens=128_300, quiet_left_s=14.2, closed=True
    )
    return base.model_copy(update=changes)


def watch_row(seat: str = "ben", client: str = "claude-cli", **changes: Any) -> WatchRow:
    base = WatchRow(
        seat=seat,
        client=client,
        turns=41,
        expected_share=0.951,
        real_share=0.716,
        of=10,
        changed=4,
        missed=0,
        lost_s=63.4,
        last=Divergence(18_212, "system prompt", "*: a+=x+; a+=", Origin.BILLING),
    )
    return replace(base, **changes)


def cared(found: GatewaySnapshot) -> GatewaySnapshot:
    """The same with a cold lane, a cache and a speed that something is known of."""
    line = (
        waiting(1, "ana", why="quiet", why_s=14.2, uncached_tokens=128_300),
        waiting(2, "ben", why="gate", why_s=43.0, why_tokens=128_300, uncached_tokens=900),
    )
    changes = {
        "waiting": line,
        "lane": lane(),
        "cache": CacheView(held_tokens=612_400, capacity_tokens=800_000, losses=2, losses_lately=1),
        "speed": SpeedView(
            pace_tok_per_s=47.3,
            pace_replies=31,
            prefill_100k_s=13.6,
            prefill_measured=42,
            prefill_fitted=True,
            cap=4,
            cap_validated=4,
        ),
        "prewarm": PrewarmState(of=5, done=4, now="a conversation of dana", tokens=248_000, seconds=39.2, cut=1),
        "watch": (
            watch_row("ana", "codex", changed=0, lost_s=0.0, expected_share=0.962, real_share=0.958, last=None),
            watch_row(),
        ),
    }
    return found.model_copy(update=changes)


def seat(name: str = "ana", **changes: Any) -> SeatView:
    base = SeatView(
        name=name,
        state="active",
        max_streams=None,
        running=1,
        waiting=0,
        served=1250,
        refused=2,
        failed=1,
        tokens_out=98_000,
    )
    return base.model_copy(update=changes)


def files(seats_error: str | None = None, *, missing: bool = False) -> tuple[FileView, ...]:
    return (
        FileView(path="/etc/moe-appliance/seats.toml", error=seats_error, missing=missing),
        FileView(path="/etc/moe-appliance/admins.toml", error=None, missing=False),
    )


def gateway(running: int = 2, wait: int = 0, **changes: Any) -> GatewaySnapshot:
    base = GatewaySnapshot(
        at_s=NOW_S,
        started_s=NOW_S - 200,
        pid=12,
        draining=False,
        closed=None,
        streams_max=4,
        running=tuple(stream(f"seat{n}") for n in range(running)),
        waiting=tuple(waiting(n + 1) for n in range(wait)),
        queue_max=32,
        queue_deadline_s=180.0,
        mean_hold_s=22.4,
        body_bytes=1024 * 1024,
        body_budget_bytes=256 * 1024 * 1024,
        seats=(seat("ana"), seat("ben", max_streams=1)),
        files=files(),
        runs=3,
        outcomes={"ok": 1311, "refused": 11, "client_gone": 7, "engine_lost": 1, "failed": 2},
    )
    return base.model_copy(update=changes)


def finding(id: str, severity: Severity = Severity.WARN, depends_on: str | None = None) -> Finding:
    return Finding(
        id=id,
        severity=severity,
        title=f"The {id} is wrong",
        observed="this",
        required="that",
        remedy=f"mend {id}",
        depends_on=depends_on,
    )


def lively() -> tuple[BoxState, GatewaySnapshot]:
    """A box on which something is to be seen in every part of the page."""
    activity = Activity(
        since_s=NOW_S - 14 * 86_400,
        until_s=NOW_S,
        days=9,
        hours=71.5,
        seats=17,
        requests=18_240,
        streams=4,
        duty_share=0.068,
        at_once=(0.31, 0.34, 0.21, 0.09, 0.042, 0.006, 0.002),
        above_share=0.008,
        waited_share=0.021,
        enough=True,
    )
    steps = range(720)
    history = HistoryView(
        step_s=5.0,
        until_s=NOW_S,
        streams=tuple(min(4, (n // 37) % 5) for n in steps),
        slowest_tok_per_s=tuple(None if (n // 37) % 5 == 0 else 44 + 9 * ((n * 7919) % 101) / 101 for n in steps),
        cached_share=tuple(0.8 + 0.15 * ((n * 104_729) % 89) / 89 if n % 3 == 0 else None for n in steps),
        reading_share=tuple(1.0 if (n * 31 + n // 7) % 41 < 3 else 0.0 for n in steps),
        reading_s=4_210.0,
        closed_s=1_130.0,
        waited_s={"gate": 812.0, "streams_busy": 5_210.0},
    )
    gauges = GaugesState(at_s=NOW_S - 1, gpus=tuple(gpu(n) for n in range(2)))
    events = (
        event("gateway.spawned", 3_700, "gateway process 12 was started"),
        event("engine.phase", 3_650, "the engine is ready: sample-model, 4 streams"),
        event("operator.seat", 900, "seat dana is switched off; its running streams end within 30 s", who="root"),
        event("requests.refused", 120, "3 requests refused: queue full", Severity.WARN),
    )
    seats = (
        seat("ana", running=1, hit_share=0.93, expected_share=0.954, expected_tokens=7_400_000,
             wait_p95_s=0.4, month_tokens=12_400_000, budget_tokens=20_000_000),
        seat("ben", running=2, waiting=1, max_streams=2, hit_share=0.71, expected_share=0.95, over_share=True,
             wait_p95_s=3.2, month_tokens=3_070_000),
        seat("chris", running=1, hit_share=0.88, wait_p95_s=1.1, month_tokens=31_000_000, budget_tokens=30_000_000,
             over_budget=True),
        seat("dana", running=0, state="disabled", off_by="root", month_tokens=180_000),
    )  # fmt: skip
    found = gateway(
        3,
        2,
        seats=seats,
        history=history,
        events=events,
        ledger=LedgerState(rows=18_240, size_bytes=9_400_000, oldest_s=NOW_S - 40 * 86_400, busy=activity),
    )
    tier = HostKv(bytes=64 * 1024**3, on=True)
    return box(context_tokens=262_144, host_kv=tier).model_copy(update={"gauges": gauges}), cared(found)


def gpu(index: int, **changes: Any) -> GpuGauge:
    base = GpuGauge(
        index=index,
        name="NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
        busy_share=0.87,
        memory_used_bytes=88 * 1024**3,
        memory_total_bytes=96 * 1024**3,
        temperature_c=71.0,
        power_w=512.3,
        power_limit_w=600.0,
        pcie_rx_bytes_per_s=21.0e9,
        pcie_tx_bytes_per_s=3.1e6,
        link_gen=5,
        link_width=16,
        slowed_by=("power cap",) if index else (),
    )
    return base.model_copy(update=changes)


def event(kind: str, ago_s: float, text: str, severity: Severity = Severity.INFO, who: str = "") -> Event:
    return Event(id=f"{kind}-{ago_s:g}", at_s=NOW_S - ago_s, kind=kind, severity=severity, text=text, who=who)
