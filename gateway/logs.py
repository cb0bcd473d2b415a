"""Sets structlog up and holds the fixed list of event names. Touches stderr, and the journal when stderr goes there.

Rules:
- An event name is one of EVENTS; a test looks for others.
- Fields, not prose. Never prompt text, never a key: seats appear by name.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Any, TextIO

import orjson
import structlog

from gateway.journal import Journal, is_journal

EVENTS = frozenset(
    {
        # gateway
        "gateway.started",
        "gateway.draining",
        "gateway.drained",
        "gateway.daemon_gone",
        "gateway.failed",
        "connections.full",
        "request.done",
        "request.failed",
        "seats.loaded",
        "seats.broken",
        "admins.loaded",
        "admins.broken",
        "ledger.broken",
        "ledger.mended",
        "ledger.lost",
        "ledger.set_aside",
        "ledger.upkeep",
        "engine.seen",
        "control.lost",
        "admin.login",
        "admin.refused",
        "seat.login",
        "seat.refused",
        "operator.action",
        "overlay.unkept",
        "overlay.kept",
        "learned.unread",
        "learned.unkept",
        "admission.cap",
        "prefix.taken",
        "prefix.not_taken",
        "prewarm.read",
        "prewarm.aborted",
        "prewarm.failed",
        # daemon
        "daemon.started",
        "daemon.stopping",
        "daemon.stopped",
        "daemon.finding",
        "daemon.swept",
        "engine.phase",
        "engine.ended",
        "engine.withheld",
        "engine.abilities",
        "engine.host_kv",
        "engine.cards",
        "engine.pair_unkept",
        "engine.reverted",
        "engine.boot_times",
        "gateway.spawned",
        "gateway.ended",
        "gateway.hung",
        "gateway.absent",
        "gateway.replacing",
        "gateway.fallback",
        "gateway.retiring",
        "daemon.address",
        "control.refused",
        "folder.mended",
    }
)

Log = structlog.stdlib.BoundLogger


def configure(component: str, stream: TextIO | None = None) -> Log:
    """Log to `stream` (stderr): one JSON object a line, aligned text when it is a terminal, the journal's own fields
    when it leads there.

    `component` is bound to every line. uvicorn's own loggers are quietened to warnings.
    """
    stream = stream or sys.stderr
    terminal = stream.isatty()
    journal = [Journal()] if not terminal and _leads_to_journal(stream) else []
    processors: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if terminal:
        # the default shows local variables where rich is installed: bodies and keys among them
        plain = structlog.dev.plain_traceback
        processors.append(structlog.dev.ConsoleRenderer(colors="NO_COLOR" not in os.environ, exception_formatter=plain))
    else:
        processors += [structlog.processors.format_exc_info, *journal, structlog.processors.JSONRenderer(_dumps)]
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(stream),
        cache_logger_on_first_use=True,
    )
    warning = "<4>" if journal else ""  # journald takes it for the line's priority
    logging.basicConfig(level=logging.WARNING, stream=stream, format=f"{warning}%(levelname)s %(name)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    uvicorn_log = logging.getLogger("uvicorn.error")
    uvicorn_log.setLevel(logging.WARNING)
    uvicorn_log.addFilter(_NotOurEndings())
    log: Log = structlog.get_logger().bind(component=component)
    return log


def _leads_to_journal(stream: TextIO) -> bool:
    try:
        return is_journal(stream.fileno(), os.environ)
    except (OSError, ValueError):  # no file, or closed
        return False


def _dumps(fields: Any, **options: Any) -> str:
    return orjson.dumps(fields, **options).decode()


class _NotOurEndings(logging.Filter):
    """Drops uvicorn's complaint about responses that we leave unfinished on purpose: closing without the
    terminating chunk is how a client learns that an answer is not whole."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "returned without completing response" not in record.getMessage()
