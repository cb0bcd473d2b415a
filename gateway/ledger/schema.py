"""What the ledger's file looks like: its tables, and how a row becomes values and sums. Pure.

Rules:
- `requests` is clustered by arrival (microseconds), then by the start of the gateway and a number that grows in it. So
  to write a row twice keeps it once, and what retention takes are the first pages of the table. `request_id` is what a
  client said, and no key.
- Every value is one that SQLite keeps: numbers too large are cut to COUNT_MAX, what is not finite is not known, and
  text is Unicode. So no single row can keep the others from being written.
- `months` holds only what was folded out of `requests`. A total of a month is the sum of both.
"""

from __future__ import annotations

import math

from gateway.ledger.rows import Row
from gateway.state import Event

VERSION = 1
"""PRAGMA user_version. A file of a later version is left alone."""
COUNT_MAX = 2**53
TEXT_MAX = 200
EVENT_TEXT_MAX = 1000

SUMS = (
    "count(*) AS requests",
    "coalesce(sum(word = 'ok'), 0) AS served",
    "coalesce(sum(word = 'refused'), 0) AS refused",
    "coalesce(sum(word NOT IN ('ok', 'refused', 'client_gone')), 0) AS failed",
    "coalesce(sum(word = 'client_gone'), 0) AS left_",
    "coalesce(sum(prompt_tokens), 0) AS prompt_tokens",
    "coalesce(sum(cached_tokens), 0) AS cached_tokens",
    "coalesce(sum(completion_tokens), 0) AS completion_tokens",
    "coalesce(sum(estimated), 0) AS estimated",
    "coalesce(sum(CASE WHEN cached_tokens IS NULL THEN 0 ELSE prompt_tokens END), 0) AS told_tokens",
)
"""What a sum over requests has, in this order. `told_tokens`: prompt tokens of those where the engine also said how
many of them it had cached."""
NAMES = tuple(sum_.rpartition(" ")[2] for sum_ in SUMS)

CREATE = f"""
CREATE TABLE IF NOT EXISTS requests (
    at_us INTEGER NOT NULL,
    start_id INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    request_id TEXT NOT NULL,
    seat TEXT NOT NULL,
    route TEXT NOT NULL,
    word TEXT NOT NULL,
    status INTEGER NOT NULL,
    code TEXT NOT NULL,
    queue_s REAL NOT NULL,
    ttft_s REAL,
    duration_s REAL NOT NULL,
    prompt_tokens INTEGER,
    cached_tokens INTEGER,
    completion_tokens INTEGER NOT NULL,
    tok_per_s REAL,
    estimated INTEGER NOT NULL,
    stream INTEGER NOT NULL,
    body_bytes INTEGER NOT NULL,
    run TEXT NOT NULL,
    turn INTEGER,
    helper INTEGER NOT NULL,
    PRIMARY KEY (at_us, start_id, seq)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS months (
    month TEXT NOT NULL,
    seat TEXT NOT NULL,
    {", ".join(f"{name} INTEGER NOT NULL" for name in NAMES)},
    PRIMARY KEY (month, seat)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS events (
    id TEXT NOT NULL PRIMARY KEY,
    at_us INTEGER NOT NULL,
    kind TEXT NOT NULL,
    severity TEXT NOT NULL,
    text TEXT NOT NULL,
    who TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS events_at ON events (at_us);
"""


def _filled(sql: str) -> str:
    """A statement with the sums, their names and the month of a request in their places."""
    places = {
        ":sums": ", ".join(SUMS),
        ":names": ", ".join(NAMES),
        ":added": ", ".join(f"sum({name})" for name in NAMES),
        ":more": ", ".join(f"{name} = {name} + excluded.{name}" for name in NAMES),
        ":ticket": "(word = 'ok' OR ttft_s IS NOT NULL OR queue_s > 0)",
        ":month": "strftime('%Y-%m', at_us / 1000000, 'unixepoch')",
    }
    for place, text in places.items():
        sql = sql.replace(place, text)
    return sql


def _batch(table: str, columns: int) -> str:
    """One statement for rows given as JSON: an array of arrays. sqlite3 lets the interpreter go at every step of a
    statement, and gets it back milliseconds later while the event loop is busy; a step a row would take seconds."""
    values = ", ".join(f"value ->> {number}" for number in range(columns))
    return "INSERT INTO :table SELECT :values FROM json_each(?) WHERE true ON CONFLICT DO NOTHING".replace(
        ":table", table
    ).replace(":values", values)


INSERT = _batch("requests", 22)
INSERT_EVENTS = _batch("events", 6)

FOLD = _filled("""
    INSERT INTO months (month, seat, :names)
    SELECT :month, seat, :sums FROM requests WHERE (at_us, start_id, seq) <= (?, ?, ?) GROUP BY 1, 2
    ON CONFLICT (month, seat) DO UPDATE SET :more
""")
"""Adds the requests up to a key to the months. In one transaction with DELETE."""
OLDEST = """
    SELECT at_us, start_id, seq FROM (
        SELECT at_us, start_id, seq FROM requests WHERE at_us < ? ORDER BY at_us, start_id, seq LIMIT ?
    ) ORDER BY at_us DESC, start_id DESC, seq DESC LIMIT 1
"""
"""The last of the oldest ones."""
DELETE = "DELETE FROM requests WHERE (at_us, start_id, seq) <= (?, ?, ?)"

MONTH = """
    SELECT seat, sum(prompt_tokens), sum(cached_tokens), sum(completion_tokens), sum(requests) FROM (
        SELECT seat, prompt_tokens, cached_tokens, completion_tokens, requests FROM months WHERE month = ?1
        UNION ALL
        SELECT seat, coalesce(prompt_tokens, 0), coalesce(cached_tokens, 0), completion_tokens, 1
        FROM requests WHERE at_us >= ?2 AND at_us < ?3
    ) GROUP BY seat
"""
"""What each seat used in one month: its name, its first microsecond, the first of the next."""
MONTHS = _filled("""
    SELECT month, seat, :added FROM (
        SELECT month, seat, :names FROM months WHERE seat = coalesce(?1, seat)
        UNION ALL
        SELECT :month AS month, seat, :sums FROM requests WHERE seat = coalesce(?1, seat) GROUP BY 1, 2
    ) GROUP BY 1, 2 ORDER BY 1, 2
""")
"""Every month of one seat, or with NULL of all."""
USAGE = _filled("""
    SELECT seat, :added FROM (
        SELECT seat, :names FROM months WHERE month >= ?4 AND month <= ?5 AND seat = coalesce(?3, seat)
        UNION ALL
        SELECT seat, :sums FROM requests WHERE at_us >= ?1 AND at_us < ?2 AND seat = coalesce(?3, seat) GROUP BY seat
    ) GROUP BY seat
""")
"""Requests between two microseconds, and what is folded of the months from the fourth value to the fifth."""
FIGURES = _filled("""
    SELECT seat, CASE WHEN :ticket THEN queue_s END, ttft_s, tok_per_s
    FROM requests WHERE at_us >= ?1 AND at_us < ?2 AND seat = coalesce(?3, seat)
""")
"""Wait, first token and pace of each request. It is a wait only where it led to a ticket."""
EVENTS = """
    SELECT id, at_us, kind, severity, text, who FROM events WHERE at_us > ? ORDER BY at_us DESC, id DESC LIMIT ?
"""
HOURS = _filled("""
    SELECT at_us / 3600000000 % 24, count(*) FROM requests
    WHERE at_us >= ? AND at_us < ? AND NOT helper AND :ticket GROUP BY 1
""")
"""How many of the turns of INTERVALS came in each hour of the day, UTC."""
INTERVALS = _filled("""
    SELECT at_us, queue_s, duration_s, seat FROM requests
    WHERE at_us >= ? AND at_us < ? AND NOT helper AND :ticket ORDER BY at_us, start_id, seq
""")
"""Turns that got a ticket."""

Value = int | float | str | None


def micros(at_s: float) -> int:
    """Wall-clock seconds as the file has them."""
    return int(at_s * 1e6) if math.isfinite(at_s) and abs(at_s) < 1e11 else 0


def values_of(row: Row, start_id: int, seq: int) -> tuple[Value, ...]:
    """A request in the order of INSERT. `start_id`: 63 random bits of the process that writes it."""
    return (
        micros(row.at_s),
        start_id,
        seq,
        _text(row.request_id),
        _text(row.seat),
        _text(row.route),
        _text(row.word),
        _count(row.status),
        _text(row.code),
        _seconds(row.queue_s) or 0.0,
        _seconds(row.ttft_s),
        _seconds(row.duration_s) or 0.0,
        _maybe(row.prompt_tokens),
        _maybe(row.cached_tokens),
        _count(row.completion_tokens),
        _seconds(row.tok_per_s),
        int(row.estimated),
        int(row.stream),
        _count(row.body_bytes),
        _text(row.run),
        _maybe(row.turn),
        int(row.helper),
    )


def values_of_event(event: Event) -> tuple[Value, ...]:
    """An event in the order of INSERT_EVENTS."""
    text = _text(event.text, EVENT_TEXT_MAX)
    return _text(event.id), micros(event.at_s), _text(event.kind), str(event.severity), text, _text(event.who)


def _text(text: str, most: int = TEXT_MAX) -> str:
    return text[:most].encode("utf-8", "replace").decode()


def _count(number: int) -> int:
    return max(-COUNT_MAX, min(COUNT_MAX, number))


def _maybe(number: int | None) -> int | None:
    return None if number is None else _count(number)


def _seconds(number: float | None) -> float | None:
    return float(number) if number is not None and math.isfinite(number) else None
