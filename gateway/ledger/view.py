"""What the ledger is to the rest of the gateway: made for it, told of each request, shown, and asked about budgets.

Touches nothing itself; the ledger's thread does. Called on the event loop, so only what is in memory is looked at.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import TYPE_CHECKING

from gateway.ledger.rows import LedgerState, Row, SeatMonth
from gateway.ledger.writing import NAME, Ledger
from gateway.outcome import Outcome
from gateway.seats import counted
from gateway.state import Finding, Severity

if TYPE_CHECKING:
    from gateway.core import Core

CLOSE_S = 3.0
"""How long the last rows have to be written when the gateway ends."""


@contextlib.asynccontextmanager
async def begun(core: Core) -> AsyncIterator[None]:
    """A ledger that is told of requests and events, unless `[ledger] enabled` is false. At the end, when nothing is
    served any more, its last rows are written."""
    settings = core.settings.ledger
    if not settings.enabled:
        yield
        return
    ledger = Ledger(
        core.settings.state_dir / NAME, settings.keep_days, core.log, lambda: core.limiter.policy.limits.streams
    )
    ledger.start()
    core.ledger = ledger
    for event in core.events.recent():
        ledger.put_event(event)
    core.events.sink = ledger.put_event
    try:
        yield
    finally:
        await asyncio.to_thread(ledger.close, CLOSE_S)


def keep(core: Core, outcome: Outcome) -> None:
    """A request is over: one row, if a seat made it."""
    if core.ledger is not None and outcome.seat:
        core.ledger.put(row_of(outcome, time.time()))


def row_of(outcome: Outcome, now_s: float) -> Row:
    """The row of a request that ended at `now_s`."""
    return Row(
        at_s=now_s - outcome.duration_s,
        request_id=outcome.request_id,
        seat=outcome.seat,
        route=outcome.route,
        word=outcome.word,
        status=outcome.status,
        code=outcome.code,
        queue_s=outcome.queue_s or 0.0,
        ttft_s=outcome.ttft_s,
        duration_s=outcome.duration_s,
        prompt_tokens=outcome.prompt_tokens,
        cached_tokens=outcome.cached_tokens,
        completion_tokens=outcome.completion_tokens,
        tok_per_s=outcome.tok_per_s,
        estimated=outcome.estimated and outcome.completion_tokens > 0,
        stream=outcome.stream,
        body_bytes=outcome.body_bytes,
        run=outcome.run,
        turn=outcome.turn,
        helper=outcome.helper,
    )


def month_of(core: Core, seat: str, budget_tokens: int | None) -> SeatMonth | None:
    """What a seat used this month, beside its budget; None without a ledger."""
    if core.ledger is None:
        return None
    return replace(core.ledger.month_of(seat), budget_tokens=budget_tokens)


def over_budget(core: Core, seat: str, budget_tokens: int | None) -> bool:
    """Whether a seat is above its soft budget. Without a ledger nobody is."""
    if budget_tokens is None:
        return False
    month = month_of(core, seat, budget_tokens)
    return month is not None and month.over


def ledger_findings(core: Core) -> tuple[Finding, ...]:
    """What the operator should know of it."""
    return () if core.ledger is None else found(core.ledger.state, str(core.ledger.path))


def found(state: LedgerState, path: str) -> tuple[Finding, ...]:
    """The same of a state: that it cannot be written or tidied, that rows are lost, that a damaged one lies beside."""
    findings = []
    folder = path.rpartition("/")[0] or "."
    if state.error:
        waiting = f"{counted(state.waiting, 'request')} wait in memory to be written"
        findings.append(
            Finding(
                id="ledger.broken",
                severity=Severity.WARN,
                title="The ledger cannot be written; requests go on",
                observed=f"{path}: {state.error}; {waiting}",
                required="a file that can be written",
                remedy=f"df -h {folder}; ls -l {path}",
            )
        )
    elif state.upkeep_error:
        findings.append(
            Finding(
                id="ledger.upkeep",
                severity=Severity.WARN,
                title="The ledger cannot be tidied; every request is written",
                observed=f"{path}: {state.upkeep_error}",
                required="old requests folded into months, and a look at how busy the team was",
                remedy=f"df -h {folder}; ls -l {path}*",
            )
        )
    if state.lost:
        findings.append(
            Finding(
                id="ledger.lost",
                severity=Severity.WARN,
                title=f"{state.lost} request{' is' if state.lost == 1 else 's are'} missing from the ledger",
                observed="the file could not be written for long; counted since the gateway started",
                required="a row of each request",
                remedy=f"df -h {folder}   and make room; the count ends with the gateway",
                depends_on="ledger.broken",
            )
        )
    if state.aside:
        findings.append(
            Finding(
                id="ledger.damaged",
                severity=Severity.WARN,
                title="The ledger was damaged; a new one was begun",
                observed=f"the old one is {folder}/{state.aside}",
                required="one whole ledger",
                remedy=f"moe-appliance restore FILE   brings a backup back; or accept it: rm {folder}/{state.aside}*",
            )
        )
    return tuple(findings)
