"""Looks after running exchanges once a second: cuts clients that take nothing and engines that say nothing, and breaks
silences. Touches what it is given.
"""

from __future__ import annotations

from gateway import problem as problems
from gateway.core import Core
from gateway.exchange import Exchange


def sweep_all(core: Core, now_s: float) -> None:
    """All of them, and what is told or forgotten once a second."""
    core.sweep(now_s)
    core.prewarm.sweep(now_s)
    core.care.watch.forget(now_s)
    for exchange in tuple(core.live):
        sweep(exchange, now_s)


def sweep(exchange: Exchange, now_s: float) -> None:
    """Cut a client that takes nothing, give up an engine that says nothing, and break a silence."""
    limits, reply, client = exchange.core.settings.limits, exchange.reply, exchange.client
    if limits.client_stall_s and client.stalled_s(now_s) > limits.client_stall_s:
        exchange.word("client_gone")
        exchange.outcome.code = exchange.outcome.code or "client_stall"
        client.abort()
    streamed = exchange.prepared is not None and exchange.prepared.stream
    if streamed and limits.first_token_s and exchange.end_with is None:
        meter, waited_s = exchange.meter, now_s - exchange.read_s
        if (meter is None or meter.first_token_s is None) and waited_s > limits.first_token_s:
            exchange.end(problems.first_token_late(limits.first_token_s))
    if reply is None or reply.ended or client.sending:
        return
    silence_s = limits.engine_silence_s if streamed else limits.unstreamed_s
    if silence_s and now_s - reply.last_event_s > silence_s:
        reply.fail(problems.engine_lost(f"nothing for {silence_s:g} s"))
    elif client.started and now_s - client.sent_s >= limits.heartbeat_s:
        reply.nudge()
