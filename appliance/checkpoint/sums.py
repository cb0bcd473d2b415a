"""SHA-256 sums of files: the text that `sha256sum -c` reads, and names that may become files. Pure.

Rule: a name that came from an index, a listing or a list of sums goes through `safe_name` before it is joined to a
folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from unicodedata import normalize

from appliance.checkpoint.faults import plain
from appliance.errors import CheckpointError

SUMS = "SHA256SUMS"
SUMS_BYTES = 16 << 20
"""The longest list of sums that is read."""
OWN_PREFIX = ".moe-appliance"
"""Files of ours in a checkpoint's folder begin so; none of them is part of the checkpoint."""
PART, RECORD, BAD = ".part", ".part.json", ".bad"
"""Endings: the begun file, what is known of it, and a whole file with the wrong sum."""
_LINE = re.compile(r"(\\?)([0-9a-fA-F]{64}) [ *](.+)")
_SUM = re.compile(r"[0-9a-fA-F]{64}")
_ESCAPES = {"\\\\": "\\", "\\n": "\n", "\\r": "\r"}
_NAME_BYTES = 255 - len(RECORD) - len(".new")
"""Source: NAME_MAX of Linux (255), less what the record of a begun file adds while it is replaced."""


def parse_sums(text: str, where: str) -> dict[str, str]:
    """Name -> SHA-256 in lower case, from the text of `where`. Empty lines are skipped, `./` before a name is dropped.

    Names are not checked, see `safe_name`. Raises CheckpointError with the number of a line that is not
    `<64 hex digits>  <name>`, or that says otherwise than a line before it.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), 1):
        line = line.removesuffix("\r")
        if not line:
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise CheckpointError(
                f"{where}, line {number} is not a sum and a name: {plain(line)}",
                "write it anew with: sha256sum FILES > SHA256SUMS",
            )
        escaped, digest, name = match[1], match[2].lower(), match[3]
        if escaped:
            name = re.sub(r"\\[\\nr]", lambda found: _ESCAPES[found[0]], name)
        name = name.removeprefix("./")
        if found.setdefault(name, digest) != digest:
            raise CheckpointError(
                f"{where}, line {number}: a second, other sum of {plain(name)}", "keep the one that is right"
            )
    return found


def format_sums(sums: Mapping[str, str]) -> str:
    """The text for `sha256sum -c`, ordered by name. The names must be safe ones."""
    return "".join(f"{sums[name]}  {name}\n" for name in sorted(sums))


def safe_name(name: str, where: str) -> str:
    """`name` when it stays inside the folder it is joined to and is none of our own names.

    Raises CheckpointError, naming `where` it came from, for an absolute name, `..`, empty parts, a backslash, control
    characters, bytes that are no text, a part longer than the file system takes, and names that we use ourselves.
    """
    if problem := _problem(name):
        raise CheckpointError(
            f"{where} names a file {plain(name)}: {problem}",
            "do not use this source: no honest checkpoint names such a file",
        )
    return name


def distinct(names: Iterable[str], where: str) -> None:
    """Raise CheckpointError when two names are one on a file system that ignores case or how letters are composed, or
    when one is the folder of another."""
    seen: dict[str, str] = {}
    for name in names:
        parts = name.split("/")
        for one in (*("/".join(parts[:end]) + "/" for end in range(1, len(parts))), name):
            other = seen.setdefault(_folded(one), one)
            if other != one:
                raise CheckpointError(
                    f"{where} names both {plain(other)} and {plain(one)}, which are one on some disks",
                    "do not use this source: no honest checkpoint names such files",
                )
    for name in seen.values():
        if f"{_folded(name)}/" in seen:
            raise CheckpointError(
                f"{where} names {plain(name)} as a file and as a folder",
                "do not use this source: no honest checkpoint names such files",
            )


def _folded(name: str) -> str:
    return normalize("NFC", name).casefold()


def _problem(name: str) -> str:
    parts = name.split("/")
    if any(ord(char) < 0x20 or 0x7F <= ord(char) < 0xA0 or 0xD800 <= ord(char) < 0xE000 for char in name):
        return "it has control characters"
    if "\\" in name:
        return "it has a backslash"
    if any(part in ("", ".", "..") for part in parts):
        return "it leads out of the folder" if ".." in parts or name.startswith("/") else "it is not a plain path"
    if any(len(part.encode()) > _NAME_BYTES for part in parts):
        return f"a part of it has more than {_NAME_BYTES} bytes"
    if is_ours(name):
        return "moe-appliance itself uses that name"
    return ""


def is_ours(name: str) -> bool:
    """Whether a file is none of a checkpoint but one that fetching leaves: sums, records, begun and bad files."""
    last = PurePosixPath(name).name.removesuffix(".new")  # files.replace_file was killed
    return last == SUMS or name.startswith(OWN_PREFIX) or last.endswith((PART, RECORD, BAD))


def etag_sum(etag: str | None) -> str | None:
    """The SHA-256 that a strong ETag of 64 hex digits is, as hubs and many stores send it; None for any other."""
    bare = (etag or "").strip().removeprefix('"').removesuffix('"')
    return bare.lower() if _SUM.fullmatch(bare) else None


def is_sum(text: object) -> bool:
    """Whether it is a SHA-256 in hex digits."""
    return isinstance(text, str) and _SUM.fullmatch(text) is not None
