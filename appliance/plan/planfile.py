"""Reads and writes plan files. Touches the file that is named, and one beside it while it writes.

Rules:
- Whatever is wrong with a file is a PlanError that names file, line and key.
- `load` keeps a plan_id that does not belong to the plan: `Plan.sealed` tells, and the check makes a finding of it.
  `save` always writes the one that belongs to it.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from pathlib import Path
from shlex import quote
from typing import Any

from pydantic import ValidationError

from appliance.errors import PlanError
from appliance.plan.jsontext import BadJson, read
from appliance.plan.plan_errors import invalid, located, wrong_schema
from appliance.plan.schema import SCHEMA, Plan
from appliance.printable import printable
from gateway.files import replace_file

MAX_BYTES = 16 * 2**20
"""A plan for 100 layers of 1,000 experts, each second one cold, has 0.4 MB."""


def load(path: Path) -> Plan:
    """The plan in a file. Raises PlanError."""
    return parse(path, _bytes(path))


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


def save(plan: Plan, path: Path, overwrite: bool = False) -> None:
    """Write a plan at once: whoever reads sees all of it or what was there. Raises PlanError, also when there is a file
    and it is not to be overwritten."""
    write(path, dumps(plan), overwrite)


def write(path: Path, text: str, overwrite: bool = False) -> None:
    """Write a text at once; as `save`."""
    try:
        target = path.resolve()
        with contextlib.suppress(FileNotFoundError):
            kind = target.stat().st_mode
            if not stat.S_ISREG(kind):
                raise PlanError(f"{_shown(path)} is not a regular file; it stays as it is", "name another file")
            if not overwrite:
                raise PlanError(f"{_shown(path)} exists already", f"name another file, or first: rm {_quoted(path)}")
        replace_file(target, text.encode(), 0o644)
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links is a RuntimeError, a NUL a ValueError
        why = error.strerror if isinstance(error, OSError) else str(error)
        folder = _quoted(path.parent)
        raise PlanError(f"{_shown(path)} cannot be written: {why}", f"ls -ld {folder}; df -h {folder}") from error


_MAKE = "moe-appliance plan make   writes one; moe-appliance plan show FILE   reads one"


def _shown(path: Path) -> str:
    return printable(str(path))


def _quoted(path: Path) -> str:
    return quote(_shown(path))


def _bytes(path: Path) -> bytes:
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            raw = file.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise PlanError(f"{_shown(path)}: there is no such file", _MAKE) from error
    except (OSError, ValueError) as error:  # a NUL in a path is a ValueError
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise PlanError(f"{_shown(path)} cannot be read: {why}", f"ls -l {_quoted(path)}") from error
    if len(raw) > MAX_BYTES:
        raise PlanError(f"{_shown(path)} has more than {MAX_BYTES // 2**20} MiB: that is no plan", _MAKE)
    return raw


def _without_waiting(path: str, flags: int) -> int:
    """Open a regular file; nobody is waited for who might write to a pipe. Raises PlanError for what is none."""
    fd = os.open(path, flags | os.O_NONBLOCK)
    kind = os.fstat(fd).st_mode
    if stat.S_ISREG(kind):
        return fd
    os.close(fd)
    what, name = "a folder" if stat.S_ISDIR(kind) else "not a regular file", printable(str(path))
    raise PlanError(f"{name} is {what}; a plan is a file", f"ls -ld {quote(name)}   and name the file")


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
