"""Reads the request body that a `[[prefix]]` names, and says what is wrong with it. Touches that file.

Rules:
- Nothing of the file is in what is said about it, but the names of fields.
- What is wrong with a prefix stops nothing: it is a finding, and the file is looked at again at a reload.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from gateway.dialects import Dialect
from gateway.dialects.messages import MESSAGES
from gateway.dialects.openai import CHAT, COMPLETIONS
from gateway.dialects.responses import RESPONSES
from gateway.files import read_small
from gateway.parsing import parse, too_intricate
from gateway.prewarm.settings import PrefixSettings
from gateway.problem import Problem
from gateway.state import Finding, Severity

FILE_MAX_BYTES = 8 * 1024 * 1024
"""About 2 million tokens: beyond every engine's window."""
MODEL_MAX = 256
"""No model's name is longer; it is replaced by the engine's own."""
_DIALECTS: dict[str, Dialect] = {dialect.path: dialect for dialect in (CHAT, COMPLETIONS, RESPONSES, MESSAGES)}


class PrefixFileError(Exception):
    """`str()` says what is wrong with the file."""


def body_of(file: Path, path: str) -> bytes:
    """What the engine gets of `file`, a request of the dialect at `path`. Raises PrefixFileError. Blocks while a file
    system hangs: call it in a thread."""
    try:
        raw = read_small(file, FILE_MAX_BYTES)
    except OSError as error:
        raise PrefixFileError(f"{file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise PrefixFileError(f"{file} is {error}") from error
    if too_intricate(raw):
        raise PrefixFileError(f"{file} has too many values")
    try:
        body = parse(raw)
    except ValueError as error:
        raise PrefixFileError(f"{file} is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise PrefixFileError(f"{file} is no JSON object")
    prepared = _DIALECTS[path].prepare(raw, body)
    if isinstance(prepared, Problem):
        raise PrefixFileError(f"{file} is no request for {path}: {prepared.message}")
    if len(prepared.model or "") > MODEL_MAX:
        raise PrefixFileError(f"{file} names a model of more than {MODEL_MAX} letters")
    return prepared.body


def broken_files(prefixes: Iterable[PrefixSettings]) -> dict[str, str]:
    """What is wrong with the files of `prefixes`, by name; what is good is left out. Blocks as `body_of` does."""
    broken: dict[str, str] = {}
    for prefix in prefixes:
        if prefix.file is not None:
            try:
                body_of(prefix.file, prefix.path)
            except PrefixFileError as error:
                broken[prefix.name] = str(error)
    return broken


def finding_of(broken: Mapping[str, str], prefixes: Iterable[PrefixSettings] = ()) -> tuple[Finding, ...]:
    """One finding for all that cannot be read, name -> why: what `broken_files` found, or the engine said. `prefixes`:
    those that may be what a seat shares; all others are files."""
    if not broken:
        return ()
    first = next(iter(broken))
    seats = {prefix.name: prefix.seat for prefix in prefixes if prefix.seat is not None and prefix.name in broken}
    required, remedy = [], []
    if len(seats) < len(broken):
        required.append("[[prefix]] file: a JSON file with a request body that the engine takes")
        remedy.append("correct the file, then: moe-appliance reload")
    if seats:
        required.append("[[prefix]] seat: tools and system texts that the engine takes")
        who = ", ".join(dict.fromkeys(seats.values()))
        remedy.append(f"moe-appliance reload   tries it again, once {who} has sent something else")
    return (
        Finding(
            id="prefix.broken",
            severity=Severity.WARN,
            title=f"The prefix {first} is not read into the engine"
            if len(broken) == 1
            else f"{len(broken)} prefixes are not read into the engine",
            observed="; ".join(f"{name}: {why}" for name, why in broken.items()),
            required="; ".join(required),
            remedy="\n".join(remedy),
        ),
    )


def unknown_seats(prefixes: Iterable[PrefixSettings], seats: Collection[str]) -> tuple[Finding, ...]:
    """One finding for prefixes of seats that are not among `seats`."""
    lost = {prefix.name: prefix.seat for prefix in prefixes if prefix.seat is not None and prefix.seat not in seats}
    if not lost:
        return ()
    name, seat = next(iter(lost.items()))
    return (
        Finding(
            id="prefix.seat",
            severity=Severity.WARN,
            title=f"The prefix {name} names a seat that there is not"
            if len(lost) == 1
            else f"{len(lost)} prefixes name seats that there are not",
            observed="; ".join(f"{other}: there is no seat {wanted}" for other, wanted in lost.items()),
            required="[[prefix]] seat: the name of a seat, as in: moe-appliance seats list",
            remedy="correct `seat` under [[prefix]] in appliance.toml, then restart the service at a quiet time\n"
            f"or add the seat: moe-appliance seats add {shlex.quote(seat)}",
        ),
    )
