"""Where the files of a folder came from: .moe-appliance-origin.json and SHA256SUMS. Touches these two files.

Both are replaced at once, after every file that is done, so that a kill leaves a true state.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Self

from appliance.checkpoint.faults import plain, typed
from appliance.checkpoint.sums import OWN_PREFIX, SUMS, format_sums, is_sum
from appliance.errors import CheckpointError
from appliance.files import read_regular
from gateway.files import replace_file

NAME = f"{OWN_PREFIX}-origin.json"
SCHEMA = "moe-appliance.origin/1"
_MODE = 0o644
_MOST_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Kept:
    """A whole file. `told_by`: who said its sum beforehand, None when the sum is only ours, computed as it came;
    `validator`: of the source, by which a later fetch sees that the source did not change; `mtime_ns`, `inode`: as the
    file had them when it was hashed, None in records of before they were kept."""

    size_bytes: int
    sha256: str
    told_by: str | None = None
    validator: str | None = None
    mtime_ns: int | None = None
    inode: int | None = None

    def untouched(self, now: os.stat_result) -> bool:
        """Whether size, time and inode are what they were when the file was hashed."""
        return (self.size_bytes, self.mtime_ns, self.inode) == (now.st_size, now.st_mtime_ns, now.st_ino)


@dataclass(frozen=True, slots=True)
class Provenance:
    """`origin`: without credentials; `revision`: the commit of a hub; `fetched_at`: UTC, when the last file was done;
    `complete`: every file that was to be fetched is there."""

    origin: str
    revision: str | None
    fetched_at: str
    complete: bool = False
    files: Mapping[str, Kept] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """What `checkpoint fetch` is called with to get the same files again."""
        return self.origin if self.revision is None else f"{self.origin}@{self.revision}"

    def having(self, name: str, kept: Kept, at: str) -> Self:
        """The same with one file more, done `at`."""
        return replace(self, files={**self.files, name: kept}, fetched_at=at)

    def save(self, folder: Path) -> None:
        """Write both files. Raises OSError."""
        sums = {name: kept.sha256 for name, kept in self.files.items()}
        replace_file(folder / SUMS, format_sums(sums).encode(), _MODE)
        text = json.dumps({"schema": SCHEMA} | asdict(self), indent=1, sort_keys=True)
        replace_file(folder / NAME, (text + "\n").encode(), _MODE)


def load(folder: Path) -> Provenance | None:
    """What the folder says of itself; None when it says nothing. Raises OSError, and CheckpointError for a file that is
    not ours."""
    path = folder / NAME
    try:
        raw = read_regular(path, _MOST_BYTES)
    except FileNotFoundError:
        return None
    try:
        said = json.loads(raw)
        if said.pop("schema") != SCHEMA:
            raise ValueError("another schema")
        said["files"] = {name: Kept(**kept) for name, kept in said["files"].items()}
        found = Provenance(**said)
        texts = (found.origin, found.revision or "", found.fetched_at)
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("an origin that is no text")
        if not all(is_sum(kept.sha256) and isinstance(kept.size_bytes, int) for kept in found.files.values()):
            raise ValueError("a file without a sum and a size")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            f"{plain(path)} cannot be read: {type(error).__name__}: {str(error)[:80]!r}",
            f"remove it: rm {typed(path)}; the files are then judged by the sums that their source tells",
        ) from error
    return found
