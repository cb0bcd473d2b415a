"""States of a made-up box, for the tests of the page and its twins."""

from __future__ import annotations

from typing import Any

from gateway.snapshot import FileView, GatewaySnapshot, SeatView, StreamView, WaitingView
from gateway.state import BoxState, Cause, EngineProfile, EngineState, Finding, GatewayState, Phase, Severity

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


def waiting(position: int, seat: str = "ben") -> WaitingView:
    return WaitingView(
        request_id=f"wait-{position}", seat=seat, position=position, waited_s=2.0, predicted_s=5.6 * position
    )


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
