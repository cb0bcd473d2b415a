"""Turns what the daemon and the gateway know into the one StatusView. Pure.

Page, JSON, terminal and Prometheus are renderings of it; none of them computes anything.
What is an estimate: paces and tokens until the engine has counted, predicted waits, the drain rate. A predicted
wait that rests on no measured stream is not shown at all.
"""

from __future__ import annotations

from datetime import UTC, datetime

from gateway.admission_types import WaitKind
from gateway.snapshot import GatewaySnapshot, SeatView, StreamView
from gateway.state import BoxState, EngineState, Phase
from gateway.status.cold import cold_view, why_said, why_told
from gateway.status.figures import Figure, Tone, compact, count, pace, per_minute, percent, seconds, size
from gateway.status.findings import arranged, files_of, raised
from gateway.status.gauges import gauges_view
from gateway.status.history import fifth_view, history_row, ledger_row
from gateway.status.operator import event_rows, operator_view
from gateway.status.plan import plan_view
from gateway.status.probes import probe_findings, probe_rows
from gateway.status.residency import residency_view
from gateway.status.trial import trial_findings
from gateway.status.verdict import verdict
from gateway.status.views import (
    EngineView,
    GatewayView,
    LanesView,
    LaneView,
    NumbersView,
    QueueRow,
    QueueView,
    SeatRow,
    StatusView,
)
from gateway.status.warm import cache_row, host_kv_view, prewarm_row, speed_row, watch_lines

DEMO_LABEL = "demo model: tests the plumbing, not the answers"
SCALE_FLOORS = 2.0
"""A lane's bar is full at this many times the floor, so that the floor stands in the middle."""

_HEADLINES = {
    Phase.OFF: ("Off", Tone.WARN),
    Phase.REFUSED: ("Refused", Tone.BAD),
    Phase.PREPARING: ("Preparing", Tone.WARN),
    Phase.STARTING: ("Starting", Tone.WARN),
    Phase.WARMING: ("Warming up", Tone.WARN),
    Phase.READY: ("Ready", Tone.OK),
    Phase.STOPPING: ("Stopping", Tone.WARN),
    Phase.BACKOFF: ("Waiting to start again", Tone.BAD),
    Phase.FAILED: ("Failed", Tone.BAD),
    Phase.NEEDS_REBOOT: ("Needs a reboot", Tone.BAD),
}
_NOT_FAILED = frozenset({"ok", "refused", "client_gone"})


def view(box: BoxState, gateway: GatewaySnapshot | None, now_s: float) -> StatusView:
    """Everything that is said at `now_s` (wall clock, seconds). `gateway` None = it does not answer."""
    findings = arranged((*box.findings, *trial_findings(box.engine), *probe_findings(box.engine), *raised(gateway)))
    queue = _queue(gateway)
    return StatusView(
        at_s=now_s,
        at=datetime.fromtimestamp(now_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        version=box.version,
        public_url=box.public_url,
        uptime=_since(box.started_s, now_s),
        verdict=verdict(box, gateway, queue, findings, now_s),
        engine=_engine(box.engine, now_s),
        probes=probe_rows(box.engine),
        lanes=_lanes(box.engine, gateway),
        queue=queue,
        seats=_seats(gateway),
        files=files_of(gateway),
        findings=findings,
        plan=plan_view(box.plan),
        residency=residency_view(box.engine, now_s),
        gateway=_gateway(box, gateway, now_s),
        numbers=_numbers(gateway),
        operator=operator_view(box, gateway, now_s),
        events=event_rows(box, gateway, now_s),
        history=history_row(box.engine, gateway),
        gauges=gauges_view(box.gauges, now_s),
        fifth=fifth_view(gateway.ledger if gateway else None),
        ledger=ledger_row(gateway.ledger if gateway else None, now_s),
        cold=cold_view(gateway),
        cache=cache_row(gateway.cache if gateway else None),
        speed=speed_row(box.engine, gateway.speed if gateway else None),
        host_kv=host_kv_view(box.engine),
        prewarm=prewarm_row(gateway.prewarm if gateway else None),
        watch=watch_lines(gateway),
        queue_wait=gateway.queue_wait if gateway else None,
        first_token=gateway.first_token if gateway else None,
    )


def _since(start_s: float, now_s: float) -> Figure:
    return seconds(now_s - start_s) if start_s > 0 else Figure()


def _engine(engine: EngineState, now_s: float) -> EngineView:
    headline, tone = _HEADLINES[engine.phase]
    phase_for = _since(engine.since_s, now_s)
    profile = engine.profile
    return EngineView(
        phase=str(engine.phase),
        headline=headline,
        tone=tone,
        step=f"helps box 0 at {profile.helps}" if engine.phase is Phase.READY and profile.helps else engine.step,
        progress=percent(engine.progress),
        kind=engine.kind,
        profile=profile.name,
        demo_label=DEMO_LABEL if profile.demo else None,
        models=engine.models,
        context_tokens=count(engine.context_tokens),
        streams=profile.streams,
        floor=pace(profile.floor_tok_per_s if profile.floor_tok_per_s > 0 else None),
        warm_pace=pace(engine.warm_tok_per_s),
        pid=engine.pid,
        phase_for=phase_for,
        uptime=phase_for if engine.phase is Phase.READY else Figure(),
        restarts=engine.restarts,
        cause=engine.cause.title if engine.cause else None,
        remedy=engine.cause.remedy if engine.cause else None,
        retry_in=seconds(None if engine.retry_at_s is None else engine.retry_at_s - now_s),
        log_tail=engine.log_tail,
        start_progress=percent(engine.start_progress, estimated=True),
        left=seconds(engine.left_s, estimated=True),
    )


def _lanes(engine: EngineState, gateway: GatewaySnapshot | None) -> LanesView:
    floor = engine.profile.floor_tok_per_s
    running = gateway.running if gateway else ()
    fastest = max((stream.tok_per_s or 0.0 for stream in running), default=0.0)
    scale = floor * SCALE_FLOORS if floor > 0 else max(1.0, fastest)
    most = gateway.streams_max if gateway else engine.profile.streams
    rows = [_lane(number, stream, number > most, floor, scale) for number, stream in enumerate(running, start=1)]
    rows += [LaneView(number=number, busy=False) for number in range(len(running) + 1, most + 1)]
    return LanesView(
        known=gateway is not None,
        open=gateway is not None and not gateway.draining and not gateway.closed and engine.phase is Phase.READY,
        busy=len(running),
        streams_max=most,
        scale_tok_per_s=scale,
        floor_share=1 / SCALE_FLOORS if floor > 0 else None,
        rows=tuple(rows),
    )


def _lane(number: int, stream: StreamView, extra: bool, floor: float, scale: float) -> LaneView:
    # before the first token nothing of a pace is known, whatever the snapshot says
    rate = stream.tok_per_s if stream.tokens else None
    return LaneView(
        number=number,
        busy=True,
        extra=extra,
        seat=stream.seat,
        request_id=stream.request_id,
        route=stream.route,
        step=stream.step,
        age=seconds(stream.age_s),
        tokens=count(stream.tokens, estimated=stream.estimated and stream.tokens > 0),
        tok_per_s=pace(rate, estimated=stream.estimated),
        share=None if rate is None else round(min(1.0, max(0.0, rate / scale)), 3),
        below_floor=rate is not None and rate < floor,
    )


def _queue(gateway: GatewaySnapshot | None) -> QueueView:
    if gateway is None:
        return QueueView(depth=0, max=0, deadline=Figure(), next_free=Figure(), rows=())
    measured = gateway.mean_hold_s is not None
    rows = tuple(
        QueueRow(
            position=waiting.position,
            seat=waiting.seat,
            request_id=waiting.request_id,
            waited=seconds(waiting.waited_s),
            predicted=seconds(waiting.predicted_s if measured else None, estimated=True),
            kind=waiting.why,
            why=why_told(waiting, gateway.lane),
            why_said=why_said(waiting),
            uncached=compact(waiting.uncached_tokens, estimated=True),
        )
        for waiting in gateway.waiting
    )
    return QueueView(
        depth=len(rows),
        max=gateway.queue_max,
        deadline=seconds(gateway.queue_deadline_s),
        next_free=seconds(_next_free_s(gateway) if measured else None, estimated=True),
        rows=rows,
        waited_s=gateway.history.waited_s if gateway.history else {},
    )


def _next_free_s(gateway: GatewaySnapshot) -> float | None:
    """When a ticket comes back, as those say who wait for one; an older gateway tells the first one's turn only."""
    if gateway.waiting and not gateway.waiting[0].why:
        return gateway.waiting[0].predicted_s
    return next((waiting.why_s for waiting in gateway.waiting if waiting.why == WaitKind.STREAMS_BUSY), None)


def _seats(gateway: GatewaySnapshot | None) -> tuple[SeatRow, ...]:
    return tuple(_seat(seat) for seat in (gateway.seats if gateway else ()))


def _seat(seat: SeatView) -> SeatRow:
    used, budget = seat.month_tokens, seat.budget_tokens
    return SeatRow(
        name=seat.name,
        state=seat.state,
        max_streams=count(seat.max_streams),
        running=seat.running,
        waiting=seat.waiting,
        served=count(seat.served),
        refused=count(seat.refused),
        failed=count(seat.failed),
        tokens_out=count(seat.tokens_out),
        prompt_tokens=count(seat.prompt_tokens),
        cached_tokens=count(seat.cached_tokens),
        hit_share=percent(seat.hit_share),
        expected_share=percent(seat.expected_share, estimated=True),
        expected_tokens=count(seat.expected_tokens, estimated=bool(seat.expected_tokens)),
        over_share=seat.over_share,
        wait_p95=seconds(seat.wait_p95_s),
        month_tokens=compact(used),
        budget_tokens=compact(budget),
        budget_share=round(min(1.0, used / budget), 3) if used is not None and budget else None,
        over_budget=seat.over_budget,
        off_by=seat.off_by,
    )


def _gateway(box: BoxState, gateway: GatewaySnapshot | None, now_s: float) -> GatewayView:
    started_s = gateway.started_s if gateway else box.gateway.since_s
    return GatewayView(
        state="absent" if gateway is None else "draining" if gateway.draining else "serving",
        pid=gateway.pid if gateway else box.gateway.pid,
        restarts=box.gateway.restarts,
        uptime=_since(started_s, now_s) if gateway else Figure(),
        started_s=started_s or None,
        last_exit=box.gateway.last_exit,
        closed=gateway.closed if gateway else None,
    )


def _numbers(gateway: GatewaySnapshot | None) -> NumbersView:
    if gateway is None:
        return NumbersView(**dict.fromkeys(NumbersView.model_fields, Figure()))
    outcomes = gateway.outcomes
    hold_s, there = gateway.mean_hold_s, gateway.connections
    return NumbersView(
        served=count(outcomes.get("ok", 0)),
        refused=count(outcomes.get("refused", 0)),
        failed=count(sum(n for word, n in outcomes.items() if word not in _NOT_FAILED)),
        left=count(outcomes.get("client_gone", 0)),
        runs=count(gateway.runs),
        mean_hold=seconds(hold_s),
        drain_rate=per_minute(gateway.streams_max * 60 / hold_s if hold_s else None, estimated=True),
        body_bytes=size(gateway.body_bytes),
        body_budget_bytes=size(gateway.body_budget_bytes),
        connections=count(there.open if there else None),
        connections_max=count(there.most if there else None),
        connections_refused=count(there.refused if there else None),
        connections_given_up=count(there.given_up if there else None),
    )
