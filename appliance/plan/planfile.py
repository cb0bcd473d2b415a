"""Reads and writes plan files. Touches the file that is named, one beside it, the clock.

Rules:
- Whatever is wrong with a file is a PlanError that names file, line and key.
- `load` keeps a plan_id that does not belong to the plan: `Plan.sealed` tells, and the check makes a finding of it.
  `save` always writes the one that belongs to it.
"""

from __future__ import annotations

import contextlib
import json
import stat
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote
from typing import Any

from pydantic import ValidationError

from appliance import __version__
from appliance.errors import PlanError
from appliance.plan.export.targets import verdicts
from appliance.plan.jsonfile import content
from appliance.plan.jsontext import BadJson, read
from appliance.plan.plan_errors import invalid, located, wrong_schema
from appliance.plan.schema import SCHEMA, Plan
from appliance.printable import printable
from gateway.files import replace_file


def load(path: Path) -> Plan:
    """The plan in a file. Raises PlanError."""
    return parse(path, content(path, "a plan", _MAKE))


def parse(path: Path, raw: bytes) -> Plan:
    """The plan in `raw`, which was read from `path`. Raises PlanError."""
    text = _text(path, raw)
    try:
        value, lines = read(text)
    except BadJson as error:
        raise located(path, [(error.line, error.column, error.key, error.said)]) from error
    if not isinstance(value, dict):
        raise located(path, [(1, 0, (), "a plan file is a JSON object")], _MAKE)
    if value.get("schema") != SCHEMA:
        raise wrong_schema(path, value.get("schema"), lines.get(("schema",), 1))
    if "schema_" in value:  # the field's name in the model, which pydantic would take too
        raise located(path, [(lines[("schema_",)], 0, ("schema_",), "is not a known key; did you mean schema?")])
    try:
        return Plan.model_validate_json(text, strict=True)
    except ValidationError as error:
        raise invalid(path, lines, error) from error


def dumps(plan: Plan) -> str:
    """The text of a plan file: sealed, keys in order, a line a value, so that people can compare two."""
    values = plan.seal().model_dump(mode="json", by_alias=True, exclude_none=True)
    return json.dumps(_ordered(values), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def stamped(plan: Plan) -> Plan:
    """The plan with when and by which version it was made, and what other tools can do with it."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return plan.model_copy(update={"created": now, "tool_version": __version__, "exports": verdicts(plan)})


def save(plan: Plan, path: Path, overwrite: bool = False) -> None:
    """Write a plan at once: whoever reads sees all of it or what was there. Raises PlanError, also when there is a file
    and it is not to be overwritten."""
    write(path, dumps(plan), overwrite)


def write(path: Path, text: str, overwrite: bool = False) -> None:
    """Write a text at once; as `save`."""
    file = target(path, overwrite)
    try:
        replace_file(file, text.encode(), 0o644)
    except OSError as error:
        raise _unwritable(path, error) from error


def target(path: Path, overwrite: bool = False) -> Path:
    """The file that `write` would write, links followed. Raises PlanError when it is not to be written."""
    try:
        file = path.resolve()
        with contextlib.suppress(FileNotFoundError):
            kind = file.stat().st_mode
            if not stat.S_ISREG(kind):
                raise PlanError(f"{_shown(path)} is not a regular file; it stays as it is", "name another file")
            if not overwrite:
                raise PlanError(f"{_shown(path)} exists already", f"name another file, or first: rm {_quoted(path)}")
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links is a RuntimeError, a NUL a ValueError
        raise _unwritable(path, error) from error
    return file


def _unwritable(path: Path, error: Exception) -> PlanError:
    why = error.strerror if isinstance(error, OSError) else str(error)
    folder = _quoted(path.parent)
    return PlanError(f"{_shown(path)} cannot be written: {why}", f"ls -ld {folder}; df -h {folder}")


_MAKE = "moe-appliance plan make   writes one; moe-appliance plan show FILE   reads one"


def _shown(path: Path) -> str:
    return printable(str(path))


def _quoted(path: Path) -> str:
    return quote(_shown(path))


def _text(path: Path, raw: bytes) -> str:
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise located(path, [(1, 0, (), "is UTF-16 text; a plan file is UTF-8")], _recode(path, "UTF-16"))
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise located(path, [(line, 0, (), "is not UTF-8 text")], _recode(path, "LATIN1")) from error
    if text.startswith("\ufeff"):
        remedy = f"sed -i '1s/^\\xEF\\xBB\\xBF//' {_quoted(path)}"
        raise located(path, [(1, 0, (), "begins with a byte order mark; a plan file is UTF-8 without one")], remedy)
    return text


def _recode(path: Path, code: str) -> str:
    return f"iconv -f {code} -t UTF-8 {_quoted(path)} > new.json   if that is what it is"


def _ordered(value: Any) -> Any:
    """The same with every table's keys in order; numbers by size, so that layer 2 comes before layer 10."""
    if isinstance(value, dict):
        return {key: _ordered(value[key]) for key in sorted(value, key=_rank)}
    return [_ordered(item) for item in value] if isinstance(value, list) else value


def _rank(key: str) -> tuple[bool, int, str]:
    number = key.isascii() and key.isdecimal() and len(key) < 20
    return (not number, int(key) if number else 0, key)
