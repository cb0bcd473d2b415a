"""What is wrong with a plan file, in words, by file, line and key. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from appliance.errors import PlanError
from appliance.plan.jsontext import KeyPath
from appliance.plan.schema import SCHEMA, Plan
from appliance.printable import printable
from gateway.toml_lines import dotted, kind_of

ERRORS_MAX = 20
"""So many errors of one file are named; the rest is counted."""

_WORDS = {
    "missing": "is missing",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "tuple_type": "must be a list",
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be more than {gt}",
    "less_than_equal": "must be at most {le}",
    "literal_error": "must be {expected}",
    "string_pattern_mismatch": "must match {pattern}",
}
_KINDS: tuple[tuple[type, str], ...] = ((str, "text"), (dict, "an object"), (list, "a list"), (type(None), "null"))

Row = tuple[int, int, KeyPath, str]
"""Line and column (0 = not known), key (() = the whole file), what is wrong."""


def located(path: PurePath, rows: Sequence[Row], remedy: str | None = None, more: int = 0) -> PlanError:
    """One error of all rows, one a line; `more` are only counted."""
    file = printable(str(path))
    said = [
        f"{file}:{line}{f':{column}' if column else ''}: {printable(f'{_name(key)} {words}'.strip())}"
        for line, column, key, words in rows
    ]
    said += [f"{file}: and {more} more"] if more else []
    what = "the line" if len(said) == 1 else "the lines"
    return PlanError("\n".join(said), remedy or f"edit {file} and correct {what} named above")


def wrong_schema(path: PurePath, found: object, line: int) -> PlanError:
    """The error of a file that is no plan, or one of another version."""
    kind, _, number = found.rpartition("/") if isinstance(found, str) else ("", "", "")
    if kind == SCHEMA.rpartition("/")[0] and number.isdecimal() and number != "0":
        said = f"is {found}; this version of moe-appliance reads {SCHEMA}"
        return located(path, [(line, 0, ("schema",), said)], "install a newer moe-appliance, or make the plan anew")
    missing = found is None
    said = f"is missing; a plan file says {SCHEMA}" if missing else f"must be {SCHEMA}; this is no plan file"
    return located(path, [(line, 0, ("schema",), said)], "moe-appliance plan make   writes a plan")


def invalid(path: PurePath, lines: Mapping[KeyPath, int], error: ValidationError) -> PlanError:
    """One error that lists what the schema refuses, in the order of the lines."""
    found: dict[tuple[KeyPath, str], int] = {}
    for detail in error.errors(include_url=False):
        key = _key(lines, detail)
        found[key, _said(detail)] = next(lines[key[:n]] for n in range(len(key), -1, -1) if key[:n] in lines)
    rows = sorted(((line, 0, key, said) for (key, said), line in found.items()), key=lambda row: row[0])
    return located(path, rows[:ERRORS_MAX], more=max(0, len(rows) - ERRORS_MAX))


def _name(key: KeyPath) -> str:
    return dotted(key) if key else ""


def _key(lines: Mapping[KeyPath, int], detail: ErrorDetails) -> KeyPath:
    """Where the file has it: without what pydantic adds to a location (`[key]`)."""
    if detail["type"] == "plan":
        return tuple(detail["ctx"]["key"].split("."))
    loc: KeyPath = tuple(detail["loc"])
    last = loc[-1:] if detail["type"] == "missing" else ()
    known = loc[: len(loc) - len(last)]
    while known not in lines:
        known = known[:-1]
    return known + last


def _said(detail: ErrorDetails) -> str:
    kind = detail["type"]
    if kind == "extra_forbidden":
        return "is not a known key" + _close(tuple(detail["loc"]))
    if kind == "plan":
        return str(detail["ctx"]["said"])
    words = _WORDS.get(kind)
    if words is None:
        return " ".join(detail["msg"].removeprefix("Value error, ").split())
    said = words.format(**detail.get("ctx", {}))
    return said if kind == "missing" else f"{said}, is {kind_of(detail['input'], _KINDS)}"


def _close(loc: KeyPath) -> str:
    """The key that was perhaps meant, or those that there are."""
    known = sorted(_fields(loc[:-1]))
    close = difflib.get_close_matches(str(loc[-1]), known, n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else f"; known here: {', '.join(known)}"


def _fields(loc: KeyPath) -> dict[str, Any]:
    """The keys that may stand at a place, and what each may be."""
    model: type[BaseModel] = Plan
    for part in loc:
        field = next((field for name, field in model.model_fields.items() if name == part), None)
        model = (_model(field.annotation) if field is not None else None) or model
    return {field.alias or name: field.annotation for name, field in model.model_fields.items()}


def _model(annotation: object) -> type[BaseModel] | None:
    """The model inside an annotation: of an optional field, of the values of a table."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for found in map(_model, get_args(annotation)) if found is not None), None)
