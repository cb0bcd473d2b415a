"""Takes the gateway's snapshot from the live core. Reads only; touches the clocks."""

from __future__ import annotations

import os
import time
from collections import Counter
from typing import Any

from gateway.admission_types import AdmissionView, TicketId
from gateway.core import Core
from gateway.exchange import Exchange
from gateway.history import Look
from gateway.keyfile import HeldFile
from gateway.learning.paces import SETTLED_TOKENS
from gateway.learning.watch import WatchRow
from gateway.learning.watch_findings import watch_findings
from gateway.ledger.view import ledger_findings, month_of
from gateway.limits import cap_of
from gateway.overlay import Overlay
from gateway.prefix.index import SeatHits
from gateway.prewarm.files import unknown_seats
from gateway.seats import AdminBook, SeatBook
from gateway.snapshot import (
    CacheView,
    ConnectionsView,
    FileView,
    GatewaySnapshot,
    LaneSnapshot,
    SeatView,
    SpeedView,
    StreamView,
    Times,
    WaitingView,
)
from gateway.standing import Standing
from gateway.state import Finding
from gateway.tallies import BOUNDS_S, Histogram

EVENTS_SHOWN = 50
"""Events in a snapshot; `moe-appliance events` reads more."""


def snapshot(core: Core) -> GatewaySnapshot:
    """Everything the page shows of this process, now."""
    now_s = core.limiter.loop.time()
    standing = core.limiter.policy.standing(now_s)
    admission, watch = standing.view(), core.care.watch.rows(now_s)
    return GatewaySnapshot(
        at_s=time.time(),
        started_s=core.started_s,
        pid=os.getpid(),
        draining=core.draining,
        closed=str(admission.closed) if admission.closed else None,
        streams_max=admission.limits.streams,
        running=_running(core, admission, now_s),
        waiting=_waiting(core, admission, standing, now_s),
        queue_max=admission.limits.queue_max,
        queue_deadline_s=admission.limits.queue_deadline_s,
        mean_hold_s=admission.mean_hold_s if admission.measured_holds else None,
        body_bytes=core.bodies.used_bytes,
        body_budget_bytes=core.bodies.total_bytes,
        seats=_seats(core, admission),
        files=(_file(core.seats, core.seats.value), _file(core.admins, core.admins.value)),
        outcomes=dict(sum_by_word(core.outcomes)),
        runs=core.runs.active(now_s),
        history=core.history.view(now_s, time.time()),
        events=core.events.recent(EVENTS_SHOWN),
        findings=(*core.overlay.findings(), *ledger_findings(core), *_engine_findings(core, watch)),
        ledger=core.ledger.state if core.ledger is not None else None,
        lane=_lane(admission),
        speed=_speed(core, now_s),
        cache=_cache(core, now_s),
        prewarm=core.prewarm.state,
        watch=watch,
        **_mode(core.overlay.value),
        **_measured(core),
    )


def _running(core: Core, admission: AdmissionView, now_s: float) -> tuple[StreamView, ...]:
    by_ticket = _by_ticket(core)
    return tuple(
        StreamView(
            request_id=exchange.outcome.request_id,
            seat=seat,
            route=exchange.outcome.route,
            step=exchange.step,
            age_s=now_s - since_s,
            tokens=meter.tokens if meter else 0,
            tok_per_s=meter.tok_per_s if meter else None,
            estimated=meter.estimated if meter else True,
        )
        for id, seat, since_s in admission.running
        if (exchange := by_ticket.get(id)) is not None
        for meter in (exchange.meter,)
    )


def _waiting(core: Core, admission: AdmissionView, standing: Standing, now_s: float) -> tuple[WaitingView, ...]:
    by_ticket, waits, why = _by_ticket(core), standing.predicted_waits(), standing.waits()
    return tuple(
        WaitingView(
            request_id=by_ticket[id].outcome.request_id if id in by_ticket else "",
            seat=seat,
            position=position,
            waited_s=now_s - arrived_s,
            predicted_s=None if admission.held else waits[id],
            why=str(why[id].kind),
            why_s=why[id].seconds,
            why_tokens=why[id].tokens,
            why_own=why[id].own,
            uncached_tokens=admission.costs[id].uncached_tokens,
        )
        for position, (id, seat, arrived_s) in enumerate(admission.waiting, start=1)
    )


def _by_ticket(core: Core) -> dict[TicketId, Exchange]:
    return {exchange.place.id: exchange for exchange in core.live if exchange.place is not None}


def _lane(admission: AdmissionView) -> LaneSnapshot:
    lane = admission.lane
    seats = {id: seat for id, seat, _ in (*admission.running, *admission.waiting)}
    tokens = {id: cost.uncached_tokens for id, cost in admission.costs.items()}
    return LaneSnapshot(
        cold_tokens=admission.limits.cold_tokens,
        short_s=admission.limits.short_s,
        reading_seat=seats[lane.reading] if lane.reading is not None else "",
        reading_tokens=tokens[lane.reading] if lane.reading is not None else None,
        reading_left_s=lane.reading_left_s,
        next_seat=seats[lane.next] if lane.next is not None else "",
        next_tokens=tokens[lane.next] if lane.next is not None else None,
        spacing_left_s=lane.spacing_left_s,
        quiet_left_s=lane.quiet_left_s,
        closed=lane.closed,
    )


def _speed(core: Core, now_s: float) -> SpeedView:
    care, curve = core.care, core.care.known.curve
    pace = care.pace(now_s)
    return SpeedView(
        pace_tok_per_s=pace.tok_per_s,
        pace_replies=pace.replies,
        prefill_100k_s=curve.predict_s(100_000, 0),
        prefill_measured=curve.measured,
        prefill_fitted=curve.fitted,
        cap=core.limiter.policy.limits.streams,
        cap_validated=cap_of(core.settings.admission, core.engine_state.profile),
    )


def _cache(core: Core, now_s: float) -> CacheView:
    index = core.care.index
    return CacheView(
        held_tokens=index.held_tokens,
        capacity_tokens=index.capacity_tokens,
        losses=index.losses,
        losses_lately=index.losses_lately(now_s),
    )


def _mode(overlay: Overlay) -> dict[str, Any]:
    changed = overlay.changed
    set_by = {"mode_by": changed.by, "mode_since_s": changed.at_s} if changed is not None else {}
    return {"mode": str(overlay.mode), **set_by}


def _measured(core: Core) -> dict[str, Any]:
    table, tallies = core.connections, core.tallies
    return {
        "connections": ConnectionsView(
            open=table.open, most=table.most, refused=table.refused, given_up=table.given_up
        ),
        "queue_wait": _times(tallies.waits),
        "first_token": _times(tallies.first_tokens),
    }


def _times(found: Histogram) -> Times:
    return Times(bounds_s=BOUNDS_S, counts=tuple(found.counts), sum_s=found.sum_s)


def note_history(core: Core) -> None:
    """One look for the sparklines; app.py takes one with each sweep."""
    paces = [
        exchange.meter.tok_per_s
        for exchange in core.live
        if exchange.place is not None and exchange.meter is not None and exchange.meter.tokens >= SETTLED_TOKENS
    ]
    slowest = min((pace for pace in paces if pace is not None), default=None)
    total, now_s = core.tallies.total, core.limiter.loop.time()
    standing = core.limiter.policy.standing(now_s)
    lane = standing.lane()
    look = Look(
        streams=len(standing.books.running),
        slowest_tok_per_s=slowest,
        prompt_tokens=total.prompt_tokens,
        cached_tokens=total.cached_tokens,
        reading=lane.reading is not None,
        closed=lane.closed,
        waiting=Counter(str(wait.kind) for wait in standing.waits().values()),
    )
    core.history.add(now_s, look)


def sum_by_word(outcomes: Counter[tuple[str, str]]) -> Counter[str]:
    """Outcomes of all seats together."""
    total: Counter[str] = Counter()
    for (_, word), count in outcomes.items():
        total[word] += count
    return total


def _seats(core: Core, admission: AdmissionView) -> tuple[SeatView, ...]:
    now_s = time.time()
    running = Counter(seat for _, seat, _ in admission.running)
    waiting = Counter(seat for _, seat, _ in admission.waiting)
    outcomes = core.outcomes
    rows = []
    for name, account in core.seats.value.accounts.items():
        tally, budget = core.tallies.of(name), account.tokens_per_month
        hits = core.care.index.hits.get(name) or SeatHits()
        month = month_of(core, name, budget)
        failed = sum(outcomes[name, word] for word in ("engine_lost", "engine_error", "ended", "failed"))
        rows.append(
            SeatView(
                name=name,
                state=str(account.state(now_s)),
                max_streams=account.max_streams,
                running=running[name],
                waiting=waiting[name],
                served=outcomes[name, "ok"],
                refused=outcomes[name, "refused"],
                failed=failed,
                tokens_out=core.tokens_out[name],
                prompt_tokens=tally.prompt_tokens,
                cached_tokens=tally.cached_tokens,
                hit_share=tally.hit_share,
                expected_share=hits.expected_tokens / hits.prompt_tokens if hits.prompt_tokens else None,
                expected_tokens=hits.expected_tokens,
                over_share=name in admission.over_share,
                wait_p95_s=tally.wait_p95_s,
                off_by=account.off_by,
                month_tokens=None if month is None else month.counted,
                budget_tokens=budget,
                over_budget=month is not None and month.over,
            )
        )
    return tuple(rows)


def _engine_findings(core: Core, rows: tuple[WatchRow, ...]) -> tuple[Finding, ...]:
    """What was learned and lost, and what the floor guard, the prefix watch and the prewarm found."""
    slow = core.care.guard.findings() if core.care.guard is not None else ()
    nobodys = unknown_seats(core.settings.prefixes, core.seats.value.accounts.keys())
    learned = core.care.learned.findings()
    return (*learned, *slow, *watch_findings(rows), *core.prewarm.findings(), *nobodys)


def _file(held: HeldFile[SeatBook] | HeldFile[AdminBook], book: SeatBook | AdminBook) -> FileView:
    return FileView(
        path=str(held.path),
        error=held.broken.error if held.broken else None,
        missing=book.file_missing,
    )
