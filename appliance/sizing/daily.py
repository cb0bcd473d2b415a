"""Reads a table of one developer's tokens by day, CSV or JSON, into days. Pure.

Rules:
- Columns may be spelled as the usual tools spell them (`Output Tokens`, `outputTokens`, `output`); a column that is not
  known is refused, not guessed: `prompt_tokens` may or may not hold what came from a cache.
- Two rows of one day are added: there is one for each model. What is wrong names file, row and column.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping
from datetime import date
from pathlib import Path
from typing import Any

from appliance.errors import ConfigError
from appliance.printable import printable
from appliance.sizing.week import Day
from gateway.sizing.profile import TOKENS_MAX

Days = dict[date, Day]
ROWS_MAX = 100_000
_NAMES = {
    "date": ("date", "day"),
    "output": ("output", "output_tokens"),
    "input": ("input", "input_tokens", "new_input", "new_input_tokens"),
    "written": ("cache_creation", "cache_creation_tokens", "cache_creation_input_tokens", "cache_write_tokens"),
    "cached": ("cached", "cached_tokens", "cache_read", "cache_read_tokens", "cache_read_input_tokens"),
    "replies": ("replies", "requests", "turns"),
    "sessions": ("sessions",),
}
_IGNORED = frozenset(
    ("total", "total_tokens", "cost", "total_cost", "cost_usd", "model", "models", "models_used", "model_breakdowns")
)
"""What usage tools write beside the tokens; nothing here needs it."""
_MEANS = {spelled: name for name, spellings in _NAMES.items() for spelled in spellings}
_LISTS = ("daily", "days")


def is_daily(value: object) -> bool:
    """Whether a JSON value is a table of days rather than a profile."""
    return isinstance(value, list) or (isinstance(value, dict) and any(name in value for name in _LISTS))


def from_csv(file: Path, raw: bytes) -> Days:
    """The days of a CSV file with a line of names. Raises ConfigError."""
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _error(file, f"{raw.count(10, 0, error.start) + 1}: is not UTF-8 text") from error
    first = text.partition("\n")[0]
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=";" if first.count(";") > first.count(",") else ",")
    try:
        names = next(reader, None)
        if not names:
            raise _error(file, "1: has no line of column names")
        columns = _columns(file, names, "1:")
        return _added(file, _csv_rows(file, reader, len(names), columns))
    except csv.Error as error:
        raise _error(file, f"{reader.line_num}: not valid CSV: {error}") from error


def from_json(file: Path, value: object) -> Days:
    """The days of a JSON list of tables, or of a table whose `daily` or `days` is one. Raises ConfigError."""
    rows = value
    if isinstance(value, dict):
        rows = next(value[name] for name in _LISTS if name in value)
    if not isinstance(rows, list):
        raise _error(file, " the days must be a list")
    return _added(file, _json_rows(file, rows))


def _csv_rows(file: Path, reader: Any, width: int, columns: Mapping[str, int]) -> Iterable[tuple[str, dict[str, Any]]]:
    for row in reader:
        if any(cell.strip() for cell in row):
            if len(row) != width:
                raise _error(file, f"{reader.line_num}: has {len(row)} columns, the first line has {width}")
            yield f"{reader.line_num}:", {name: row[at].strip() for name, at in columns.items()}


def _json_rows(file: Path, rows: list[Any]) -> Iterable[tuple[str, dict[str, Any]]]:
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise _error(file, f" [{number}] must be a table")
        names = list(row)
        yield f" [{number}]", {name: row[names[at]] for name, at in _columns(file, names, f" [{number}]").items()}


def _columns(file: Path, names: list[str], where: str) -> dict[str, int]:
    """Which column is what. Raises ConfigError for one that is unknown, there twice, or missing."""
    found: dict[str, int] = {}
    for at, name in enumerate(names):
        plain = _plain(name)
        if plain in _IGNORED:
            continue
        means = _MEANS.get(plain)
        if means is None:
            known = ", ".join(spellings[-1] for spellings in _NAMES.values())
            raise _error(file, f"{where} the column {printable(name, 40)!r} is not known; known are {known}")
        if means in found:
            raise _error(file, f"{where} the column {printable(name, 40)!r} is there twice, under two names")
        found[means] = at
    for needed in ("date", "output", "input"):
        if needed not in found:
            raise _error(file, f"{where} there is no column {_NAMES[needed][-1]!r}")
    return found


def _plain(name: str) -> str:
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.strip()[:80])
    return re.sub(r"[\s_-]+", "_", snake).lower()


def _added(file: Path, rows: Iterable[tuple[str, dict[str, Any]]]) -> Days:
    days: Days = {}
    for number, (where, row) in enumerate(rows):
        if number >= ROWS_MAX:
            raise _error(file, f" has more than {ROWS_MAX:,} rows")
        made = days.setdefault(_day(file, where, row.pop("date")), Day())
        tokens = {name: _whole(file, where, name, value) for name, value in row.items()}
        made.output += tokens["output"]
        made.new_input += tokens["input"] + tokens.get("written", 0)
        made.cached += tokens.get("cached", 0)
        made.replies += tokens.get("replies", 0)
        made.sessions += tokens.get("sessions", 0)
    return days


def _day(file: Path, where: str, value: object) -> date:
    try:
        return date.fromisoformat(value[:10] if isinstance(value, str) and value[10:11] in ("T", " ") else str(value))
    except ValueError as error:
        raise _error(file, f"{where} date {printable(str(value), 40)!r} is none; write 2027-01-31") from error


def _whole(file: Path, where: str, name: str, value: object) -> int:
    """A count of tokens. Text may hold blanks, or commas or underscores between groups of three digits."""
    found = value
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,16}|[0-9]{1,3}([,_ ][0-9]{3}){1,5}|", value, re.ASCII):
        found = int(re.sub("[,_ ]", "", value) or 0)
    if isinstance(found, int) and not isinstance(found, bool) and 0 <= found <= TOKENS_MAX:
        return found
    said = printable(str(value)[:41], 40)
    raise _error(file, f"{where} {_NAMES[name][-1]} {said!r} is no whole number from 0 to {TOKENS_MAX:,}")


def _error(file: Path, said: str) -> ConfigError:
    shown = printable(str(file))
    return ConfigError(f"{shown}:{said}", f"edit {shown} and correct it; nothing of it was used")
