"""Reads the JSON files that people give: plans, routing statistics, lists of experts. Touches the file that is named.

Rules:
- Only a regular file of at most MAX_BYTES is read: nobody waits for a pipe, or for gigabytes that are no plan.
- What is wrong is a PlanError that names the file and what to type.
"""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Any

from appliance.errors import PlanError
from appliance.files import NotRegularError, read_regular
from appliance.plan.jsontext import BadJson, read
from appliance.printable import printable
from gateway.toml_lines import dotted

MAX_BYTES = 16 * 2**20
"""A plan for 100 layers of 1,000 experts, each second one cold, has 0.4 MB; counts of so many have 1 MB."""


def content(path: Path, what: str, remedy: str) -> bytes:
    """All of a file. `what`: it is to be ("a plan"); `remedy`: when it is not there, or no such thing."""
    shown = printable(str(path))
    try:
        raw = read_regular(path, MAX_BYTES)
    except FileNotFoundError as error:
        raise PlanError(f"{shown}: there is no such file", remedy) from error
    except NotRegularError as error:
        said = "a folder" if path.is_dir() else "not a regular file"
        raise PlanError(f"{shown} is {said}", f"ls -ld {quote(shown)}   and name the file") from error
    except (OSError, ValueError) as error:  # a NUL in a path is a ValueError
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise PlanError(f"{shown} cannot be read: {why}", f"ls -l {quote(shown)}") from error
    if len(raw) > MAX_BYTES:
        raise PlanError(f"{shown} has more than {MAX_BYTES // 2**20} MiB: that is not {what}", remedy)
    return raw


def value(raw: bytes, file: str, remedy: str) -> Any:
    """What the JSON text `raw` of `file` says."""
    try:
        return read(raw.decode())[0]
    except UnicodeDecodeError as error:
        raise PlanError(f"{printable(file)}: is not UTF-8 text", remedy) from error
    except BadJson as error:
        where = f"{printable(file)}:{error.line}:"
        key = f" {dotted(error.key)}" if error.key else ""
        raise PlanError(f"{where}{printable(key)} {printable(error.said)}", remedy) from error
