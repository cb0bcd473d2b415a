"""A file while it is fetched: NAME.part and a record beside it. Touches these, the boot id.

1. A file has its true name only when it is whole, its sum is known, and its bytes are on the disk.
2. The record says what the bytes belong to. Bytes of something else are dropped, never continued.
3. Without a sum from the source, bytes of an earlier boot are dropped: after a loss of power they may be zeros, and
   nothing could tell.
4. The record outlives the rename until the folder's own record knows the file, so that a kill between the two loses
   nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

from appliance.checkpoint.folder import READ_BYTES
from appliance.checkpoint.sums import BAD, PART, RECORD
from appliance.checkpoint.threads import Report
from appliance.files import read_regular
from gateway.files import replace_file

MODE = 0o644
_RECORD_BYTES = 64 << 10
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file as its source describes it.

    `url`: its query may be a secret. `validator`: what changes when the bytes do, None when the source has nothing of
    the kind; `etag`: a strong one, for If-Range. `sha256`: as `told_by` says it, both None when nobody does.
    """

    name: str
    url: str = field(repr=False)
    size_bytes: int
    validator: str | None = None
    etag: str | None = None
    sha256: str | None = None
    told_by: str | None = None

    def record(self, boot: str) -> Record:
        """What is written beside its part."""
        bare = urlsplit(self.url)._replace(query="", fragment="").geturl()
        return Record(bare, self.size_bytes, self.validator, self.sha256, boot)


@dataclass(frozen=True, slots=True)
class Record:
    """What the bytes in a part belong to. `url`: without its query; `whole_sha256`: their sum, once they are all there
    and checked."""

    url: str
    size_bytes: int
    validator: str | None
    sha256: str | None
    boot_id: str
    whole_sha256: str | None = None

    def continues(self, wanted: Record) -> bool:
        """Whether bytes with this record are the beginning of what has the record `wanted`."""
        if self.sha256 is not None or wanted.sha256 is not None:
            return (self.sha256, self.size_bytes) == (wanted.sha256, wanted.size_bytes)
        return "" not in (self.validator or "", self.boot_id) and replace(self, whole_sha256=None) == wanted


def boot_id() -> str:
    """What the kernel drew at this boot; "" where there is none, which then continues nothing untold."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def read_record(path: Path) -> Record | None:
    """The record beside the part of `path`; None when there is none that can be read."""
    try:
        return Record(**json.loads(read_regular(_beside(path, RECORD), _RECORD_BYTES)))
    except (OSError, ValueError, TypeError, RecursionError):
        return None


def forget(path: Path) -> None:
    """Remove the record beside `path`; its file has its name, and the folder knows it."""
    _beside(path, RECORD).unlink(missing_ok=True)


def begun_bytes(path: Path, remote: RemoteFile, boot: str) -> int:
    """How many bytes of `remote` are there already, by the record; nothing is hashed."""
    record, part = read_record(path), _beside(path, PART)
    if record is None or not record.continues(remote.record(boot)) or part.is_symlink():
        return 0
    with contextlib.suppress(OSError):
        there = part.stat().st_size
        return there if there <= remote.size_bytes else 0
    return 0


def placed(path: Path, remote: RemoteFile) -> str | None:
    """The sum of a file that was checked and given its name by a fetch that was killed right after; else None."""
    record = read_record(path)
    if record is None or record.size_bytes != remote.size_bytes or _beside(path, PART).exists():
        return None
    told = remote.sha256 is not None
    same = record.sha256 == remote.sha256 if told else record.validator == remote.validator
    return record.whole_sha256 if same else None


class PartFile:
    """The bytes of one remote file that are here so far, hashed as they come. Methods block; one caller at a time."""

    def __init__(self, path: Path, remote: RemoteFile, boot: str) -> None:
        """Open the part and keep what is there of `remote`; `hash_begun` must come next. Raises OSError."""
        self.path, self.remote = path, remote
        self.bytes, self._digest = 0, hashlib.sha256()
        self._keep = begun_bytes(path, remote, boot)
        self._record = remote.record(boot)
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._file = os.fdopen(os.open(_beside(path, PART), flags, MODE), "r+b", buffering=0)
        try:
            self._file.truncate(self._keep)  # before the record: old bytes must never be under a new one
            self._write_record()
        except OSError:
            self._file.close()
            raise

    def hash_begun(self, report: Report) -> None:
        """Read and hash what was kept; `report` may raise. Raises OSError."""
        while self.bytes < self._keep and (piece := self._file.read(READ_BYTES)):
            self._digest.update(piece)
            self.bytes += len(piece)
            report(len(piece))

    def write(self, data: bytes) -> None:
        """Append. What a full disk took of it is cut off again. Raises OSError."""
        view = memoryview(data)
        try:
            while view:
                view = view[self._file.write(view) :]
        except OSError:
            with contextlib.suppress(OSError):
                self._file.truncate(self.bytes)
                self._file.seek(self.bytes)
            raise
        self._digest.update(data)
        self.bytes += len(data)

    def restart(self) -> None:
        """Drop what is there. Raises OSError."""
        self._file.truncate(0)
        self._file.seek(0)
        self.bytes, self._digest = 0, hashlib.sha256()

    def sum(self) -> str:
        """SHA-256 of what is there."""
        return self._digest.hexdigest()

    def place(self) -> os.stat_result:
        """Give the whole, checked file its name; its status with all bytes on the disk. Raises OSError."""
        os.fsync(self._file.fileno())
        status = os.fstat(self._file.fileno())
        self._file.close()
        self._record = replace(self._record, whole_sha256=self.sum())
        self._write_record()
        _beside(self.path, PART).replace(self.path)
        _sync_folder(self.path.parent)
        return status

    def set_aside(self) -> Path:
        """Keep the bytes as NAME.bad, not to be continued. Raises OSError."""
        self._file.close()
        bad = _beside(self.path, BAD)
        _beside(self.path, PART).replace(bad)
        forget(self.path)
        return bad

    def close(self) -> None:
        """Keep the bytes for the next time."""
        self._file.close()

    def _write_record(self) -> None:
        replace_file(_beside(self.path, RECORD), json.dumps(asdict(self._record), indent=1).encode(), MODE)


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
