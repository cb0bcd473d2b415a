"""Takes the gateway's snapshot from the live core. Reads only; touches the clocks."""

from __future__ import annotations

import os
import time
from collections import Counter
from typing import Any

from gateway.core import Core
from gateway.keyfile import HeldFile
from gateway.ledger.view import ledger_findings, month_of
from gateway.overlay import Overlay
from gateway.seats import AdminBook, SeatBook
from gateway.snapshot import ConnectionsView, FileView, GatewaySnapshot, SeatView, StreamView, Times, WaitingView
from gateway.tallies import BOUNDS_S, Histogram

SETTLED_TOKENS = 32
"""A pace of fewer tokens is an accident of its first pauses, and no stream that is slow."""


EVENTS_SHOWN = 50
"""Events in a snapshot; `moe-appliance events` reads more."""


def snapshot(core: Core) -> GatewaySnapshot:
    """Everything the page shows of this process, now."""
    now_s = core.limiter.loop.time()
    policy = core.limiter.policy
    admission = policy.view()
    by_ticket = {exchange.place.id: exchange for exchange in core.live if exchange.place is not None}
    running = []
    for id, seat, since_s in admission.running:
        exchange = by_ticket.get(id)
        if exchange is None:
            continue
        meter = exchange.meter
        running.append(
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
        )
    waits = policy.predicted_waits(now_s)
    waiting = tuple(
        WaitingView(
            request_id=by_ticket[id].outcome.request_id if id in by_ticket else "",
            seat=seat,
            position=position,
            waited_s=now_s - arrived_s,
            predicted_s=None if admission.held else waits[id],
        )
        for position, (id, seat, arrived_s) in enumerate(admission.waiting, start=1)
    )
    return GatewaySnapshot(
        at_s=time.time(),
        started_s=core.started_s,
        pid=os.getpid(),
        draining=core.draining,
        closed=str(admission.closed) if admission.closed else None,
        streams_max=admission.limits.streams,
        running=tuple(running),
        waiting=waiting,
        queue_max=admission.limits.queue_max,
        queue_deadline_s=admission.limits.queue_deadline_s,
        mean_hold_s=admission.mean_hold_s if admission.measured_holds else None,
        body_bytes=core.bodies.used_bytes,
        body_budget_bytes=core.bodies.total_bytes,
        seats=_seats(core, Counter(s for _, s, _ in admission.running), Counter(s for _, s, _ in admission.waiting)),
        files=(_file(core.seats, core.seats.value), _file(core.admins, core.admins.value)),
        outcomes=dict(sum_by_word(core.outcomes)),
        runs=core.runs.active(now_s),
        history=core.history.view(now_s, time.time()),
        events=core.events.recent(EVENTS_SHOWN),
        findings=(*core.overlay.findings(), *ledger_findings(core)),
        ledger=core.ledger.state if core.ledger is not None else None,
        **_mode(core.overlay.value),
        **_measured(core),
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
    total = core.tallies.total
    streams = len(core.limiter.view().running)
    core.history.add(core.limiter.loop.time(), streams, slowest, total.prompt_tokens, total.cached_tokens)


def sum_by_word(outcomes: Counter[tuple[str, str]]) -> Counter[str]:
    """Outcomes of all seats together."""
    total: Counter[str] = Counter()
    for (_, word), count in outcomes.items():
        total[word] += count
    return total


def _seats(core: Core, running: Counter[str], waiting: Counter[str]) -> tuple[SeatView, ...]:
    now_s = time.time()
    outcomes = core.outcomes
    rows = []
    for name, account in core.seats.value.accounts.items():
        tally, budget = core.tallies.of(name), account.tokens_per_month
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
                wait_p95_s=tally.wait_p95_s,
                off_by=account.off_by,
                month_tokens=None if month is None else month.counted,
                budget_tokens=budget,
                over_budget=month is not None and month.over,
            )
        )
    return tuple(rows)


def _file(held: HeldFile[SeatBook] | HeldFile[AdminBook], book: SeatBook | AdminBook) -> FileView:
    return FileView(
        path=str(held.path),
        error=held.broken.error if held.broken else None,
        missing=book.file_missing,
    )
