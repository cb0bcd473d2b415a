"""What is wrong with a checkpoint, as values, and how it is told. Pure.

Rules:
- Names come from files that strangers wrote: whatever is shown goes through `plain` or `escaped`.
- All that is wrong is told at once: the first ten by name, the rest as a number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from shlex import quote
from urllib.parse import urlsplit

from appliance.errors import CheckpointError
from appliance.printable import escaped

NAMED = 10
LONGEST_CHARS = 160


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong: with which file, what, and what to do about it."""

    file: str
    text: str
    remedy: str


def plain(text: object) -> str:
    """A name for a terminal: `escaped`, and a long one cut in the middle."""
    half = LONGEST_CHARS // 2
    said = str(text)
    if len(said) <= LONGEST_CHARS:
        clean = escaped(said)
        if len(clean) <= LONGEST_CHARS:
            return clean
        return f"{clean[:half]}...{clean[-half:]}"
    return f"{escaped(said[:half])[:half]}...{escaped(said[-half:])[-half:]}"  # a name may have 100 MB


def typed(text: object) -> str:
    """A path or an address as it is typed in a shell; control characters, which nobody types, spelled out."""
    said = str(text)
    return quote(said if said.isprintable() else escaped(said))


def shown_url(url: str) -> str:
    """A URL without what may be a secret: user, query, fragment."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return escaped(f"{parts.scheme}://{host}{parts.path}")


def complaint(origin: str, faults: Sequence[Fault]) -> CheckpointError:
    """The error that tells `faults`, at least one, of the checkpoint at `origin`."""
    lines = [f"{plain(fault.file)}: {fault.text}" for fault in faults[:NAMED]]
    if len(faults) > NAMED:
        lines.append(f"and {len(faults) - NAMED:,} more")
    remedies = [remedy for remedy, _ in groupby(faults[:NAMED], key=attrgetter("remedy"))]
    remedy = "; ".join(dict.fromkeys(remedies))
    if len(lines) == 1:
        return CheckpointError(f"{escaped(origin)}: {lines[0]}", remedy)
    return CheckpointError("\n  ".join([f"{escaped(origin)}: {len(faults):,} faults", *lines]), remedy)
